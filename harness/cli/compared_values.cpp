#include "harness/cli/compared_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/report/cell.h"
#include "kernels/error.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

// The values that a spec itself gives a column; none of one that it does not (a layer, a metric).
std::vector<Located> values_of(const Spec& spec, const std::string& column) {
  std::vector<Located> values;
  if (column == "policy") {
    for (const Component& policy : spec.policies) values.push_back({policy.label, policy.where});
  }
  if (column == "data") {
    for (const DataSpec& data : spec.data) values.push_back({data.name, data.source.where});
  }
  for (const Axis& axis : spec.axes) {
    for (const auto& point : axis.points) {
      for (const GivenParam& param : point) {
        if (param.key == column) values.push_back({param.text, param.where});
      }
    }
  }
  return values;
}

bool is_overridden(const Located& value) { return value.where.starts_with("--set"); }

// `owner`: of whose key `with` the level is.
void check_level(const Spec& spec, const Level& level, const std::string& owner) {
  const std::vector<Located> values = values_of(spec, level.column);
  const auto is_it = [&](const Located& value) { return same_value(value.text, level.with); };
  if (values.empty() || std::any_of(values.begin(), values.end(), is_it)) return;
  if (std::any_of(values.begin(), values.end(), is_overridden)) return;
  std::vector<std::string> names;
  for (const Located& value : values) {
    if (std::find(names.begin(), names.end(), value.text) == names.end()) names.push_back(value.text);
  }
  throw UserError(fmt::format("{}: {}: with = {}: expected one of the values of '{}'{} ({})", level.where, owner,
                              shown(level.with), level.column, did_you_mean(level.with, names),
                              fmt::join(names, ", ")));
}

}  // namespace

void check_compared_values(const Spec& spec) {
  for (const TablePlan& table : spec.report.tables) {
    if (!table.paired) continue;
    const Pairing& pairing = *table.paired;
    const std::string owner = fmt::format("table '{}': paired", table.name);
    check_level(spec, {.column = pairing.column, .with = pairing.with, .where = pairing.where}, owner);
    if (pairing.beside) check_level(spec, *pairing.beside, owner + ": beside");
  }
}

}  // namespace kv
