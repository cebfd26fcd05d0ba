#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/headline.h"
#include "sim/policy/measured.h"
#include "sim/policy/observer.h"
#include "sim/policy/registry.h"
#include "sim/replay/replay.h"
#include "sim/tasks/sample.h"

namespace kv {

// What one case replays: everything a metric may look at.
struct CaseView {
  BatchShape batch;                        // batch.future is set only for an oracle policy; metrics use `baseline`
  std::span<const Sample* const> samples;  // [sequences]: ids, labels, links
  const Baseline* baseline = nullptr;      // the full-cache pass
  const Schedule* schedule = nullptr;
  bool decode_time = true;  // false: one-shot compression
  // [sequences] tokens seen at the first event; −1 = none happens. Where a capacity says, known to report() alone.
  std::span<const int32_t> first_event;
  // Text of token ids; empty where no tokenizer is known (a trace of bare ids).
  std::function<std::string(std::span<const int32_t>)> decode;
};

// A metric watches one case's replay and then reports rows. Registered by name like a policy.
class Metric : public Observer {
 public:
  static constexpr std::string_view kKind = "metric";
  virtual void begin_case(const CaseView&) {}
  virtual void report(const ReplayResult& result, std::vector<Measured>& rows) = 0;
  // Its rows that hold one number of a whole sample, by name, whatever its options: what a plot may have along x, and a
  // table compare at.
  virtual std::vector<std::string> numbers() const { return {}; }
  // What a spec without tables and plots shows of the rows; none: they are too much for one number a case.
  virtual std::vector<Headline> headlines() const { return {}; }
};

using MetricEntry = PartEntry<Metric>;  // the summary: what it measures, unit, range, source
using RegisterMetric = RegisterPart<Metric>;

std::vector<const MetricEntry*> metrics();
std::unique_ptr<Metric> make_metric(std::string_view name, std::vector<GivenParam> options);
std::vector<DeclaredParam> describe_metric(std::string_view name);

}  // namespace kv
