#include "kernels/random_normal.h"

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

int32_t byte_sum(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  z = (z & 0x00ff00ff00ff00ffu) + ((z >> 8) & 0x00ff00ff00ff00ffu);  // four sums in 16 bits each
  z += z >> 32;
  z += z >> 16;
  return static_cast<int32_t>(z & 0xffffu);
}

}  // namespace

void random_normal(const RandomNormalArgs& args) {
  auto* output = args.output.as<float>();
  const float scale = args.sigma / 209.02153f;
  const uint64_t seed = args.seed;
  const auto first_index = static_cast<uint64_t>(args.first);
  parallel_blocks(args.count, 65536, [=](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) {
      output[i] = static_cast<float>(byte_sum(seed, first_index + static_cast<uint64_t>(i)) - 1020) * scale;
    }
  });
}

}  // namespace kv::cpu
