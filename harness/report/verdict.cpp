#include "harness/report/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/report/cells.h"
#include "harness/report/pile.h"
#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kMinus = "\xe2\x88\x92";
constexpr int kQuotientDigits = 3;

const TablePlan& table_of(const VerdictCheck& check, const ReportPlan& plan) {
  const auto found = std::find_if(plan.tables.begin(), plan.tables.end(),
                                  [&](const TablePlan& table) { return table.name == check.table; });
  KV_CHECK(found != plan.tables.end());  // the reader has seen to it
  return *found;
}

const std::vector<std::string>* values_in(const VerdictCheck::Values& values, const std::string& column) {
  const auto found =
      std::find_if(values.begin(), values.end(), [&](const auto& entry) { return entry.first == column; });
  return found == values.end() ? nullptr : &found->second;
}

bool across_metrics(const VerdictCheck& check) { return values_in(check.partner, "metric") != nullptr; }

// The numbers of one check.
class Checker {
 public:
  Checker(const VerdictCheck& check, const ReportPlan& plan, const RowTable& rows)
      : check_(check), plan_(plan), table_(table_of(check, plan)), rows_(rows), columns_(table_.rows) {
    columns_.insert(columns_.end(), table_.columns.begin(), table_.columns.end());
  }

  CheckResult go() const {
    CheckResult result{
        .check = check_, .subject = subject(), .digits = check_.relative ? kQuotientDigits : table_.digits};
    if (table_.kind == TableKind::kListing) return result;
    const Cells all = collect(rows_, question(check_.against != Against::kCell));
    std::vector<Key> keys;
    std::copy_if(all.keys.begin(), all.keys.end(), std::back_inserter(keys),
                 [&](const Key& key) { return picks(key); });
    switch (check_.against) {
      case Against::kNothing:
        for (const Key& key : keys) result.cells.push_back(cell(key, all.cells.at(key).estimate));
        break;
      case Against::kPaper:
        for (const Key& key : keys) add_against_paper(key, all.cells.at(key).estimate, result);
        break;
      case Against::kCell:
        add_paired(keys, all, result);
        break;
    }
    return result;
  }

 private:
  bool wants_intervals() const { return check_.whole_interval || table_.interval != IntervalStyle::kNone; }

  Question question(bool intervals) const {
    return {.measure = table_.measure,
            .where = table_.where,
            .columns = columns_,
            .intervals = intervals && wants_intervals(),
            .at = table_.at,
            .paired = table_.paired};
  }

  bool picks(const Key& key) const {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::vector<std::string>* accepted = values_in(check_.cell, columns_[i]);
      if (accepted && std::none_of(accepted->begin(), accepted->end(),
                                   [&](const std::string& value) { return same_value(value, key[i]); })) {
        return false;
      }
    }
    return true;
  }

  // The other cell; none where no one cell fits, or it is the same.
  const Key* partner_of(const Key& key, const Cells& all) const {
    Key wanted = key;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (const auto* value = values_in(check_.partner, columns_[i])) wanted[i] = value->front();
    }
    if (match(wanted, key) == KeyMatch::kExact) return nullptr;
    BestFit<Key> best;
    for (const Key& other : all.keys) best.offer(match(wanted, other), other);
    return best.found();
  }

  void add_paired(const std::vector<Key>& keys, const Cells& all, CheckResult& result) const {
    Question differences = question(true);
    differences.relative = check_.relative;
    for (const Key& key : keys) {
      if (const Key* partner = partner_of(key, all)) differences.partners[key] = *partner;
    }
    if (differences.partners.empty()) return;
    const Cells cells = across_metrics(check_) ? Cells{} : collect(rows_, differences);
    for (const Key& key : keys) {
      const auto partner = differences.partners.find(key);
      if (partner == differences.partners.end()) continue;
      const auto paired = cells.cells.find(key);
      if (paired != cells.cells.end() && paired->second.estimate) {
        const Estimate& number = *paired->second.estimate;
        const bool of_negative = all.cells.at(partner->second).estimate->value < 0;
        result.cells.push_back(cell(key, check_.relative ? quotient(number, of_negative) : number));
      } else {
        result.cells.push_back(cell(key, compare(all.cells.at(key).estimate, all.cells.at(partner->second).estimate)));
        result.cells.back().unpaired = true;
      }
    }
  }

  // Of two numbers that are not paired.
  std::optional<Estimate> compare(const std::optional<Estimate>& number, const std::optional<Estimate>& other) const {
    if (!number || !other) return std::nullopt;
    const double value = check_.relative ? number->value / other->value : number->value - other->value;
    return std::isfinite(value) ? std::optional(Estimate{.value = value}) : std::nullopt;
  }

  void add_against_paper(const Key& key, std::optional<Estimate> number, CheckResult& result) const {
    const PaperValue* printed = paper_of(key);
    if (!printed) return;
    const auto compare = [&](double value) {
      return check_.relative ? value / printed->value : value - printed->value;
    };
    if (check_.relative && printed->value == 0) number.reset();
    if (number) {
      number->value = compare(number->value);
      if (number->interval) {
        const auto [low, high] = std::minmax({compare(number->interval->low), compare(number->interval->high)});
        number->interval = {low, high};
      }
    }
    result.cells.push_back(cell(key, number));
  }

  const PaperValue* paper_of(const Key& key) const {
    for (const PaperValue& value : plan_.paper.at(table_.paper).values) {
      const bool same = std::all_of(value.keys.begin(), value.keys.end(), [&](const auto& entry) {
        const auto column = std::find(columns_.begin(), columns_.end(), entry.first);
        if (column != columns_.end()) {
          return same_value(key[static_cast<size_t>(column - columns_.begin())], entry.second);
        }
        return admits(table_.where.at(entry.first), entry.second);  // the reader has seen to it
      });
      if (same) return &value;
    }
    return nullptr;
  }

  // From a difference in % of the size of what it is over.
  static Estimate quotient(Estimate percent, bool of_negative) {
    const auto over = [&](double value) { return of_negative ? 1 - value / 100 : 1 + value / 100; };
    percent.value = over(percent.value);
    if (percent.interval) {
      const auto [low, high] = std::minmax({over(percent.interval->low), over(percent.interval->high)});
      percent.interval = {low, high};
    }
    return percent;
  }

  bool keeps(double value) const {
    return (!check_.below || value < *check_.below) && (!check_.above || value > *check_.above) &&
           (!check_.within || (value >= check_.within->front() && value <= check_.within->back()));
  }

  CheckedCell cell(const Key& key, const std::optional<Estimate>& number) const {
    CheckedCell out{.label = label(key)};
    if (!number) return out;
    out.value = number->value;
    out.interval = number->interval;
    out.holds = keeps(number->value);
    if (check_.whole_interval) {
      out.holds = number->interval && keeps(number->interval->low) && keeps(number->interval->high);
    }
    return out;
  }

  std::string label(const Key& key) const {
    std::vector<std::string> free;
    Key values;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::vector<std::string>* accepted = values_in(check_.cell, columns_[i]);
      if ((accepted && accepted->size() == 1) || key[i].empty()) continue;
      free.push_back(columns_[i]);
      values.push_back(key[i]);
    }
    return label_of(table_.labels, free, values);
  }

  std::string label(const VerdictCheck::Values& values) const {
    std::vector<std::string> columns;
    Key texts;
    for (const auto& [column, accepted] : values) {
      if (accepted.size() != 1 || accepted.front().empty()) continue;
      columns.push_back(column);
      texts.push_back(accepted.front());
    }
    return label_of(table_.labels, columns, texts);
  }

  std::string subject() const {
    std::string text = label(check_.cell);
    if (check_.against != Against::kNothing) {
      const std::string other = check_.against == Against::kPaper ? "paper" : label(check_.partner);
      text = fmt::format("{} {} {}", text.empty() ? "each" : text, check_.relative ? "/" : kMinus, other);
    }
    return text.empty() ? table_.name : fmt::format("{} ({})", text, table_.name);
  }

  const VerdictCheck& check_;
  const ReportPlan& plan_;
  const TablePlan& table_;
  const RowTable& rows_;
  std::vector<std::string> columns_;
};

