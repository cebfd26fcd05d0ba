#include "harness/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/clusters.h"
#include "harness/report/cells.h"
#include "harness/report/escape.h"
#include "harness/report/table.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/error.h"

namespace kv {
namespace {

bool is_timing(const Row& row) { return row.unit == "s" || kv::is_timing(row.metric); }

std::set<std::string> axis_values(const RowTable& table, const std::string& axis) {
  const auto read = column_reader(table, axis);
  std::set<std::string> values;
  for (const Row& row : table.rows) values.insert(read(row));
  return values;
}

bool has_axis(const RowTable& table, const std::string& axis) {
  return std::find(table.axes.begin(), table.axes.end(), axis) != table.axes.end();
}

void check_lone_axes(const RowTable& table, const RowTable& other, std::string_view side) {
  for (const std::string& axis : table.axes) {
    if (has_axis(other, axis)) continue;
    const std::size_t count = axis_values(table, axis).size();
    if (count > 1) {
      throw UserError(
          fmt::format("compare: only folder {} has the axis '{}', with {} values, expected it in both or with one "
                      "value",
                      side, axis, count));
    }
  }
}

struct Side {
  const RowTable& table;
  std::vector<std::function<std::string(const Row&)>> groups;   // metric, policy, data, shared axes
  std::vector<std::function<std::string(const Row&)>> details;  // layer, head, x
  bool with_model = false;

  Key group(const Row& row) const {
    Key key;
    for (const auto& read : groups) key.push_back(read(row));
    return key;
  }
  Key sample(const Row& row) const {
    return {with_model ? row.model : "", row.sample ? std::to_string(*row.sample) : "",
            row.seed ? std::to_string(*row.seed) : ""};
  }
  Key detail(const Row& row) const {
    Key key = sample(row);
    for (const auto& read : details) key.push_back(read(row));
    return key;
  }
};

Side make_side(const RowTable& table, const std::vector<std::string>& axes, bool with_model) {
  Side side{.table = table, .groups = {}, .details = {}, .with_model = with_model};
  for (const char* column : {"metric", "policy", "data"}) side.groups.push_back(column_reader(table, column));
  for (const std::string& axis : axes) {
    // 0.5 and 0.50 are one value of an axis.
    side.groups.push_back([read = column_reader(table, axis)](const Row& row) {
      std::string value = read(row);
      const auto number = parse_number(value);
      return number ? shortest(*number) : value;
    });
  }
  for (const char* column : {"layer", "head", "x"}) side.details.push_back(column_reader(table, column));
  return side;
}

bool compared(const Row& row, const CompareOptions& options) {
  return row.value && row.skipped.empty() && (options.timings || !is_timing(row));
}

struct Sums {
  double a = 0, b = 0;
  int pairs = 0;
  std::string document{};
};

Verdict judge(const Comparison& row, const CompareOptions& options) {
  const double slack = options.tolerance * std::abs(row.mean_a);
  if (!row.difference.interval) return std::abs(row.difference.value) <= slack ? Verdict::kSame : Verdict::kAmbiguous;
  const auto [low, high] = *row.difference.interval;
  if (low >= -slack && high <= slack) return Verdict::kSame;
  if (low <= 0 && high >= 0) return Verdict::kAmbiguous;
  const auto given = options.better.find(row.metric);
  const Better better = given == options.better.end() ? better_direction(row.metric) : given->second;
  if (better == Better::kUnknown) return Verdict::kDiffers;
  return (better == Better::kLower) == (high < 0) ? Verdict::kBetter : Verdict::kWorse;
}

std::size_t distinct_models(const RowTable& table) {
  std::set<std::string> models;
  for (const Row& row : table.rows) models.insert(row.model);
  return models.size();
}

std::vector<std::string> shared_axes(const RowTable& a, const RowTable& b) {
  std::vector<std::string> axes;
  for (const std::string& axis : a.axes) {
    if (has_axis(b, axis)) axes.push_back(axis);
  }
  return axes;
}

// B's rows by group and detail, each handed out once, in the order of appearance.
class Partners {
 public:
  Partners(const Side& side, const CompareOptions& options) {
    for (auto row = side.table.rows.rbegin(); row != side.table.rows.rend(); ++row) {
      if (!compared(*row, options)) continue;
      rows_[side.group(*row)][side.detail(*row)].push_back(&*row);
      ++left_;
    }
  }

  const Row* take(const Key& group, const Key& detail) {
    const auto candidates = rows_.find(group);
    if (candidates == rows_.end()) return nullptr;
    const auto partner = candidates->second.find(detail);
    if (partner == candidates->second.end() || partner->second.empty()) return nullptr;
    const Row* row = partner->second.back();
    partner->second.pop_back();
    --left_;
    return row;
  }
  std::size_t left() const { return left_; }

