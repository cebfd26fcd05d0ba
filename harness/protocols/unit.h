#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/rows.h"
#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "harness/subject.h"
#include "kernels/backend.h"
#include "sim/policy/baseline.h"

namespace kv {

// Begins the reason of a unit that kept something else than was asked for.
inline constexpr std::string_view kFailedPrefix = "failed: ";

// The samples that some units of work share: one batch of a workload. Every reference must outlive it.
struct UnitBatch {
  Backend& backend;
  const Spec& spec;
  Subject& subject;
  const BaselineNeeds& needs;  // of all cases together
  const Workload& workload;
  int first = 0;  // number of the first sample
  int count = 0;

  std::string data() const;  // the rows' column of that name
  // All that every row of the case says; the sample is left to whoever speaks of one.
  Row blank(const Case& unit_case) const;
  Row blank(const Case& unit_case, int sample) const;
  // One row a sample, or of the whole where samples are repetitions.
  std::vector<Row> skipped(const Case& unit_case, const std::string& reason) const;
};

// Bytes that so many samples of a workload take on the device when they run together, the model's weights left out.
using BatchBytes = std::function<size_t(int samples)>;

// Runs the units of one batch.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  // SHA-256 of what every unit of the batch reads beside the model: part of their keys.
  virtual std::string inputs() const = 0;
  // SHA-256 of each sample's token ids, for the manifest.
  virtual std::vector<std::string> prompts() const { return {}; }
  // Called once, before the first run(): these cases of the workload will be run, each once, in this order as
  // far as one is run at a time. They outlive the runner.
  virtual void begin(std::span<const Case* const>) {}
  // How many threads may be in run() at once, from begin() on.
  virtual int most_at_once() const { return 1; }
  // All rows of the unit. A UserError becomes UnitBatch::skipped rows with its reason, and a MemoryError is tried again
  // by the next run: a runner that catches UserError to save its other samples lets MemoryError and PageError through.
  virtual std::vector<Row> run(const Case& unit_case) = 0;
};

// Adds the row kDocumentMetric; none where `document` is empty.
void add_document(std::vector<Row>& rows, const Row& blank, std::string_view document);

// Adds a copy of `blank` with that value, and returns it. What is not finite becomes a reason instead of a value.
Row& add_row(std::vector<Row>& rows, const Row& blank, std::string_view metric, double value, std::string_view unit);

}  // namespace kv
