#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/policy/allocation.h"

namespace kv {

struct ScoreCheckArgs {
  Backend& backend;
  std::string_view policy;  // for the complaint
  std::span<const ScoredLayer> layers;
  std::span<const int> layer_numbers;  // [layers], as the model counts them
  int kv_heads = 0;
  Protection protection;
  const uint8_t* rows_due = nullptr;  // [rows], backend memory; null = all
};

// Throws NotFiniteError, naming policy, layer and KV head, where a score or a second key of an entry that an event may
// take is a NaN or infinite: selections have no place for it in their order. Scores of protected entries are not read.
// The layers are looked at on the backend; one word comes back for all of them.
void check_scores(const ScoreCheckArgs& args);

}  // namespace kv
