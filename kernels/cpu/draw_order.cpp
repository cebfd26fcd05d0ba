#include "kernels/draw_order.h"

#include <cmath>

#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

void draw_row(const DrawOrderArgs& args, int64_t row) {
  const int64_t heads = args.cache.kv_heads;
  const auto number = static_cast<uint32_t>(args.numbers[row / heads]);
  const auto event = static_cast<uint32_t>(args.tokens_seen[row / heads]);
  const uint32_t head = args.first_head + static_cast<uint32_t>(row % heads);
  const int32_t count = args.cache.lengths[row] - args.drop_newest;
  const float* scores = args.scores.row(row);
  const uint8_t* stays = args.stays ? args.stays.row(row) : nullptr;
  float* output = args.output.row(row);
  for (int32_t slot = 0; slot < count; ++slot) {
    if (!std::isfinite(scores[slot])) {
      output[slot] = scores[slot];
    } else if (stays && stays[slot]) {
      output[slot] = kStays;
    } else {
      const double u = draw_uniform(args.seed, number, head, event, static_cast<uint32_t>(slot));
      output[slot] = static_cast<float>(scores[slot] + std::log(-std::log(u)));
    }
  }
}

}  // namespace

void draw_order(const DrawOrderArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) draw_row(args, row);
  });
}

}  // namespace kv::cpu
