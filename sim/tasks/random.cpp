#include "sim/tasks/random.h"

#include <numeric>

#include "kernels/check.h"

namespace kv {
namespace {

constexpr uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
constexpr uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

uint32_t Random::next_u32() {
  if (used_ == words_.size()) {
    words_ = philox4x32({low(block_), high(block_), low(stream_), high(stream_)}, {low(seed_), high(seed_)});
    ++block_;
    used_ = 0;
  }
  return words_[used_++];
}

uint64_t Random::next_u64() {
  const uint64_t upper = next_u32();
  return upper << 32 | next_u32();
}

double Random::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

uint64_t Random::below(uint64_t count) {
  KV_CHECK(count > 0);
  // The lowest 2^64 mod count values are drawn again: what is left is a whole number of copies of [0, count).
  const uint64_t rejected = (0 - count) % count;
  uint64_t value = next_u64();
  while (value < rejected) value = next_u64();
  return value % count;
}

std::vector<size_t> Random::sample(size_t population, size_t count) {
  KV_CHECK(count <= population);
  std::vector<size_t> indices(population);
  std::iota(indices.begin(), indices.end(), size_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(indices[i], indices[i + below(population - i)]);
  indices.resize(count);
  return indices;
}

}  // namespace kv
