#include "kernels/random_uniform.h"

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

void random_uniform(const RandomUniformArgs& args) {
  const int64_t heads = args.cache.kv_heads;
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (args.rows_due && !args.rows_due[row]) return;
    const auto number = static_cast<uint32_t>(args.numbers[row / heads]);
    const auto event = static_cast<uint32_t>(args.tokens_seen[row / heads]);
    const uint32_t head = args.first_head + static_cast<uint32_t>(row % heads);
    const int32_t length = args.cache.lengths[row];
    float* scores = args.scores.row(row);
    for (int32_t slot = 0; slot < length; ++slot) {
      scores[slot] = hash_uniform(args.seed, number, head, event, static_cast<uint32_t>(slot));
    }
  });
}

}  // namespace kv::cpu
