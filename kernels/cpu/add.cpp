#include "kernels/add.h"

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void add(const AddArgs& args) {
  const auto* one = args.first.as<float>();
  const auto* other = args.second.as<float>();
  auto* output = args.output.as<float>();
  parallel_blocks(args.count, 16384, [&](int64_t first, int64_t end) {
#pragma omp simd
    for (int64_t i = first; i < end; ++i) output[i] = one[i] + other[i];
  });
}

}  // namespace kv::cpu
