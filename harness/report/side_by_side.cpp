#include "harness/report/side_by_side.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/report/escape.h"
#include "harness/report/leaders.h"
#include "harness/report/table.h"
#include "harness/report/verdict.h"

namespace kv {
namespace {

constexpr const char* kNone = "\xe2\x80\x93";  // en dash
constexpr const char* kLineBreak = "<br>";
constexpr size_t kMostNumbers = 6;  // of a finding that are printed one by one

struct Judged {
  const VerdictPlan* plan = nullptr;
  VerdictResult result{};
};

std::vector<Judged> judge_all(const ModelResult& result) {
  std::vector<Judged> all;
  for (const VerdictPlan& plan : result.report.verdicts) {
    all.push_back({&plan, judge(plan, result.report, result.rows)});
  }
  return all;
}

const Judged* same_item(const std::vector<Judged>& verdicts, const VerdictPlan& plan) {
  const auto found = std::find_if(verdicts.begin(), verdicts.end(),
                                  [&](const Judged& other) { return other.plan->items.front() == plan.items.front(); });
  return found == verdicts.end() ? nullptr : &*found;
}

const CheckResult* same_check(const std::vector<CheckResult>& checks, const CheckResult& check) {
  const auto found = std::find_if(checks.begin(), checks.end(), [&](const CheckResult& other) {
    return other.subject == check.subject && bound_text(other.check) == bound_text(check.check);
  });
  return found == checks.end() ? nullptr : &*found;
}

std::string yes_or_no(bool yes) { return yes ? "yes" : "no"; }

// Whether both keep to what the paper says.
std::string with_paper(bool first, bool second, const ModelPair& pair) {
  if (first == second) return first ? "both" : "neither";
  return escape_markdown(first ? pair.first.model : pair.second.model) + " alone";
}

// Every number of a check that has some, where they are few, else how many hold and between what they lie.
std::string numbers_text(const CheckResult& check) {
  std::vector<std::string> lines;
  double low = 0, high = 0;
  size_t numbers = 0, holding = 0;
  for (const CheckedCell& cell : check.cells) {
    if (!cell.value) continue;
    low = numbers == 0 ? *cell.value : std::min(low, *cell.value);
    high = numbers == 0 ? *cell.value : std::max(high, *cell.value);
    ++numbers;
    holding += cell.holds ? 1 : 0;
    const std::string interval = interval_text(cell, check.digits);
    lines.push_back(fmt::format("{}{}{}{}{}", escape_markdown(cell.label), cell.label.empty() ? "" : ": ",
                                format_number(*cell.value, check.digits), interval.empty() ? "" : " ", interval));
  }
  if (numbers <= kMostNumbers) return fmt::format("{}", fmt::join(lines, kLineBreak));
  return fmt::format("{} of {} hold: {} to {}", holding, numbers, format_number(low, check.digits),
                     format_number(high, check.digits));
}

std::string verdict_line(const Judged& first, const Judged& second, const ModelPair& pair) {
  const Outcome a = first.result.outcome, b = second.result.outcome;
  const bool known = a != Outcome::kUntestable && b != Outcome::kUntestable;
  return fmt::format("| **{}** | | {} | {} | {} | {} |\n",
                     escape_markdown(fmt::format("{}", fmt::join(first.plan->items, ", "))), name_of(a), name_of(b),
                     known ? yes_or_no(a == b) : kNone,
                     known ? with_paper(a == Outcome::kReproduced, b == Outcome::kReproduced, pair) : kNone);
}

std::string finding_line(const CheckResult& first, const CheckResult& second, const ModelPair& pair) {
  const bool a = first.holds(), b = second.holds();
  const bool known = first.is_decided() && second.is_decided();
  const auto numbers = [](const CheckResult& check) {
    if (!check.has_number()) return std::string("no number");
    return fmt::format("{}{}{}", numbers_text(check), kLineBreak,
                       check.holds()        ? "holds"
                       : check.is_decided() ? "does not hold"
                                            : "no interval");
  };
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", escape_markdown(first.subject),
                     escape_markdown(bound_text(first.check)), numbers(first), numbers(second),
                     known ? yes_or_no(a == b) : kNone, known ? with_paper(a, b, pair) : kNone);
}

std::string findings(const ModelPair& pair) {
  const std::vector<Judged> first = judge_all(pair.first), second = judge_all(pair.second);
  std::string lines;
  for (const Judged& said : first) {
    const Judged* other = same_item(second, *said.plan);
    if (!other) continue;
    lines += verdict_line(said, *other, pair);
    std::vector<CheckResult> seen;
    for (const auto part : {&VerdictResult::reproduced, &VerdictResult::partly}) {
      for (const CheckResult& check : said.result.*part) {
        const CheckResult* same = same_check(other->result.*part, check);
        if (!same || same_check(seen, check)) continue;
        seen.push_back(check);
        lines += finding_line(check, *same, pair);
      }
    }
  }
  if (lines.empty()) return "";
  return fmt::format(
      "| finding | must be | {} | {} | models agree | with the paper |\n|:---|:---|:---|:---|:---|:---|\n{}\n",
      escape_markdown(pair.first.model), escape_markdown(pair.second.model), lines);
}

std::string leader_text(const std::vector<Leader>& leaders, int digits) {
  std::vector<std::string> lines;
  for (const Leader& leader : leaders) {
    std::string ahead = format_number(leader.ahead, digits);
    if (leader.interval) {
      ahead += fmt::format(" [{}, {}]", format_number(leader.interval->low, digits),
                           format_number(leader.interval->high, digits));
    }
    lines.push_back(
        escape_markdown(fmt::format("{}{}{}, then {} ({})", leader.column, leader.column.empty() ? "" : ": ",
                                    leader.name, leader.runner_up, ahead)));
  }
  return lines.empty() ? "no number" : fmt::format("{}", fmt::join(lines, kLineBreak));
}

// In how many columns both have the same leader: column by column where they are as many, else those of one name.
std::string agreement(const std::vector<Leader>& first, const std::vector<Leader>& second) {
  size_t compared = 0, same = 0;
  const auto compare = [&](const Leader& a, const Leader& b) {
    ++compared;
    same += a.name == b.name ? 1 : 0;
  };
  if (first.size() == second.size()) {
    for (size_t i = 0; i < first.size(); ++i) compare(first[i], second[i]);
  } else {
    for (const Leader& a : first) {
      for (const Leader& b : second) {
        if (a.column == b.column) compare(a, b);
      }
    }
  }
  if (compared == 0) return kNone;
  return same == compared ? "yes" : same == 0 ? "no" : fmt::format("in {} of {}", same, compared);
}

std::string ranked_tables(const ModelPair& pair) {
  std::string lines;
  for (const TablePlan& table : pair.first.report.tables) {
    for (const TablePlan& other : pair.second.report.tables) {
      if (other.name != table.name) continue;
      const std::vector<Leader> a = leaders_of(table, pair.first.rows), b = leaders_of(other, pair.second.rows);
      if (a.empty() && b.empty()) continue;
      lines += fmt::format("| {} ({}) | {} | {} | {} |\n", escape_markdown(table.title), escape_markdown(table.name),
                           leader_text(a, table.digits), leader_text(b, other.digits), agreement(a, b));
    }
  }
  if (lines.empty()) return "";
  return fmt::format("| who leads | {} | {} | models agree |\n|:---|:---|:---|:---|\n{}\n",
                     escape_markdown(pair.first.model), escape_markdown(pair.second.model), lines);
}

std::string result_link(const ModelResult& result) {
  return fmt::format("{}: [{}]({}/table.md), n = {}", escape_markdown(result.model), result.folder, result.folder,
                     result.samples);
}

}  // namespace

std::string side_by_side_markdown(const std::vector<ModelPair>& pairs) {
  std::string sections;
  for (const ModelPair& pair : pairs) {
    const std::string compared = findings(pair) + ranked_tables(pair);
    if (compared.empty()) continue;
    sections += fmt::format("## {}\n\n{}; {}.\n\n{}", escape_markdown(pair.first.title), result_link(pair.first),
                            result_link(pair.second), compared);
  }
  if (sections.empty()) return "";
  const std::string out =
      std::string(kSideBySideStart) +
      " from the rows of the results named here; do not edit. Two results stand together where the spec of "
      "one is `like` that of the other, or like what the other is like and closest to it, and names another model. A "
      "finding is a check of the verdict, with "
      "95 % intervals; where it holds, the model is with the paper. Behind a leader stands the next, and "
      "that one's number less the leader's.\n\n" +
      sections;
  return out.substr(0, out.find_last_not_of('\n') + 1) + "\n";
}

}  // namespace kv
