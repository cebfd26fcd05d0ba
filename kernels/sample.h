#pragma once

#include <cstdint>

#include "kernels/find_bad.h"
#include "kernels/philox.h"

namespace kv {

// Chooses the next token of each row. The order of the steps is that of transformers: logits are divided by the
// temperature; the top_k largest stay; of their renormalised probabilities the largest stay that reach top_p, that is
// each token with less than top_p above it; one of what is left is drawn. The largest token always stays.
//   temperature = 0: the most likely token, whatever the rest says.   top_k = 0 and top_p >= 1: all stay.
// Equal logits rank by id, the lower first, so that the first top_k are top_k many (transformers keeps ties).
// A probability is weighed in units of 2^-40 of the largest one: integer sums, the same in any order.
//   u = next_random(seed, numbers[s], positions[r]) / 2^64 chooses the first id whose cumulative weight, in the order
//   of ids, exceeds u · (their sum),  s = sequences[r].
// Where first_bad says that a logit is not finite (kernels/find_bad.h) nothing is drawn: every row's id is 0.
// Numbers and positions name a token of a sample, so what is drawn depends on neither batch nor row.
struct SampleArgs {
  const float* logits = nullptr;        // [rows, vocab]; none is NaN, but where first_bad says so
  const int32_t* sequences = nullptr;   // [rows]
  const int32_t* positions = nullptr;   // [rows] of the tokens whose logits these are: the new ones come after them
  const int32_t* numbers = nullptr;     // [sequences]
  const int32_t* origins = nullptr;     // [sequences] position of the first new token
  const uint64_t* first_bad = nullptr;  // on the backend; null: all are finite
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t sequence_count = 0;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  uint64_t seed = 0;
  int32_t* ids = nullptr;    // [rows]
  int32_t* texts = nullptr;  // [new tokens, sequences]: the id also goes to [positions[r] + 1 − origins[s], s]
};

// Another key than that of sim/tasks/random.h, so that draws never repeat the numbers that made a text.
constexpr uint64_t next_random(uint64_t seed, int32_t number, int32_t position) {
  const uint64_t key = seed ^ 0xE7037ED1A0B428DBull;
  const auto words = philox4x32({static_cast<uint32_t>(number), static_cast<uint32_t>(position), 0, 0},
                                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return uint64_t{words[0]} << 32 | words[1];
}

// The integer part of u · total.
constexpr uint64_t draw_below(uint64_t random, uint64_t total) {
  const uint64_t total_high = total >> 32, total_low = total & 0xFFFFFFFFu;
  const uint64_t random_high = random >> 32, random_low = random & 0xFFFFFFFFu;
  const uint64_t middle = random_high * total_low + (random_low * total_low >> 32);
  return random_high * total_high + (middle >> 32) + (((middle & 0xFFFFFFFFu) + random_low * total_high) >> 32);
}

inline constexpr float kSampleUnit = 0x1p40f;  // weight of the largest logit

namespace cpu {
void sample(const SampleArgs& args);
}
namespace cuda {
void sample(const SampleArgs& args);
}

}  // namespace kv
