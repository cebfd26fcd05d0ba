#include "tests/support/entries_left.h"

#include <optional>

#include "sim/replay/replay.h"
#include "tests/support/identity.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {

std::vector<int32_t> entries_left(const SlotChoice& admission) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(2, 2, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 40, 1)});
  Policy policy = make_policy("full", {}, {.admission = admission});
  policy.load(policy.check(identity_of(info)));
  const std::vector<int32_t> ids(40, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t length = 40;
  std::optional<LoopState> state;
  replay({.backend = *backend,
          .source = source,
          .policy = policy,
          .sequences = sequences,
          .schedule = full_schedule({&length, 1}, 40),
          .left = &state});
  std::vector<int32_t> lengths;
  for (int layer = 0; layer < info.layers; ++layer) {
    for (const int32_t of_head : state->cache.lengths(layer)) lengths.push_back(of_head);
  }
  return lengths;
}

}  // namespace kv::ref
