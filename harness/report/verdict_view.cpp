#include <fmt/format.h>
#include <fmt/ranges.h>

#include "harness/report/verdict.h"

namespace kv {
namespace {

using Kind = TableCell::Kind;

constexpr const char* kNone = "\xe2\x80\x93";  // en dash

void add_rows(const std::vector<CheckResult>& results, const char* decides, TableView& view) {
  for (const CheckResult& result : results) {
    const auto add = [&](const std::string& label, TableCell number, const std::string& holds) {
      std::vector<TableCell> row;
      if (*decides) row.push_back({.kind = Kind::kLabel, .text = decides});
      row.push_back({.kind = Kind::kLabel, .text = result.subject});
      row.push_back({.kind = Kind::kText, .text = label});
      row.push_back(std::move(number));
      if (*decides) row.push_back({.kind = Kind::kText, .text = bound_text(result.check)});
      if (*decides) row.push_back({.kind = Kind::kText, .text = holds});
      view.rows.push_back(std::move(row));
    };
    const TableCell none{.kind = Kind::kEmpty, .text = kNone};
    if (!*decides && result.check.cell.empty() && result.check.against == Against::kNothing) {
      add("the whole table below", none, "");
      continue;
    }
    if (result.cells.empty()) add("", none, *decides ? "no number" : "");
    for (const CheckedCell& cell : result.cells) {
      if (!cell.value) {
        add(cell.label, none, "no number");
        continue;
      }
      add(cell.label,
          {.kind = Kind::kNumber,
           .text = format_number(*cell.value, result.digits),
           .interval = interval_text(cell, result.digits)},
          result.lacks_interval(cell) ? "no interval"
          : cell.holds                ? "yes"
                                      : "no");
    }
  }
}

std::string fixed_text(const VerdictPlan& verdict) {
  return fmt::format("Fixed {}, {}{}{}.", verdict.beforehand ? "beforehand" : "afterwards, when the rows were known",
                     verdict.since, verdict.commit.empty() ? "" : ", commit ", verdict.commit);
}

}  // namespace

std::string bound_text(const VerdictCheck& check) {
  std::string text;
  if (check.within) {
    const auto [low, high] = *check.within;
    text = low == high ? shortest(low) : fmt::format("{} to {}", shortest(low), shortest(high));
  }
  if (check.above) text += fmt::format("> {}", shortest(*check.above));
  if (check.below) text += fmt::format("{}< {}", text.empty() ? "" : ", ", shortest(*check.below));
  if (check.whole_interval) text += ", interval";
  if (check.in_some) text += ", once";
  return text;
}

std::string interval_text(const CheckedCell& cell, int digits) {
  if (cell.unpaired) return "(not paired)";
  if (!cell.interval || cell.interval->low == cell.interval->high) return "";
  return fmt::format("[{}, {}]", format_number(cell.interval->low, digits), format_number(cell.interval->high, digits));
}

TableView verdict_view(const VerdictPlan& verdict, const VerdictResult& result, int number) {
  TableView view{.name = fmt::format("verdict:{}", number),
                 .title = fmt::format("{}: {}", fmt::join(verdict.items, ", "), name_of(result.outcome))};
  if (verdict.judged) {
    view.header = {"number", "of", "is"};
    add_rows(result.numbers, "", view);
  } else {
    view.header = {"decides", "number", "of", "is", "must be", "holds"};
    add_rows(result.testable, "testable", view);
    add_rows(result.reproduced, "reproduced", view);
    if (result.outcome != Outcome::kReproduced) add_rows(result.partly, "partly", view);
  }
  view.notes.push_back("Criterion: " + verdict.criterion);
  view.notes.push_back(fixed_text(verdict));
  if (verdict.judged) view.notes.emplace_back("A judgement: the numbers do not decide it by themselves.");
  if (!verdict.note.empty()) view.notes.push_back(verdict.note);
  return view;
}

}  // namespace kv
