#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/rows.h"
#include "harness/spec/report_plan.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

using Values = VerdictCheck::Values;

std::vector<std::string> columns_of(const TablePlan& table) {
  std::vector<std::string> columns = table.rows;
  columns.insert(columns.end(), table.columns.begin(), table.columns.end());
  return columns;
}

const TablePlan* find_table(const MapReader& map, const std::string& name, const std::vector<TablePlan>& tables) {
  std::vector<std::string> names;
  for (const TablePlan& table : tables) {
    if (table.name == name) return &table;
    names.push_back(table.name);
  }
  if (!map.has("table")) return nullptr;  // of a blank map
  map.fail("table",
           fmt::format("expected one of the spec's tables{} ({})", did_you_mean(name, names), fmt::join(names, ", ")));
}

bool across_metrics(const VerdictCheck& check) {
  return std::any_of(check.partner.begin(), check.partner.end(),
                     [](const auto& entry) { return entry.first == "metric"; });
}

// {column: value or [values]}, of the table's rows and columns.
Values read_values(const MapReader& map, const std::string& key, const YAML::Node& node, const TablePlan* table) {
  Values values;
  if (!node.IsDefined()) return values;
  if (!node.IsMap()) map.fail(key, "expected a map of column: value");
  const std::vector<std::string> known = table ? columns_of(*table) : std::vector<std::string>{};
  for (const auto& entry : node) {
    const std::string& column = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), column) == known.end()) {
      map.document().fail(entry.first, fmt::format("{}: {} names '{}'{}, which is no row or column of table '{}' ({})",
                                                   map.owner(), key, shown(column), did_you_mean(column, known),
                                                   table->name, fmt::join(known, ", ")));
    }
    values.emplace_back(column, map.scalars(entry.second, column));
  }
  return values;
}

// `less` and `over`: a map of the columns whose values are others, or the word paper.
void read_partner(const MapReader& map, const std::string& key, const YAML::Node& node, const TablePlan* table,
                  VerdictCheck& check) {
  if (!node.IsDefined()) return;
  if (check.against != Against::kNothing) map.fail(key, "expected one of 'less' and 'over'");
  check.relative = key == "over";
  if (node.IsScalar() && node.Scalar() == "paper") {
    check.against = Against::kPaper;
    if (table->paper.empty()) map.fail(key, fmt::format("table '{}' has no paper block", table->name));
    return;
  }
  if (!node.IsMap()) map.fail(key, "expected {column: value}, or the word paper");
  check.against = Against::kCell;
  check.partner = read_values(map, key, node, table);
  for (const auto& [column, accepted] : check.partner) {
    if (accepted.size() != 1) map.fail(key, fmt::format("expected one value of '{}'", column));
  }
  if (check.partner.empty()) map.fail(key, "expected at least one column");
  if (table->paired) map.fail(key, fmt::format("table '{}' is of differences already", table->name));
  if (check.whole_interval && across_metrics(check)) map.fail("by", "expected number: metrics are not paired");
}

// [low, high], which may be one value.
std::optional<std::array<double, 2>> read_within(MapReader& map) {
  const std::vector<std::string> ends = map.list("within", "the bound, [low, high]; both ends keep it");
  if (ends.empty()) return std::nullopt;
  const auto low = parse_number(ends[0]);
  const auto high = ends.size() == 2 ? parse_number(ends[1]) : std::nullopt;
  if (!low || !high || *low > *high) map.fail("within", "expected [low, high] with low <= high");
  return {{*low, *high}};
}

enum class Bounds { kRequired, kNone };

void check_bounds(const MapReader& map, const VerdictCheck& check, Bounds bounds) {
  const bool bounded = check.below || check.above || check.within;
  if (bounds == Bounds::kNone && bounded) map.fail_here("expected no bound: the verdict is a judgement");
  if (bounds == Bounds::kRequired && !bounded) map.fail_here("expected a bound: 'below', 'above' or 'within'");
  if (check.within && (check.below || check.above)) map.fail("within", "expected no 'below' or 'above' beside it");
  if (check.below && check.above && *check.below <= *check.above) map.fail("below", "expected more than 'above'");
}

void check_table(const MapReader& map, const VerdictCheck& check, const TablePlan& table, Bounds bounds) {
  if (table.kind != TableKind::kListing) return;
  if (bounds == Bounds::kRequired) map.fail("table", "expected a table of cells, not a listing");
  if (!check.cell.empty() || check.against != Against::kNothing)
    map.fail_here("expected 'table' alone: it is a listing");
}

