#include "harness/protocols/own_yield.h"

#include <fmt/format.h>

#include "harness/protocols/unit.h"
#include "sim/tasks/own_traces.h"

namespace kv {

Remarks own_yield(const UnitBatch& batch) {
  const OwnTraces* written = batch.subject.own_traces(batch.workload);
  if (!written) return {};
  Remarks remarks;
  Row blank{
      .experiment = batch.spec.name, .model = batch.subject.name(), .data = batch.data(), .device = batch.spec.device};
  blank.axes.resize(batch.spec.axis_columns().size());
  const size_t traces = written->traces().size(), attempts = written->attempts.size();
  add_row(remarks.rows, blank, "trace_yield", static_cast<double>(traces) / static_cast<double>(attempts), "").text =
      fmt::format("{} of {} attempts, by {} on {}", traces, attempts, written->recipe.model, written->recipe.device);
  for (size_t number = 0; number < attempts; ++number) {
    const OwnAttempt& attempt = written->attempts[number];
    if (attempt.refused.empty()) continue;
    Row& row = add_row(remarks.rows, blank, "refused_trace", attempt.repetition, "");
    row.x = static_cast<double>(number);
    row.text = attempt.refused;
  }
  return remarks;
}

}  // namespace kv
