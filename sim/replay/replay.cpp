#include "sim/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/replay/run_footprint.h"
#include "sim/replay/stopwatch.h"

namespace kv {

namespace {

int64_t largest_block(const Schedule& schedule) {
  int64_t tokens = 0;
  for (const Step& step : schedule) {
    tokens = std::max(tokens, std::accumulate(step.counts.begin(), step.counts.end(), int64_t{0}));
  }
  return tokens;
}

// In pieces, so that a capacity is passed at the end of one, if at all.
void step_by_capacity(Loop& loop, const Step& step) {
  const size_t sequences = step.counts.size();
  std::vector<int32_t> left = step.counts;
  const auto any = [&] { return std::any_of(left.begin(), left.end(), [](int32_t tokens) { return tokens > 0; }); };
  while (any()) {
    Step piece{std::vector<int32_t>(sequences, 0), std::vector<int32_t>(sequences, -1), step.decodes};
    for (size_t s = 0; s < sequences; ++s) {
      piece.counts[s] = std::min(left[s], loop.tokens_until_full(static_cast<int>(s)));
      left[s] -= piece.counts[s];
    }
    loop.step(piece);
  }
}

}  // namespace

ReplayResult replay(const ReplayArgs& args) {
  const Capacity* const capacity = args.policy.scorer ? args.capacity : nullptr;
  RunShape shape =
      run_shape(resident_bounds(args.schedule, args.policy, args.source.info(), capacity, Foreseen::kSurely),
                largest_block(args.schedule));
  shape.interval = args.interval;
  require_memory(args.backend, run_footprint(args.backend, args.source, args.policy, shape, args.onlookers),
                 fmt::format("a batch of {} under {}", args.sequences.size(), args.policy.name));
  Stopwatch total(args.backend);
  total.start();
  Loop loop({.backend = args.backend,
             .source = args.source,
             .policy = args.policy,
             .onlookers = args.onlookers,
             .sequences = static_cast<int>(args.sequences.size()),
             .budget = args.budget,
             .interval = args.interval,
             .capacity = capacity,
             .seed = args.seed,
             .sample_numbers = args.sample_numbers,
             .baseline = args.baseline,
             .observers = args.observers});
  loop.begin(args.sequences, pages_at_once(args.policy, shape));
  for (const Step& step : args.schedule) capacity ? step_by_capacity(loop, step) : loop.step(step);
  ReplayResult result = loop.finish();
  total.stop(result.total_seconds);
  if (args.left) *args.left = loop.leave();
  return result;
}

}  // namespace kv
