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

}  // namespace

ReplayResult replay(const ReplayArgs& args) {
  RunShape shape =
      run_shape(resident_bounds(args.schedule, args.policy, args.source.info()), largest_block(args.schedule));
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
             .seed = args.seed,
             .sample_numbers = args.sample_numbers,
             .baseline = args.baseline,
             .observers = args.observers});
  // What admission turns away takes no memory, and how much that is shows as it goes.
  loop.begin(args.sequences, args.policy.admission->window() > 0 ? 0 : shape.pages);
  for (const Step& step : args.schedule) loop.step(step);
  ReplayResult result = loop.finish();
  total.stop(result.total_seconds);
  if (args.left) *args.left = loop.leave();
  return result;
}

}  // namespace kv
