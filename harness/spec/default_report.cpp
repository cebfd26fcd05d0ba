#include "harness/spec/default_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "harness/benchmarks.h"
#include "harness/headline.h"
#include "harness/metrics/metric.h"
#include "harness/protocols/protocol.h"
#include "harness/rows.h"
#include "kernels/error.h"
#include "sim/tasks/task.h"

namespace kv {
namespace {

constexpr const char* kAllocation = "allocation";

// A YAML text in double quotes.
std::string yaml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    static_cast<unsigned char>(c) < 0x20 ? out += fmt::format("\\x{:02x}", c) : out += c;
  }
  return out + "\"";
}

std::string list_of(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(yaml_text(text));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::vector<std::string> values_of(const Axis& axis, size_t column) {
  std::vector<std::string> values;
  for (const auto& point : axis.points) values.push_back(point[column].text);
  return values;
}

bool varies(const std::vector<std::string>& values) {
  return std::any_of(values.begin(), values.end(), [&](const std::string& value) { return value != values.front(); });
}

bool are_numbers(const std::vector<std::string>& values) {
  return std::all_of(values.begin(), values.end(), [](const std::string& value) { return parse_number(value); });
}

// Points that grow by factors rather than by steps.
bool is_geometric(const std::vector<std::string>& values) {
  std::vector<double> numbers;
  for (const std::string& value : values) numbers.push_back(*parse_number(value));
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  return *low > 0 && *high >= 8 * *low;
}

// How the cases of a spec are laid out.
struct Layout {
  std::vector<std::string> rows{};     // of tables; the series of plots
  std::vector<std::string> columns{};  // of tables
  std::string x = "data";              // of plots
  bool curve = false, log = false;
  std::vector<std::string> facet{};  // of plots
};

// Each case a curve over its rows' x: cases of one policy side by side, those of one value of the first axis of several
// in one plot. The texts of all entries of the data make one case.
Layout layout_of_curves(const Spec& spec) {
  Layout layout{.columns = {"x"}, .x = "x", .curve = true};
  if (spec.models.size() > 1) layout.rows.emplace_back("model");
  layout.rows.emplace_back("policy");
  for (const Axis& axis : spec.axes) {
    for (size_t c = 0; c < axis.columns.size(); ++c) {
      if (!varies(values_of(axis, c))) continue;
      layout.rows.push_back(axis.columns[c]);
      layout.facet.push_back(axis.columns[c]);
      break;
    }
  }
  if (!layout.facet.empty()) layout.facet.erase(layout.facet.begin());
  return layout;
}

Layout layout_of(const Spec& spec) {
  Layout layout;
  if (spec.models.size() > 1) layout.rows.emplace_back("model");
  layout.rows.emplace_back("policy");
  if (spec.data.size() > 1) layout.columns.emplace_back("data");
  std::vector<std::string> axes;  // one column for each axis of several points
  for (const Axis& axis : spec.axes) {
    std::optional<std::string> leading;
    for (size_t c = 0; c < axis.columns.size(); ++c) {
      const std::vector<std::string> values = values_of(axis, c);
      if (!varies(values)) continue;
      if (axis.columns[c] == kAllocation) {
        layout.rows.emplace_back(kAllocation);
        continue;
      }
      layout.columns.push_back(axis.columns[c]);
      if (!layout.curve && are_numbers(values)) {
        layout.x = axis.columns[c];
        layout.curve = true;
        layout.log = is_geometric(values);
      }
      if (!leading || layout.x == axis.columns[c]) leading = axis.columns[c];
    }
    if (leading) axes.push_back(*leading);
  }
  if (layout.curve && spec.data.size() > 1) layout.facet.emplace_back("data");
  for (const std::string& axis : axes) {
    if (axis != layout.x) layout.facet.push_back(axis);
  }
  if (layout.columns.empty()) layout.columns.emplace_back("data");
  return layout;
}

// Labels of what cannot be best: the full cache, and oracles. A policy that cannot be made is refused later.
std::vector<std::string> unranked(const Spec& spec) {
  std::vector<std::string> labels;
  for (const Component& policy : spec.policies) {
    try {
      const Policy sample = make_policy(policy.name, policy.options, policy.slots);
      if (!sample.scorer || sample.oracle()) labels.push_back(policy.label);
    } catch (const UserError&) {
      continue;
    }
  }
  return labels;
}

std::vector<Headline> headlines_of(const Spec& spec) {
  std::vector<Headline> headlines = spec.protocol->headlines;
  try {
    if (spec.protocol->headlines_of) headlines = spec.protocol->headlines_of(spec);
  } catch (const UserError&) {  // refused later, with its place
    return {};
  }
  for (const Component& component : spec.metrics) {
    try {
      const std::vector<Headline> more = make_metric(component.name, component.options)->headlines();
      headlines.insert(headlines.end(), more.begin(), more.end());
    } catch (const UserError&) {  // refused later, with its place
      continue;
    }
  }
  const std::vector<std::string> axes = spec.axis_columns();
  std::erase_if(headlines, [&](const Headline& headline) {
    return !headline.axis.empty() && std::find(axes.begin(), axes.end(), headline.axis) == axes.end();
  });
  return headlines;
}

std::string measure_of(const Headline& headline) {
  std::string text = headline.over.empty() ? fmt::format("    metric: {}\n", headline.metric)
                                           : fmt::format("    ratio: [{}, {}]\n", headline.metric, headline.over);
  if (!headline.unit.empty()) text += fmt::format("    unit: {}\n", yaml_text(headline.unit));
  return text;
}

// Entries of the data whose texts have answers. A task that is not there is refused later.
std::vector<std::string> answering(const Spec& spec) {
  std::vector<std::string> names;
  for (const DataSpec& data : spec.data) {
    if (data.kind == DataKind::kOwn) names.push_back(data.name);
    if (data.kind != DataKind::kTask) continue;
    for (const Task* task : all_tasks()) {
      if (task->name == data.source.text && task->has_answers) names.push_back(data.name);
    }
  }
  return names;
}

// A headline, and the entries of the data that it is about; empty: all.
struct Shown {
  Headline headline;
  std::vector<std::string> data{};
};

std::vector<Shown> shown_of(const Spec& spec) {
  const std::vector<std::string> with_answers = answering(spec);
  std::vector<Shown> all;
  for (Headline& headline : headlines_of(spec)) {
    if (headline.of_answers && with_answers.empty()) continue;
    const bool some = headline.of_answers && with_answers.size() < spec.data.size();
    all.push_back({std::move(headline), some ? with_answers : std::vector<std::string>{}});
  }
  return all;
}

std::string where_of(const Shown& shown) {
  return shown.data.empty() ? "" : fmt::format("    where: {{data: {}}}\n", list_of(shown.data));
}

// The points of a curve that a table shows, and which have no interval.
std::string points_of(const Headline& headline) {
  if (headline.curve_at.empty()) return "";
  return fmt::format("    where: {{x: [{}]}}\n    interval: no\n", fmt::join(headline.curve_at, ", "));
}

std::string table_of(const Shown& shown, const Layout& layout, const std::vector<std::string>& not_best) {
  const Headline& headline = shown.headline;
  std::string text = fmt::format("  - name: {}\n    title: {}\n{}    rows: {}\n    columns: {}\n{}", headline.name,
                                 yaml_text(headline.title), measure_of(headline), list_of(layout.rows),
                                 list_of(layout.columns), where_of(shown));
  text += points_of(headline);
  if (headline.better.empty()) return text;
  text += fmt::format("    better: {}\n", headline.better);
  if (!not_best.empty()) text += fmt::format("    unranked: {}\n", list_of(not_best));
  return text;
}

std::string plot_of(const Shown& shown, const Layout& layout) {
  const Headline& headline = shown.headline;
  std::vector<std::string> series = layout.rows;
  std::erase_if(series, [&](const std::string& column) {
    return std::find(layout.facet.begin(), layout.facet.end(), column) != layout.facet.end();
  });
  std::string text = fmt::format("  - name: {}-plot\n    kind: {}\n    title: {}\n{}    x: {}\n    series: {}\n{}",
                                 headline.name, layout.curve ? "curve" : "bars", yaml_text(headline.title),
                                 measure_of(headline), yaml_text(layout.x), list_of(series), where_of(shown));
  if (!layout.facet.empty()) text += fmt::format("    facet: {}\n", list_of(layout.facet));
  if (layout.log) text += "    x_scale: log2\n";
  return text;
}

// The report of a file of timings.
constexpr const char* kBenchmarkReport =
    "tables:\n"
    "  - name: kernels\n"
    "    title: Time and share of the bound\n"
    "    metric: [median_time, bound_share]\n"
    "    rows: [kernel, shape, by]\n"
    "    columns: [metric]\n"
    "    interval: no\n";

}  // namespace

std::string default_report(const Spec& spec) {
  if (!spec.benchmarks.text.empty()) return kBenchmarkReport;
  const std::vector<Shown> headlines = shown_of(spec);
  if (headlines.empty()) return {};
  const std::vector<std::string> not_best = unranked(spec);
  std::string tables = "tables:\n", plots = "plots:\n";
  for (const Shown& shown : headlines) {
    const Layout layout = shown.headline.curve_at.empty() ? layout_of(spec) : layout_of_curves(spec);
    tables += table_of(shown, layout, not_best);
    plots += plot_of(shown, layout);
  }
  return tables + plots;
}

}  // namespace kv
