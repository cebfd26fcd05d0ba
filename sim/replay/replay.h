#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sim/policy/observer.h"
#include "sim/policy/policy.h"
#include "sim/replay/loop.h"
#include "sim/replay/replay_result.h"
#include "sim/replay/schedule.h"
#include "sim/source/source.h"

namespace kv {

struct ReplayArgs {
  Backend& backend;
  Source& source;
  Policy& policy;
  std::span<const std::span<const int32_t>> sequences;  // token ids
  const Schedule& schedule;
  int budget = 0;  // for BatchShape; 0 in one-shot compression
  int interval = 0;
  // Steps are taken in pieces that end where it is passed, and events fall there; those of the schedule have none.
  const Capacity* capacity = nullptr;
  uint64_t seed = 0;
  std::span<const int32_t> sample_numbers;  // [sequences]; empty = 0, 1, 2, …
  const Baseline* baseline = nullptr;       // required when a policy asks for the future
  std::span<Observer* const> observers;
  // Policies that look on while this one cuts: at each of its events their scorers score the same entries, which
  // observers see (EvictionView::onlookers). They change none of its decisions and rows. Each has a scorer.
  std::span<Policy* const> onlookers{};
  std::optional<LoopState>* left = nullptr;  // gets what the loop leaves, for others to go on from; null: nobody does
};

// Drives the loop (sim/replay/loop.h) by a schedule, over token ids that are known.
// Throws UserError when the source lacks what the policy needs. KV_CHECKs that every event keeps exactly what was
// asked.
ReplayResult replay(const ReplayArgs& args);

}  // namespace kv
