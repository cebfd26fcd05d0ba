#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// The log-probability of a dropped entry, with φ = −y.
enum class DrawLaw : uint8_t {
  kMarginal,      // φ_u − log Σ e^φ over all n slots, for each alone: what the released code learns from
  kPlackettLuce,  // φ_u − log Σ e^φ over the candidates not yet drawn: the law by which draw_order draws
};

// What a row's drawn eviction is worth to the weights that learn, and which way the scores would have to move (001,
// reinforced stage: GRPO). For each of the d slots u < n = length − drop_newest with keep[u] = 0, l being its
// log-probability by the scores of the three weights and A = advantages[row / kv_heads]:
//   ρ = exp(clamp(l − l_old, ±10))      e = l_reference − l      kl_u = exp(e) − e − 1
//   loss = 1/d Σ_u (−min(ρ A, clamp(ρ, 1 ± clip) A) + kl_weight · kl_u)      gradient_i = ∂loss/∂y_i
// Scores are high where an entry stays; the authors' are high where it goes, so their gradient is minus this one. Where
// a clamp is met exactly it still lets the gradient through, as torch's does.
// Draws are ordered by `order`, ascending, the lower slot first among equals; slots that were no candidates have
// gradient 0. The released code has no such law: it takes kMarginal, whatever was drawn before and from whatever.
// A row of which nothing was dropped has loss, kl, clipped and gradients 0; one that holds a number that is not finite,
// or whose advantage is none, has them all NaN. Sums in double; exact but for rounding, however far scores lie apart.
struct EvictionSurrogateArgs {
  PagedView cache;                      // of which only the lengths and kv_heads matter
  Slots<const float> scores;            // y of the weights that learn
  Slots<const float> old_scores;        // of those that drew
  Slots<const float> reference_scores;  // of those before this stage
  Slots<const uint8_t> keep;            // 0 = was dropped
  DrawLaw law = DrawLaw::kMarginal;
  Slots<const float> order;           // kPlackettLuce: what draw_order wrote; read of dropped slots
  Slots<const uint8_t> stays;         // kPlackettLuce: 1 = was no candidate, nor dropped; null: all n were
  const float* advantages = nullptr;  // [sequences]
  float clip = 0.2F;
  float kl_weight = 0;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip, nothing of the row is written; null = all
  int drop_newest = 0;
  float* loss = nullptr;     // [rows]
  float* kl = nullptr;       // [rows], the mean of kl_u
  float* clipped = nullptr;  // [rows], the share of the dropped whose ρ the clip keeps from learning
  Slots<float> gradient;     // of slots [0, n); may not alias what is read
};

// Of a row, by kPlackettLuce.
inline constexpr int kMostDrawn = 4096;

namespace cpu {
void eviction_surrogate(const EvictionSurrogateArgs& args);
}
namespace cuda {
void eviction_surrogate(const EvictionSurrogateArgs& args);
}

}  // namespace kv