VerdictCheck read_check(MapReader map, const std::vector<TablePlan>& tables, Bounds bounds,
                        std::vector<DeclaredParam>* declared = nullptr) {
  VerdictCheck check;
  check.table = map.required_text("table", "a table of this spec, whose numbers decide");
  const TablePlan* table = find_table(map, check.table, tables);
  const YAML::Node cell = map.find("cell", "{column: value or [values]}",
                                   "which of its cells, by its rows and columns; every one that is left counts");
  const YAML::Node less =
      map.find("less", "{column: value} | paper", "instead of the number: less that of the cell with these values");
  const YAML::Node over =
      map.find("over", "{column: value} | paper", "instead: over that of the cell with these values");
  check.below = map.number("below", "the bound");
  check.above = map.number("above", "the bound");
  check.within = read_within(map);
  check.whole_interval = map.word<bool>("by", false, {{"number", false}, {"interval", true}},
                                        "what has to keep the bound: the number, or its whole 95 % interval");
  check.in_some = map.word<bool>("in", false, {{"every", false}, {"some", true}}, "which cells have to keep it");
  if (declared) *declared = map.declared();
  if (!table) return check;
  map.finish();
  check.cell = read_values(map, "cell", cell, table);
  read_partner(map, "less", less, table, check);
  read_partner(map, "over", over, table, check);
  check_bounds(map, check, bounds);
  check_table(map, check, *table, bounds);
  return check;
}

std::vector<VerdictCheck> read_checks(MapReader& map, const std::string& key, std::string_view help,
                                      const std::vector<TablePlan>& tables, Bounds bounds) {
  const YAML::Node list = map.find(key, "list", help);
  std::vector<VerdictCheck> checks;
  if (!list.IsDefined()) return checks;
  if (!list.IsSequence() || list.size() == 0) map.fail(key, "expected a list of {table, cell, ...}");
  for (const YAML::Node& node : list) {
    checks.push_back(
        read_check(MapReader(map.document(), node, fmt::format("{}: {}", map.owner(), key)), tables, bounds));
  }
  return checks;
}

bool is_date(const std::string& text) {
  constexpr std::string_view kForm = "dddd-dd-dd";
  return text.size() == kForm.size() && std::equal(text.begin(), text.end(), kForm.begin(), [](char c, char form) {
           return form == 'd' ? c >= '0' && c <= '9' : c == form;
         });
}

bool is_commit(const std::string& text) {
  return text.empty() ||
         (text.size() >= 7 && text.size() <= 40 && text.find_first_not_of("0123456789abcdef") == text.npos);
}

VerdictPlan read_keys(MapReader& map, const std::vector<TablePlan>& tables) {
  VerdictPlan plan;
  plan.where = map.where();
  plan.items = map.list("item", "what it is about, required: '001 Table 2', or several");
  if (!plan.items.empty()) map.rename(fmt::format("verdict '{}'", plan.items.front()));
  plan.criterion = map.required_text("criterion", "in words, what has to hold");
  plan.beforehand = map.required_word<bool>("fixed", {{"beforehand", true}, {"afterwards", false}},
                                            "beforehand: the criterion was committed before the first rows");
  plan.since = map.required_text("since", "the day on which the criterion was committed, YYYY-MM-DD");
  plan.commit = map.text("commit", "", "the commit that says so");
  plan.testable =
      read_checks(map, "testable_if", "checks; where one fails the verdict is untestable", tables, Bounds::kRequired);
  plan.reproduced =
      read_checks(map, "reproduced_if", "checks; where all hold it is reproduced", tables, Bounds::kRequired);
  plan.partly = read_checks(map, "partly_if",
                            "checks; else, where all of these hold, it is partly reproduced, and where "
                            "one fails it differs",
                            tables, Bounds::kRequired);
  plan.judged = map.word<std::optional<Outcome>>("judged", std::nullopt,
                                                 {{"reproduced", Outcome::kReproduced},
                                                  {"partly", Outcome::kPartly},
                                                  {"differs", Outcome::kDiffers},
                                                  {"untestable", Outcome::kUntestable}},
                                                 "instead of checks: a judgement, printed with 'numbers'");
  plan.numbers =
      read_checks(map, "numbers", "of a judgement: the cells it rests on, without bounds", tables, Bounds::kNone);
  plan.note = map.text("note", "", "what else a reader has to know");
  return plan;
}

void check_verdict(const MapReader& map, const VerdictPlan& plan) {
  if (plan.items.empty()) map.fail_here("lacks the key 'item'");
  if (!is_date(plan.since)) map.fail("since", "expected a day, YYYY-MM-DD");
  if (!is_commit(plan.commit)) map.fail("commit", "expected 7 to 40 hexadecimal digits");
  const bool computed = !plan.reproduced.empty() || !plan.partly.empty();
  if (computed == plan.judged.has_value()) map.fail_here("expected either 'reproduced_if' or 'partly_if', or 'judged'");
  if (plan.judged && !plan.testable.empty()) map.fail("testable_if", "expected no such key beside 'judged'");
  if (plan.judged.has_value() == plan.numbers.empty()) {
    map.fail_here(plan.judged ? "'judged' lacks 'numbers': what it rests on"
                              : "expected 'numbers' beside 'judged' only");
  }
}

}  // namespace

VerdictPlan read_verdict(MapReader map, const std::vector<TablePlan>& tables) {
  VerdictPlan plan = read_keys(map, tables);
  map.finish();
  check_verdict(map, plan);
  return plan;
}

std::vector<KeySection> verdict_keys() {
  MapReader verdict = MapReader::blank();
  read_keys(verdict, {});
  std::vector<DeclaredParam> check;
  read_check(MapReader::blank(), {}, Bounds::kNone, &check);
  return {{"an entry of 'verdict'", verdict.declared()},
          {"an entry of 'testable_if', 'reproduced_if', 'partly_if' and 'numbers'", check}};
}

}  // namespace kv