std::vector<CheckResult> run_checks(const std::vector<VerdictCheck>& checks, const ReportPlan& plan,
                                    const RowTable& rows) {
  std::vector<CheckResult> results;
  for (const VerdictCheck& check : checks) results.push_back(Checker(check, plan, rows).go());
  return results;
}

bool all_hold(const std::vector<CheckResult>& results) {
  return std::all_of(results.begin(), results.end(), [](const CheckResult& result) { return result.holds(); });
}

bool all_are_decided(const std::vector<CheckResult>& results) {
  return std::all_of(results.begin(), results.end(), [](const CheckResult& result) { return result.is_decided(); });
}

Outcome outcome_of(const VerdictResult& result) {
  if (!all_hold(result.testable)) return Outcome::kUntestable;
  if (!all_are_decided(result.reproduced) || !all_are_decided(result.partly)) return Outcome::kUntestable;
  if (!result.reproduced.empty() && all_hold(result.reproduced)) return Outcome::kReproduced;
  return !result.partly.empty() && all_hold(result.partly) ? Outcome::kPartly : Outcome::kDiffers;
}

}  // namespace

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kReproduced:
      return "reproduced";
    case Outcome::kPartly:
      return "partly";
    case Outcome::kDiffers:
      return "differs";
    case Outcome::kUntestable:
      return "untestable";
  }
  return "";
}

bool CheckResult::has_number() const {
  return std::any_of(cells.begin(), cells.end(), [](const CheckedCell& cell) { return cell.value.has_value(); });
}

bool CheckResult::lacks_interval(const CheckedCell& cell) const {
  return check.whole_interval && cell.value && !cell.interval;
}

bool CheckResult::is_decided() const {
  if (!has_number()) return false;
  const auto lacks = [this](const CheckedCell& cell) { return lacks_interval(cell); };
  const auto decides = [&](const CheckedCell& cell) { return !lacks(cell) && cell.holds == check.in_some; };
  return std::any_of(cells.begin(), cells.end(), decides) || std::none_of(cells.begin(), cells.end(), lacks);
}

bool CheckResult::holds() const {
  const auto holds = [](const CheckedCell& cell) { return cell.holds; };
  if (check.in_some) return std::any_of(cells.begin(), cells.end(), holds);
  return !cells.empty() && std::all_of(cells.begin(), cells.end(), holds);
}

VerdictResult judge(const VerdictPlan& verdict, const ReportPlan& plan, const RowTable& rows) {
  VerdictResult result{.testable = run_checks(verdict.testable, plan, rows),
                       .reproduced = run_checks(verdict.reproduced, plan, rows),
                       .partly = run_checks(verdict.partly, plan, rows),
                       .numbers = run_checks(verdict.numbers, plan, rows)};
  result.outcome = verdict.judged ? *verdict.judged : outcome_of(result);
  return result;
}

void check_fixed(const VerdictPlan& verdict, std::string_view date) {
  const std::string_view day = date.substr(0, verdict.since.size());
  if (!verdict.beforehand || day.empty() || verdict.since <= day) return;
  throw UserError(fmt::format("{}: verdict '{}': fixed = beforehand: since {}, but the rows are of {}", verdict.where,
                              verdict.items.front(), verdict.since, day));
}

}  // namespace kv
