#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "harness/subject.h"
#include "kernels/backend.h"
#include "sim/policy/baseline.h"
#include "sim/replay/replay.h"
#include "sim/source/trace.h"

namespace kv {

// Begins the reason of a case that kept something else than was asked for.
inline constexpr std::string_view kFailedPrefix = "failed: ";

struct CaseBatch {
  Backend& backend;
  const Spec& spec;
  Subject& subject;
  const BaselineNeeds& needs;
  std::span<const Sample> samples;
  int first = 0;  // number of the first sample
  int count = 0;
  std::string data;
  std::string unavailable;  // why there are no samples; then every case is skipped
};

// Replays the cases of one batch of samples. The full-cache pass is computed when the first case needs it, is shared by
// all, and dies with the runner.
class CaseRunner {
 public:
  explicit CaseRunner(CaseBatch batch);

  // All rows of the case. A UserError on the way becomes one skipped row a sample.
  std::vector<Row> run(const Case& one);

 private:
  struct Outcome {
    std::vector<Measured> measured;
    ReplayResult result;
    std::vector<std::string> failures;  // [sequences], empty: kept what was asked
  };

  Outcome replay_case(const Case& one);
  Schedule schedule_of(const Case& one, const Policy& policy) const;
  const Baseline& baseline();
  Row blank(const Case& one, int sequence) const;
  std::vector<Row> rows_of(const Case& one, const Outcome& outcome) const;
  std::vector<Row> skipped_rows(const Case& one, const std::string& reason) const;

  CaseBatch batch_;
  std::vector<std::span<const int32_t>> sequences_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> numbers_;
  std::vector<const Sample*> samples_;
  Source* source_ = nullptr;
  std::optional<Baseline> baseline_;
  std::string baseline_error_;
  std::map<std::string, Outcome> without_scorer_;  // policies that no budget changes, by name and options
};

// Throws UserError where a policy of the spec needs what the trace lacks.
void check_trace(const Spec& spec, const Trace& trace);

}  // namespace kv