 private:
  std::map<Key, std::map<Key, std::vector<const Row*>>> rows_;  // in reverse order of appearance
  std::size_t left_ = 0;
};

// What pairs of one group have gathered.
struct Group {
  Key key;
  std::string unit;
  std::map<Key, Sums> samples;
};

Comparison comparison_of(const Group& group, const CompareOptions& options) {
  std::vector<double> values_a, values_b;
  Clusters clusters;
  for (const auto& [sample, sums] : group.samples) {
    clusters.add(sums.document);
    values_a.push_back(sums.a / sums.pairs);
    values_b.push_back(sums.b / sums.pairs);
  }
  Comparison row;
  row.metric = group.key[0];
  row.policy = group.key[1];
  row.data = group.key[2];
  row.axes.assign(group.key.begin() + 3, group.key.end());
  row.unit = group.unit;
  for (const double value : values_a) row.mean_a += value / static_cast<double>(values_a.size());
  for (const double value : values_b) row.mean_b += value / static_cast<double>(values_b.size());
  row.difference = bootstrap_difference(values_a, values_b, {.clusters = clusters.numbers()});
  if (row.difference.clusters < kFewestForAnInterval) row.difference.interval.reset();
  row.verdict = judge(row, options);
  return row;
}

}  // namespace

CompareResult compare_rows(const RowTable& a, const RowTable& b, const CompareOptions& options) {
  check_lone_axes(a, b, "A");
  check_lone_axes(b, a, "B");
  CompareResult result;
  result.axes = shared_axes(a, b);
  const bool with_model = distinct_models(a) > 1 || distinct_models(b) > 1;
  const Side left = make_side(a, result.axes, with_model);
  Partners partners(make_side(b, result.axes, with_model), options);
  const Documents documents(a);
  std::vector<Group> groups;
  std::map<Key, std::size_t> index;
  for (const Row& row : a.rows) {
    if (!compared(row, options)) continue;
    const Key key = left.group(row);
    const Row* partner = partners.take(key, left.detail(row));
    if (!partner) {
      ++result.only_a;
      continue;
    }
    ++result.pairs;
    const auto [place, added] = index.try_emplace(key, groups.size());
    if (added) groups.push_back({.key = key, .unit = {}, .samples = {}});
    Group& group = groups[place->second];
    group.unit = row.unit;
    Sums& sums = group.samples[left.sample(row)];
    if (sums.pairs == 0) sums.document = documents.of(row);
    sums.a += *row.value;
    sums.b += *partner->value;
    ++sums.pairs;
  }
  result.only_b = partners.left();
  for (const Group& group : groups) result.rows.push_back(comparison_of(group, options));
  return result;
}

CompareResult compare(const std::filesystem::path& dir_a, const std::filesystem::path& dir_b,
                      const CompareOptions& options) {
  return compare_rows(read_rows(dir_a / "rows.csv"), read_rows(dir_b / "rows.csv"), options);
}

Better better_direction(const std::string& metric) {
  for (const char* name : {"recall", "cosine", "accuracy", "throughput"}) {
    if (metric.find(name) != metric.npos) return Better::kHigher;
  }
  for (const char* name : {"loss", "nll", "perplexity", "gap", "dilution", "bytes", "evicted_mass"}) {
    if (metric.find(name) != metric.npos) return Better::kLower;
  }
  return metric.ends_with("_time") ? Better::kLower : Better::kUnknown;
}

std::string to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kBetter:
      return "better";
    case Verdict::kWorse:
      return "worse";
    case Verdict::kDiffers:
      return "differs";
    case Verdict::kAmbiguous:
      return "ambiguous";
  }
  return "";
}

std::string to_markdown(const CompareResult& result) {
  TableView view{.name = "compare", .title = "B against A", .header = {"metric", "policy", "data"}};
  view.header.insert(view.header.end(), result.axes.begin(), result.axes.end());
  for (const char* name : {"A", "B", "B - A", "n", "verdict"}) view.header.emplace_back(name);
  using Kind = TableCell::Kind;
  std::map<Verdict, int> counts;
  for (const Comparison& row : result.rows) {
    ++counts[row.verdict];
    std::vector<TableCell> cells;
    const auto add = [&cells](Kind kind, const std::string& text, const std::string& interval = "") {
      cells.push_back({.kind = kind, .text = text, .interval = interval});
    };
    add(Kind::kLabel, row.unit.empty() ? row.metric : row.metric + " (" + row.unit + ")");
    add(Kind::kLabel, row.policy);
    add(Kind::kLabel, row.data);
    for (const std::string& axis : row.axes) add(Kind::kNumber, axis);
    add(Kind::kNumber, format_number(row.mean_a, 4));
    add(Kind::kNumber, format_number(row.mean_b, 4));
    const auto& interval = row.difference.interval;
    add(Kind::kNumber, format_number(row.difference.value, 4),
        interval ? "[" + format_number(interval->low, 4) + ", " + format_number(interval->high, 4) + "]" : "");
    add(Kind::kNumber, std::to_string(row.difference.samples));
    add(Kind::kLabel, to_string(row.verdict));
    view.rows.push_back(std::move(cells));
  }
  if (result.rows.empty()) view.notes.push_back("No row of one folder has a partner in the other.");
  std::string summary;
  for (const auto& [verdict, count] : counts)
    summary += fmt::format("{}{} {}", summary.empty() ? "" : ", ", count, to_string(verdict));
  if (!summary.empty())
    view.notes.push_back(
        summary + fmt::format(". Means over paired samples, 95 % paired bootstrap interval; none below {} samples.",
                              kFewestForAnInterval));
  view.notes.push_back(
      fmt::format("{} rows paired, {} only in A, {} only in B.", result.pairs, result.only_a, result.only_b));
  return to_markdown(view);
}

std::string to_csv(const CompareResult& result) {
  std::string out = "metric,policy,data";
  for (const std::string& axis : result.axes) out += "," + quote_csv(axis);
  out += ",unit,mean_a,mean_b,difference,low,high,samples,verdict\n";
  for (const Comparison& row : result.rows) {
    out += quote_csv(row.metric) + "," + quote_csv(row.policy) + "," + quote_csv(row.data);
    for (const std::string& axis : row.axes) out += "," + quote_csv(axis);
    const auto& interval = row.difference.interval;
    out += fmt::format(",{},{},{},{},{},{},{},{}\n", quote_csv(row.unit), shortest(row.mean_a), shortest(row.mean_b),
                       shortest(row.difference.value), interval ? shortest(interval->low) : "",
                       interval ? shortest(interval->high) : "", row.difference.samples, to_string(row.verdict));
  }
  return out;
}

}  // namespace kv
