#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "harness/metrics/metric.h"
#include "harness/protocols/lanes.h"
#include "harness/protocols/pruning.h"
#include "harness/protocols/unit.h"
#include "harness/spec/grid.h"
#include "sim/policy/baseline.h"
#include "sim/policy/policy.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"

namespace kv {

// When a policy that evicts does so, as a protocol has it.
struct EvictionPlan {
  Schedule schedule;
  Pruning pruning{};     // none in one-shot compression
  std::string cut_by{};  // a policy that evicts in place of the case's own, which looks on; empty: it evicts itself
};

// What a protocol makes of a case with a scorer over these samples. UserError where the policy cannot do that.
using PlanEviction =
    std::function<EvictionPlan(const Spec& spec, const Case&, const Policy&, std::span<const Sample* const> samples)>;

// Replays the cases of one batch of samples, measured by the spec's metrics, as many at once as the backend serves and
// the memory holds. The full-cache pass is computed before them, is shared by all, and dies with the runner.
class ReplayRunner final : public UnitRunner {
 public:
  enum class Events { kMany, kOne };  // kMany: as the text grows; kOne: at its context's end

  ReplayRunner(const UnitBatch& batch, Events events, PlanEviction plan);

  std::string inputs() const override;
  std::vector<std::string> prompts() const override;
  void begin(std::span<const Case* const> cases) override;
  int most_at_once() const override { return most_at_once_; }
  std::vector<Row> run(const Case& unit_case) override;

 private:
  struct Outcome {
    std::vector<Measured> measured;
    ReplayResult result;
    std::vector<std::string> failures;  // [sequences], empty: kept what was asked
    size_t learned_bytes = 0;           // Policy::learned_bytes
  };

  std::vector<Row> run_available(const Case& unit_case);
  std::vector<Row> run_together(const Case& unit_case);
  // One sample's error must not cost the others their rows.
  std::vector<Row> run_alone(const Case& unit_case);
  int lanes_for(int cases) const;
  Outcome replay_case(const Case& unit_case);
  const Baseline& baseline();
  std::vector<Row> rows_of(const Case& unit_case, const Outcome& outcome) const;

  UnitBatch batch_;
  Events events_;
  PlanEviction plan_;
  std::vector<Sample> samples_;             // that could be had
  std::vector<int32_t> numbers_;            // theirs
  std::map<int, std::string> unavailable_;  // by the others' numbers: why not
  std::vector<const Sample*> views_;
  std::vector<std::span<const int32_t>> sequences_;
  std::vector<int32_t> lengths_;
  std::optional<Lanes> lanes_;  // where there are samples
  int most_at_once_ = 1;
  // Held by a replay in a lane, and by one alone with the subject: a sample by itself takes the batch's own source.
  std::shared_mutex subject_;
  std::mutex baseline_mutex_;
  std::optional<Baseline> baseline_;
  std::exception_ptr baseline_error_;
  std::mutex without_scorer_mutex_;
  std::map<std::string, Outcome> without_scorer_;  // policies that no budget changes, by name and options
};

// The rows of a sample beside those of the metrics that hold one number of it (Protocol::numbers).
std::vector<std::string> replay_numbers();

// "<experiment>: N full-cache passes and M replays of one sample"
std::string replay_plan(const Spec& spec, const Grid& grid);

}  // namespace kv
