#include "policies/parts/golden_lesson.h"

#include <utility>
#include <vector>

#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"

namespace kv {

GoldenLesson::GoldenLesson(Policy onlooker) : golden_(make_policy("golden", {})), onlooker_(std::move(onlooker)) {}

void GoldenLesson::teach(const LearnBatch& batch, int budget, int interval, Observer& observer) {
  check_decode(golden_, budget, interval);
  BaselineNeeds needs = golden_.future_needs();
  needs.merge({.statistics_block = interval});
  const Baseline baseline = compute_baseline(batch.backend, batch.source, batch.sequences, needs);
  std::vector<int32_t> lengths;
  for (const auto& ids : batch.sequences) lengths.push_back(static_cast<int32_t>(ids.size()));
  Observer* const observers[] = {&observer};
  Policy* const onlookers[] = {&onlooker_};
  replay({.backend = batch.backend,
          .source = batch.source,
          .policy = golden_,
          .sequences = batch.sequences,
          .schedule = decode_schedule(lengths, budget, interval, batch.prefill_chunk),
          .budget = budget,
          .interval = interval,
          .seed = batch.seed,
          .sample_numbers = batch.sample_numbers,
          .baseline = &baseline,
          .observers = observers,
          .onlookers = onlookers});
}

}  // namespace kv
