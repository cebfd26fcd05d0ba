#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/biased_attention.h"
#include "tests/support/backends.h"

namespace kv::ref {

// What kernels/biased_attention.h reads, in double.
struct BiasedProblem {
  std::vector<double> queries, keys, values, biases;  // packed as there; no biases for kNone
  KeyBias::Form form = KeyBias::Form::kNone;
  int window = 0;
  std::vector<Segment> segments;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  double scale = 0;
};

// Sums, and of each what decides on how far off it may be.
struct Sums {
  std::vector<double> values;      // NaN where the op leaves its place untouched
  std::vector<double> magnitudes;  // Σ |term|
  std::vector<double> roundings;   // Σ |term| · the roundings of f32 that the term went through
  std::vector<double> spreads;     // √Σ term²
};

struct BiasedAttention {
  Sums output, log_sums, query_gradient, key_gradient, value_gradient, bias_gradient;
};

// Forward and backward. A logit is a chain of head_dim products, scaled, with a bias, less the logarithm of the sum:
// off by at most head_dim + 4 roundings of Σ |its terms|. In a probability that becomes a relative error, once from
// itself and once from the sum, which is the mean over the probabilities; then exp (4), the sum and the division. A
// slope p (dp − D) inherits it, with the chains of dp and D, in proportion to p (Σ |terms of dp| + Σ |terms of D|),
// which is therefore what counts as the magnitude of a slope.
BiasedAttention biased_attention(const BiasedProblem& problem, const std::vector<double>& output_gradient);

// Σ output · output_gradient.
double biased_loss(const BiasedProblem& problem, const std::vector<double>& output_gradient);

// Whether sums in the backend's arithmetic agree with the reference, each and as a whole; what is untouched is NaN.
//   Each: by its roundings, and those of a sum over `chain` terms. On a GPU probabilities, slopes and the output that D
// is made of are rounded to bf16, and the result is: four roundings of 2^-9 at most, of the magnitude.
//   All: errors in bf16 have directions of their own, so they add up by their squares, and their root mean square is
// below half of the largest.
::testing::AssertionResult are_close(const Backend& backend, const std::vector<float>& got, const Sums& want,
                                     double chain);

}  // namespace kv::ref
