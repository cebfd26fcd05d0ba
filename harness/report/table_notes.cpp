#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "harness/report/table.h"
#include "harness/report/table_grid.h"

namespace kv {
namespace {

constexpr const char* kDagger = "\xe2\x80\xa0";

// "n = 64", "n = 48 to 64", "n = 64 of 16 documents".
std::string count_note(const CellGrid& grid) {
  const Counts counts = counts_of(grid.cells);
  return fmt::format("n = {}{}", to_text(counts.samples), of_documents(counts));
}

// "mean", or what else is taken over samples.
std::string what_of(const Measure& measure) {
  if (!measure.ratio.empty()) return fmt::format("sum of {} over sum of {}", measure.ratio[0], measure.ratio[1]);
  return measure.aggregate == Aggregate::kMean     ? "mean"
         : measure.aggregate == Aggregate::kMedian ? "median"
                                                   : "largest";
}

std::string number_note(const TablePlan& plan, const CellGrid& grid) {
  const std::string what = what_of(plan.measure);
  const auto interval = [&](const char* name) {
    return plan.interval == IntervalStyle::kNone ? "" : "; " + interval_note(counts_of(grid.cells), name);
  };
  if (!plan.paired) {
    return fmt::format("Each number: {} over samples, {}{}.", what, count_note(grid),
                       interval("95 % bootstrap interval"));
  }
  const std::vector<std::string> names = partner_names(plan);
  const bool interaction = names.size() > 1;
  return fmt::format("Each number: {} over samples less that of {}{} on the same {}samples{}, {}{}.", what, names[0],
                     interaction ? fmt::format(", less the same difference at {},", names[1]) : "",
                     plan.at ? "" : "rows of the same ",
                     plan.paired->relative ? ", in % of " + (interaction ? names.back() : "the latter") : "",
                     count_note(grid), interval("95 % interval of the paired bootstrap"));
}

// How numbers at an equal size come about.
std::string size_note(const TablePlan& plan, const CellGrid& grid) {
  const std::string settings =
      grid.cells.swept.empty() ? "" : fmt::format(" (of: {})", fmt::join(grid.cells.swept, ", "));
  return fmt::format(
      "At equal {}: of each sample linear between its nearest settings on either side{}; left out where one has none.",
      label_of(plan.labels, plan.at->metric), settings);
}

std::string better_note(const TablePlan& plan) {
  const bool lower = plan.better == Better::kLower;
  if (plan.paired && plan.paired->beside) {
    return fmt::format("{} 0: the two help each other; at 0 their effects add up.", lower ? "Below" : "Above");
  }
  if (plan.paired) return fmt::format("{} 0: {} is better.", lower ? "Above" : "Below", partner_names(plan)[0]);
  std::string note = lower ? "\xe2\x86\x93 lower is better" : "\xe2\x86\x91 higher is better";
  if (!plan.unranked.empty()) note += fmt::format("; not ranked: {}", fmt::join(plan.unranked, ", "));
  return note + ".";
}

// What bold and the dagger mean.
void add_mark_notes(const TablePlan& plan, const CellGrid& grid, std::vector<std::string>& notes) {
  const std::string interval = fmt::format("the 95 % interval of the {} excludes zero ({} of at least 8)",
                                           plan.paired && plan.paired->beside ? "interaction" : "paired difference",
                                           counts_of(grid.cells).clustered ? "documents" : "n");
  if (plan.paired) {
    if (plan.interval != IntervalStyle::kNone) notes.push_back(fmt::format("{}: {}.", kDagger, interval));
    return;
  }
  if (plan.better == Better::kUnknown) return;
  std::string note = "Bold: the best of its column by its number alone";
  if (!grid.from_best.empty()) note += fmt::format("; {}: differs from it, {}", kDagger, interval);
  notes.push_back(note + ".");
}

// Cells that are not shown, because nothing says which of several others each is to be compared with.
void add_unclear_note(const TablePlan& plan, const CellGrid& grid, std::vector<std::string>& notes) {
  if (grid.cells.unclear.empty()) return;
  std::vector<std::string> columns = plan.rows, labels;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  for (const Key& key : grid.cells.unclear) labels.push_back(label_of(plan.labels, columns, key));
  notes.push_back(fmt::format("Left out, because each fits several cells of {}: {}.",
                              fmt::join(partner_names(plan), " or of "), fmt::join(labels, "; ")));
}

// A table without a row of ours.
std::string empty_note(const TablePlan& plan, const CellGrid& grid) {
  const bool outside = std::any_of(grid.cells.cells.begin(), grid.cells.cells.end(),
                                   [](const auto& entry) { return entry.second.outside.samples > 0; });
  if (outside) {
    return fmt::format("No sample has settings on both sides of a {} that is asked for.",
                       label_of(plan.labels, plan.at->metric));
  }
  if (!plan.paired) return no_rows(plan.measure);
  std::string with = fmt::format("{} = {}", plan.paired->column, plan.paired->with);
  if (plan.paired->beside) {
    with += fmt::format(", {} = {} or both together", plan.paired->beside->column, plan.paired->beside->with);
  }
  return fmt::format("No row can be compared: {} has no value for metric {} where another row has one.", with,
                     fmt::join(plan.measure.ratio.empty() ? plan.measure.metrics : plan.measure.ratio, ", "));
}

// A sample without one of its settings may still have a number at an equal size.
std::string skipped_text(const TablePlan& plan, const Skipped& skipped, const std::string& of) {
  if (plan.at && skipped.samples > 0) {
    return fmt::format("In {} of {} a setting skipped: {}.", skipped.samples, of, skipped.reason);
  }
  return skipped.samples == 0 ? "" : fmt::format("{} of {} skipped: {}.", skipped.samples, of, skipped.reason);
}

// "cache_size is 0.1 to 0.5"; one number where they are the same as printed.
std::string sizes_text(const TablePlan& plan, const Outside& outside) {
  const std::string low = format_number(outside.low, plan.digits), high = format_number(outside.high, plan.digits);
  return fmt::format("{} is {}{}", label_of(plan.labels, plan.at->metric), low, low == high ? "" : " to " + high);
}

std::string left_out_text(const TablePlan& plan, const Outside& outside, const std::string& of) {
  if (outside.samples == 0) return "";
  if (outside.settings == 0) {
    return fmt::format("{} of {} left out, without {}.", outside.samples, of, label_of(plan.labels, plan.at->metric));
  }
  return fmt::format("{} of {} left out, whose {}.", outside.samples, of, sizes_text(plan, outside));
}

// "1 of its samples and 0 of lu-kv's have no partner"
std::string alone_text(const Unpaired& unpaired, const std::vector<std::string>& partners) {
  std::string text = fmt::format("{} of its samples", unpaired.samples);
  for (std::size_t i = 0; i < partners.size(); ++i) {
    const char* comma = i + 1 < partners.size() ? "," : " and";
    text += fmt::format("{} {} of {}'s", comma, unpaired.partner_samples[i], partners[i]);
  }
  return text + " have no partner";
}

std::string unpaired_text(const Cell& cell, const std::vector<std::string>& partners) {
  const Unpaired& unpaired = cell.unpaired;
  const bool interaction = partners.size() > 1;
  std::vector<std::string> texts;
  if (std::accumulate(unpaired.partner_samples.begin(), unpaired.partner_samples.end(), unpaired.samples) > 0) {
    texts.push_back(fmt::format("{} {}; {}.", cell.estimate ? cell.estimate->samples : 0,
                                interaction ? "samples in all four" : "pairs", alone_text(unpaired, partners)));
  }
  if (unpaired.partly > 0) {
    texts.push_back(fmt::format("In {} of its {} rows that one side lacks are left out.", unpaired.partly,
                                interaction ? "samples" : "pairs"));
  }
  if (unpaired.unclear > 0) {
    texts.push_back(fmt::format("In {} of its samples rows are left out that fit several of {}'s.", unpaired.unclear,
                                fmt::join(partners, "'s or of ")));
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

// What was skipped on any side; once where that is the same on all.
void add_skipped_texts(const TablePlan& plan, const Cell& cell, std::vector<std::string>& texts) {
  const std::vector<std::string> names = partner_names(plan);
  const bool alike =
      !cell.partners.empty() && std::all_of(cell.partners.begin(), cell.partners.end(),
                                            [&](const Partner& partner) { return partner.skipped == cell.skipped; });
  const std::string all = names.size() > 1 ? "the samples of all four" : "the samples of both";
  texts.push_back(skipped_text(plan, cell.skipped, alike ? all : "the samples"));
  for (std::size_t i = 0; i < cell.partners.size() && !alike; ++i) {
    texts.push_back(skipped_text(plan, cell.partners[i].skipped, names[i] + "'s samples"));
  }
}

bool has_skipped(const Cell& cell) {
  return cell.skipped.samples > 0 || std::any_of(cell.partners.begin(), cell.partners.end(),
                                                 [](const Partner& partner) { return partner.skipped.samples > 0; });
}

// What its number lacks; of a cell that stands as skipped, that says enough.
std::string lack_text(const TablePlan& plan, const Cell& cell) {
  if (!outside_text(plan, cell).empty()) return skipped_text(plan, cell.skipped, "the samples");
  if (!cell.estimate && has_skipped(cell)) return "";
  const std::vector<std::string> names = partner_names(plan);
  std::vector<std::string> texts;
  add_skipped_texts(plan, cell, texts);
  texts.push_back(left_out_text(plan, cell.outside, "the samples"));
  for (std::size_t i = 0; i < cell.partners.size(); ++i) {
    texts.push_back(left_out_text(plan, cell.partners[i].outside, names[i] + "'s samples"));
  }
  texts.push_back(unpaired_text(cell, names));
  std::erase(texts, "");
  return fmt::format("{}", fmt::join(texts, " "));
}

// Samples that numbers lack; once for a column where all of its numbers lack the same.
void add_lack_notes(const TablePlan& plan, const CellGrid& grid, const Key& column, std::vector<std::string>& notes) {
  std::vector<std::pair<Key, std::string>> texts;
  for (const Key& row : grid.rows) {
    const Cell* cell = find_cell(grid, row, column);
    if (cell == nullptr) continue;
    std::string text = lack_text(plan, *cell);
    if (cell->estimate || !text.empty()) texts.emplace_back(row, std::move(text));
  }
  const bool alike = texts.size() > 1 && std::all_of(texts.begin(), texts.end(),
                                                     [&](const auto& t) { return t.second == texts[0].second; });
  if (alike && !texts[0].second.empty()) {
    const std::string label = plan.columns.empty() ? "Every row" : label_of(plan.labels, plan.columns, column);
    notes.push_back(label + ": " + texts[0].second);
    return;
  }
  std::vector<std::string> columns = plan.rows;
  columns.insert(columns.end(), plan.columns.begin(), plan.columns.end());
  for (const auto& [row, text] : texts) {
    if (!text.empty()) notes.push_back(label_of(plan.labels, columns, join(row, column)) + ": " + text);
  }
}

}  // namespace

std::string outside_text(const TablePlan& plan, const Cell& cell) {
  const Outside* outside = &cell.outside;
  std::string whose;
  // It has samples at that size itself: the first of its partners that has none.
  if (cell.unpaired.samples > 0) {
    const auto& counts = cell.unpaired.partner_samples;
    const auto lacking = std::find(counts.begin(), counts.end(), 0) - counts.begin();
    if (lacking == std::ssize(counts)) return "";
    outside = &cell.partners[static_cast<std::size_t>(lacking)].outside;
    whose = partner_names(plan)[static_cast<std::size_t>(lacking)] + ": ";
  }
  if (cell.estimate || outside->samples == 0) return "";
  if (outside->settings == 0) return fmt::format("{}no {}", whose, label_of(plan.labels, plan.at->metric));
  return fmt::format("{}not bracketed: in {} setting{} {}", whose, outside->settings, outside->settings == 1 ? "" : "s",
                     sizes_text(plan, *outside));
}

std::vector<std::string> notes_without_rows(const TablePlan& plan, const CellGrid& grid) {
  std::vector<std::string> notes;
  if (grid.cells.unclear.empty()) notes.push_back(empty_note(plan, grid));
  add_unclear_note(plan, grid, notes);
  for (const std::string& reason : grid.cells.reasons) notes.push_back("Skipped: " + reason + ".");
  return notes;
}

std::vector<std::string> table_notes(const TablePlan& plan, const PaperBlock* paper, const CellGrid& grid) {
  std::vector<std::string> notes;
  if (!plan.note.empty()) notes.push_back(plan.note);
  const bool any = std::any_of(grid.cells.cells.begin(), grid.cells.cells.end(),
                               [](const auto& entry) { return entry.second.estimate.has_value(); });
  if (!any) {
    if (grid.cells.unclear.empty()) notes.push_back(empty_note(plan, grid));
    for (const Key& column : grid.columns) add_lack_notes(plan, grid, column, notes);
    add_unclear_note(plan, grid, notes);
    return notes;
  }
  notes.push_back(number_note(plan, grid));
  if (plan.at) notes.push_back(size_note(plan, grid));
  if (!grid.cells.averaged.empty()) {
    notes.push_back(fmt::format("Each number is taken over all values of: {}.", fmt::join(grid.cells.averaged, ", ")));
  }
  if (plan.better != Better::kUnknown) notes.push_back(better_note(plan));
  add_mark_notes(plan, grid, notes);
  for (const Key& column : grid.columns) add_lack_notes(plan, grid, column, notes);
  add_unclear_note(plan, grid, notes);
  for (const std::string& reason : grid.cells.reasons) notes.push_back("Skipped: " + reason + ".");
  if (paper == nullptr) return notes;
  std::string source = "Paper: " + paper->table;
  if (!paper->page.empty()) source += ", page " + paper->page;
  if (!paper->caption.empty()) source += ", " + paper->caption;
  notes.push_back(source + ".");
  return notes;
}

}  // namespace kv
