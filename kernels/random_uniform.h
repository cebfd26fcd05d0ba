#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/philox.h"
#include "kernels/slots.h"

namespace kv {

// In [0, 1), a multiple of 2^-24: a stateless function of its arguments, for scores that must not depend on the order
// in which they are asked for. The same bits on every backend. Another key than that of sim/tasks/random.h, so that a
// policy's scores never repeat the numbers that made the text.
constexpr float hash_uniform(uint64_t seed, uint32_t a, uint32_t b = 0, uint32_t c = 0, uint32_t d = 0) {
  const uint64_t key = seed ^ 0xA0761D6478BD642Full;
  const auto words = philox4x32({a, b, c, d}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1p-24f;
}

// Scores that are drawn: with row = s · kv_heads + head,
//   scores[row, slot] = hash_uniform(seed, numbers[s], first_head + head, tokens_seen[s], slot)
// for slots [0, length) of the rows that are due; nothing else is written. Numbers, heads and tokens name what the
// score is for, so it depends on neither batch nor row, and every event draws anew.
struct RandomUniformArgs {
  PagedView cache;  // of which only the lengths matter
  uint64_t seed = 0;
  const int32_t* numbers = nullptr;      // [sequences], of their samples
  const int32_t* tokens_seen = nullptr;  // [sequences]
  uint32_t first_head = 0;               // number of the layer's first KV head
  const uint8_t* rows_due = nullptr;     // [rows], 0 = skip; null = all
  Slots<float> scores;
};

namespace cpu {
void random_uniform(const RandomUniformArgs& args);
}
namespace cuda {
void random_uniform(const RandomUniformArgs& args);
}

}  // namespace kv
