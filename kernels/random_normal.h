#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace kv {

// Seeded, nearly normal values, made where they are used: weights of a model that nobody trained, entries of a cache
// that nobody computed. output[i] = sigma · z(seed, first + i), the same bits on every backend and in any split of the
// calls; an output of bf16 rounds to nearest, ties to even.
//
// z is the sum of the eight bytes of SplitMix64's output number `index` (Steele, Lea and Flood, OOPSLA 2014) less its
// mean 1020, divided by its standard deviation √43690: 2041 levels, excess kurtosis −0.15, |z| < 4.9. That is as fine
// as bf16 resolves, and needs neither logarithm nor cosine, whose last bits differ between machines. One f32 product
// makes the value: (sum − 1020) · (sigma / 209.02153f).
struct RandomNormalArgs {
  Ref output;  // [count], f32 or bf16
  int64_t count = 0;
  uint64_t seed = 0;
  int64_t first = 0;  // index of output[0]
  float sigma = 1;
};

namespace cpu {
void random_normal(const RandomNormalArgs& args);
}
namespace cuda {
void random_normal(const RandomNormalArgs& args);
}

}  // namespace kv
