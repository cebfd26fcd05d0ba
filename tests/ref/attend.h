#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/paged.h"
#include "tests/support/paged_cache.h"

namespace kv::ref {

// One query of one head over the first `visible` slots of a row.
struct AttendedRow {
  std::vector<double> output;   // [head_dim]
  std::vector<double> weights;  // [visible]
  double log_sum = 0;           // ln Σ e^logit
  double logit_terms = 0;       // largest scale · Σ |q_d k_d|: what rounding errors of a logit grow with
  double largest_value = 0;     // largest |v_d|
  double spread = 0;  // √Σ (weight · ‖value‖)²: the output's length, were the values' directions random
};

// keys, values: [visible, head_dim].
AttendedRow attend_row(const float* query, const float* keys, const float* values, int64_t visible, int head_dim,
                       double scale);

struct Attended {
  std::vector<double> output;      // [tokens, q_heads, head_dim]
  std::vector<double> spreads;     // [tokens, q_heads]
  std::vector<double> log_sums;    // [tokens, q_heads]
  std::vector<double> sums;        // [rows, group, pitch]; NaN where attend leaves its output untouched
  std::vector<double> maxima;      // [rows, group, pitch]; likewise
  double largest_logit_terms = 0;  // of all rows
  double largest_value = 0;
};

Attended attend(const CacheRows& rows, const std::vector<float>& queries, const std::vector<Segment>& segments,
                int q_heads, double scale, int64_t pitch);

// How many roundings of f32 a probability has gone through, where `chain` bounds those of a sum over slots. A logit is
// a chain of head_dim products (times the scale, minus the maximum), off by at most roundings · Σ|terms|; softmax turns
// that into a relative error of the probability, once from itself and once from the sum. Then exp (4), the sum and the
// division.
double probability_roundings(const Attended& want, int head_dim, double chain);

// Whether outputs agree with the reference (`want` with output, spreads and both largest), in two ways.
//   Each value: probabilities that are off, a sum over slots, storage; all of values up to the largest.
//   Each vector, since values of many slots cancel, and what is left is smaller than that by far. With R the same
// roundings, but storage once (u = 2^-8 in bf16), it may be off by R · (‖want‖ + spread):
//   - The sum of the probabilities and the stored output scale the vector: an error of ‖want‖.
//   - A logit's error and a probability in bf16 (at most u) scale the slot's term, each on its own. Errors with
//     directions of their own add up by their squares: R · spread.
//   - The sum over slots rounds partial sums, which are about as long as the longer of the two.
// Where values have no common direction, spread is about ‖want‖, so bf16 may be off by 2 · 2^-8 of it. The root mean
// square of its rounding is 0.42 · 2^-8, which makes 0.6 · 2^-8 as a rule; simulated, no vector of the shapes of
// attend_test.cpp reaches more than 0.41 of the bound (0.61 at 16 values a vector, where chance counts for more). Two
// pages of values that change places among n slots of like weight move a vector by √(64 / n) of its length.
::testing::AssertionResult outputs_are_close(const Backend& backend, const std::vector<float>& got,
                                             const Attended& want, int head_dim, double chain);

}  // namespace kv::ref
