#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// What an event keeps of one KV head's importance, against the set of the same size that keeps the most (002 Eqs. 5-7).
// That size b is how many candidates stayed here, whatever allocation gave the head its count.
//   hit: kept and of the b most important; miss: of those and evicted; false positive: kept and not of those.
// There are b − hits of either of the last two. Equal importance at the cut counts as a hit, as far as b allows.
struct KeptImportance {
  int64_t entries = 0;         // b
  int64_t hits = 0;            // of b
  double total = 0;            // Σ over candidates
  double kept = 0;             // Σ over kept ones
  double best = 0;             // Σ over the b most important, >= kept
  double missed = 0;           // Σ over misses
  double false_positives = 0;  // Σ over false positives; best − kept = missed − false_positives (Eq. 7)
};

// importance and keep: [candidates]; `scratch` is overwritten.
KeptImportance judge_kept(std::span<const float> importance, std::span<const uint8_t> keep,
                          std::vector<float>& scratch);

}  // namespace kv
