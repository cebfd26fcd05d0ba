#include "harness/report/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/report/escape.h"

namespace kv {
namespace {

constexpr int kThumbnail = 260;  // pixels
constexpr const char* kLineBreak = "<br>";

std::string spec_link(const IndexEntry& entry, const std::string& specs) {
  return entry.spec.empty() ? "" : fmt::format("[{0}]({1}/{0})", entry.spec, specs);
}

std::string short_commit(const IndexEntry& entry) { return entry.commit.substr(0, 7); }

std::string line_of(const IndexEntry& entry, const std::string& specs) {
  const std::string plot =
      entry.plot.empty() ? ""
                         : fmt::format("<a href=\"{0}/table.md\"><img src=\"{0}/{1}\" width=\"{2}\" alt=\"{3}\"></a>",
                                       entry.folder, entry.plot, kThumbnail, escape_html(entry.title));
  std::string what = fmt::format("[**{}**]({}/table.md)", escape_markdown(entry.title), entry.folder);
  if (!entry.question.empty()) what += kLineBreak + escape_markdown(entry.question);
  std::vector<std::string> paper, verdicts;
  for (const std::string& item : entry.paper) paper.push_back(escape_markdown(item));
  for (const ItemVerdict& said : entry.verdicts) {
    verdicts.push_back(fmt::format("{}: {}", escape_markdown(said.item), name_of(said.outcome)));
  }
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", what, fmt::join(paper, kLineBreak),
                     fmt::join(verdicts, kLineBreak), spec_link(entry, specs), entry.samples,
                     escape_markdown(entry.device), short_commit(entry), entry.date.substr(0, 10), plot);
}

// A result, and what it says of one item.
struct Answer {
  const IndexEntry* entry = nullptr;
  const ItemVerdict* said = nullptr;
};

std::vector<Answer> answers_to(const std::string& item, const std::vector<IndexEntry>& entries) {
  std::vector<Answer> answers;
  for (const IndexEntry& entry : entries) {
    for (const ItemVerdict& said : entry.verdicts) {
      if (said.item == item) answers.push_back({&entry, &said});
    }
  }
  return answers;
}

// What the answers to one item come to, in a word.
std::string common_outcome(const std::vector<Answer>& answers) {
  if (answers.empty()) return "missing";
  const bool agree = std::all_of(answers.begin(), answers.end(), [&](const Answer& answer) {
    return answer.said->outcome == answers.front().said->outcome;
  });
  return agree ? name_of(answers.front().said->outcome) : "not the same in every result";
}

template <class Text>
std::string lines(const std::vector<Answer>& answers, const Text& text) {
  std::vector<std::string> all;
  for (const Answer& answer : answers) all.push_back(text(answer));
  if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end() && !all.empty()) all.resize(1);
  return fmt::format("{}", fmt::join(all, kLineBreak));
}

std::string line_of(const IndexItem& item, const std::vector<Answer>& answers, const std::string& specs) {
  const std::string head = fmt::format("| {} | {} |", escape_markdown(item.name), escape_markdown(item.measures));
  if (answers.empty()) {
    return fmt::format("{} | | | | missing: {} | |\n", head,
                       item.missing.empty() ? "no result yet" : escape_markdown(item.missing));
  }
  std::vector<std::string> results, commits, samples, verdicts;
  for (const Answer& answer : answers) {
    results.push_back(fmt::format("[{0}]({0}/table.md)", answer.entry->folder));
    commits.push_back(short_commit(*answer.entry));
    samples.push_back(answer.entry->samples);
    verdicts.emplace_back(name_of(answer.said->outcome));
  }
  const auto joined = [](const std::vector<std::string>& texts) {
    return fmt::format("{}", fmt::join(texts, kLineBreak));
  };
  return fmt::format("{} {} | {} | {} | {} | {} | {} |\n", head,
                     lines(answers, [&](const Answer& answer) { return spec_link(*answer.entry, specs); }),
                     joined(results), joined(commits), joined(samples), joined(verdicts),
                     lines(answers, [](const Answer& answer) {
                       return std::string(answer.said->beforehand ? "beforehand" : "afterwards");
                     }));
}

std::string items_markdown(const std::vector<IndexItem>& items, const std::vector<IndexEntry>& entries,
                           const std::string& specs) {
  std::string table;
  std::vector<std::pair<std::string, int>> counts = {
      {"reproduced", 0}, {"partly", 0}, {"differs", 0}, {"untestable", 0}, {"not the same in every result", 0},
      {"missing", 0}};
  for (const IndexItem& item : items) {
    const std::vector<Answer> answers = answers_to(item.name, entries);
    table += line_of(item, answers, specs);
    const std::string word = common_outcome(answers);
    for (auto& [name, count] : counts) count += name == word ? 1 : 0;
  }
  std::vector<std::string> sums;
  for (const auto& [name, count] : counts) {
    if (count > 0) sums.push_back(fmt::format("{} {}", count, name));
  }
  return fmt::format(
      "## Tables and figures of the papers\n\n{} items: {}. How a verdict comes about: "
      "[docs/verdicts.md](../docs/verdicts.md); the numbers that decide it stand on the result's page.\n\n"
      "| item | what it measures | spec | result | commit | n | verdict | criterion fixed |\n"
      "|:---|:---|:---|:---|:---|---:|:---|:---|\n{}\n## Every result\n\n",
      items.size(), fmt::join(sums, ", "), table);
}

}  // namespace

std::string index_markdown(const std::vector<IndexItem>& items, const std::vector<IndexEntry>& entries,
                           const std::string& specs, const std::string& models_page) {
  std::string out = fmt::format(
      "{} from each folder's spec, manifest and rows; do not edit. A folder's `index.html`, with all plots, is drawn "
      "by `kvlab report FOLDER`.\n\n",
      kIndexStart);
  if (!models_page.empty()) {
    out += fmt::format("The same findings under both models, side by side: [{0}]({0}).\n\n", models_page);
  }
  if (!items.empty()) out += items_markdown(items, entries, specs);
  out +=
      "| what, and its question | paper | verdict | spec | n | device | commit | date | first plot |\n"
      "|:---|:---|:---|:---|---:|:---|:---|:---|:---|\n";
  for (const IndexEntry& entry : entries) out += line_of(entry, specs);
  return out;
}

}  // namespace kv
