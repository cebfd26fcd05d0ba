#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/philox.h"

namespace kv {

// A sequence of random numbers that is a pure function of (seed, stream). Streams of one seed are independent, so every
// sample of a task takes its own and can be drawn alone.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint32_t next_u32();
  uint64_t next_u64();

  // A number in [0, 1), a multiple of 2^-53.
  double uniform();

  // A number in [0, count), unbiased. Requires count > 0.
  uint64_t below(uint64_t count);

  // A number in [first, last), as Python's randrange. Requires first < last.
  int between(int first, int last) { return first + static_cast<int>(below(static_cast<uint64_t>(last - first))); }

  bool chance(double probability) { return uniform() < probability; }

  // Requires a non-empty range.
  template <typename T>
  const T& choice(const std::vector<T>& items) {
    return items[below(items.size())];
  }
  template <typename T, size_t N>
  const T& choice(const std::array<T, N>& items) {
    return items[below(N)];
  }

  // Fisher-Yates; every order is equally likely.
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

  // `count` different indices below `population`, in random order. Requires count <= population.
  std::vector<size_t> sample(size_t population, size_t count);

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

}  // namespace kv
