#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// Adam (Kingma and Ba 2015, algorithm 1) with AdamW's decoupled decay (Loshchilov and Hutter 2019), as torch has both:
//   m = β1 m + (1 − β1) g,  v = β2 v + (1 − β2) g²,
//   w = w − rate · decay · w − rate · m̂ / (√v̂ + ε),  m̂ = m / (1 − β1^t),  v̂ = v / (1 − β2^t).
struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0;
};

// Master weights and both moments are f32, the arithmetic of a step is double. On the host, whose threads share the
// weights: a step of a million is 1.5 ms of a core, and both backends then learn the same.
class Adam {
 public:
  explicit Adam(size_t weights, AdamOptions options = {}) : options_(options), mean_(weights), square_(weights) {}

  // gradient as long as weights. A step of rate 0 leaves the weights, but counts.
  void step(std::span<float> weights, std::span<const double> gradient, double rate);

  // What a resumed run needs.
  struct State {
    int64_t steps = 0;
    std::vector<float> mean, square;
  };
  State state() const { return {steps_, mean_, square_}; }
  void restore(State state);

 private:
  AdamOptions options_;
  int64_t steps_ = 0;
  std::vector<float> mean_, square_;
};

// Of all slopes, the same by any number of threads. It is finite only where they all are.
double norm_of(std::span<const double> gradient);

// Scales a gradient of that norm to one of at most `bound`, by min(1, bound / (norm + 1e-6)) as torch does.
void clip_norm(std::span<double> gradient, double norm, double bound);

}  // namespace kv
