#include "harness/protocols/unit.h"

#include <cmath>

#include "harness/protocols/protocol.h"

namespace kv {

std::string UnitBatch::data() const {
  if (workload.data >= 0) return spec.data[static_cast<size_t>(workload.data)].name;
  return spec.traces.empty() ? "random" : "trace";
}

Row UnitBatch::blank(const Case& unit_case) const {
  return {.experiment = spec.name,
          .model = subject.name(),
          .data = data(),
          .policy = spec.policies[static_cast<size_t>(unit_case.policy)].label,
          .device = spec.device,
          .seed = static_cast<int64_t>(spec.seed),
          .axes = unit_case.axes};
}

Row UnitBatch::blank(const Case& unit_case, int sample) const {
  Row row = blank(unit_case);
  row.sample = sample;
  return row;
}

std::vector<Row> UnitBatch::skipped(const Case& unit_case, const std::string& reason) const {
  std::vector<Row> rows;
  if (spec.protocol->samples_repeat) rows.push_back(blank(unit_case));
  for (int s = 0; s < count && !spec.protocol->samples_repeat; ++s) rows.push_back(blank(unit_case, first + s));
  for (Row& row : rows) row.skipped = reason;
  return rows;
}

void add_document(std::vector<Row>& rows, const Row& blank, std::string_view document) {
  if (document.empty()) return;
  Row& row = rows.emplace_back(blank);
  row.metric = kDocumentMetric;
  row.text = document;
}

Row& add_row(std::vector<Row>& rows, const Row& blank, std::string_view metric, double value, std::string_view unit) {
  Row& row = rows.emplace_back(blank);
  row.metric = metric;
  row.unit = unit;
  if (std::isfinite(value)) {
    row.value = value;
  } else {
    row.skipped = "not a finite number";
    row.text.clear();
  }
  return row;
}

}  // namespace kv
