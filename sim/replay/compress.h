#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/policy/policy.h"
#include "sim/source/source.h"

namespace kv {

// One-shot compression of a context, as `kvlab compress` writes it.
struct CompressResult {
  int layers = 0;
  int kv_heads = 0;
  int64_t tokens = 0;
  std::vector<float>
      score;  // [layers, kv_heads, tokens]; protected entries get the largest other score of the layer + 1
  std::vector<uint8_t> keep;  // [layers, kv_heads, tokens]
};

// Processes `ids` as context, then keeps int(tokens · keep_fraction) entries a head by the policy's own scores.
// With a fraction of 1 there is no event: everything stays and the scores are 0. UserError: a fraction outside (0, 1],
// a policy that never evicts.
CompressResult compress(Backend& backend, Source& source, Policy& policy, std::span<const int32_t> ids,
                        double keep_fraction, uint64_t seed = 0);

}  // namespace kv
