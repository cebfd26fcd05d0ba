#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/philox.h"
#include "kernels/slots.h"

namespace kv {

// In (0, 1), an odd multiple of 2^-25, so that neither end is met: a stateless function of its arguments, the same bits
// on every backend. Another key than that of hash_uniform (kernels/random_uniform.h), which has the same arguments:
// what a policy draws is not what policy `random` scores.
constexpr double draw_uniform(uint64_t seed, uint32_t number, uint32_t head, uint32_t tokens_seen, uint32_t slot) {
  const uint64_t key = seed ^ 0x8EBC6AF09C88C6E3ull;
  const auto words =
      philox4x32({number, head, tokens_seen, slot}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return (static_cast<double>(words[0] >> 8) + 0.5) * 0x1p-24;
}

// Of slots that cannot be drawn: finite, for a select_top that follows, and above whatever a network's score becomes.
inline constexpr float kStays = 3e38F;

// Scores (high: stays) with which the lowest d candidates of a row are d draws without replacement, in ascending order,
// each with probability softmax(−y) over the candidates not yet drawn (001, reinforced stage; the Gumbel-top-k trick,
// where the released code draws with torch.multinomial, whose numbers no other machine has): with row = s · kv_heads +
// head,
//   output[row, slot] = y + log(−log u)   of candidates,  u = draw_uniform(seed, numbers[s], first_head + head,
//   output[row, slot] = kStays            of others                       tokens_seen[s], slot)
// for slots [0, length − drop_newest) of the rows that are due; nothing else is written. A score that is no finite
// number is passed on as it is, candidate or not: who selects candidates need not ask for any before. In double,
// rounded once, so that backends agree but for the last bit of a logarithm. Numbers, heads and tokens name what is
// drawn, so it depends on neither batch nor row, and every event draws anew.
struct DrawOrderArgs {
  PagedView cache;  // of which only the lengths matter
  Slots<const float> scores;
  Slots<const uint8_t> stays;  // 1 = no candidate; null: every slot is one
  uint64_t seed = 0;
  const int32_t* numbers = nullptr;      // [sequences], of their samples
  const int32_t* tokens_seen = nullptr;  // [sequences]
  uint32_t first_head = 0;               // number of the layer's first KV head
  const uint8_t* rows_due = nullptr;     // [rows], 0 = skip; null = all
  int drop_newest = 0;
  Slots<float> output;  // may alias scores
};

namespace cpu {
void draw_order(const DrawOrderArgs& args);
}
namespace cuda {
void draw_order(const DrawOrderArgs& args);
}

}  // namespace kv
