#include "harness/report/cells.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "harness/clusters.h"
#include "harness/report/equal_size.h"
#include "harness/report/partners.h"
#include "harness/report/pile.h"
#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv {
namespace {

using Read = std::function<std::string(const Row&)>;

struct Quantity {
  double value = 0;
  std::string unit;
};

// A row's value in the unit that the measure asks for, if that is a multiple of the row's own.
Quantity quantity(const Row& row, const Measure& measure) {
  if (measure.unit == "ms" && row.unit == "s") return {*row.value * 1e3, measure.unit};
  if (measure.unit == "GB" && row.unit == "bytes") return {*row.value * 1e-9, measure.unit};
  if (measure.unit == "%" && row.unit.empty()) return {*row.value * 100, measure.unit};
  return {*row.value, row.unit};
}

// Columns that a reader expects to be fixed; the sample is what the interval is about.
std::vector<std::string> free_columns(const RowTable& table, const Question& question) {
  std::vector<std::string> columns = {"model", "data", "policy", "device", "layer", "head", "x"};
  columns.insert(columns.end(), table.axes.begin(), table.axes.end());
  std::erase_if(columns, [&](const std::string& column) {
    return std::find(question.columns.begin(), question.columns.end(), column) != question.columns.end();
  });
  return columns;
}

// What a cell's difference is taken from; nothing where the question asks for none.
Partners partners_of(const Key& key, const std::map<Key, Pile>& piles, const Question& question) {
  if (const auto given = question.partners.find(key); given != question.partners.end()) {
    return {.terms = {{.pile = &piles.at(given->second)}}};
  }
  return question.paired ? partners_of(key, piles, question.columns, *question.paired) : Partners();
}

// The places of rows in their samples (pile.h), numbered as they come.
class PlaceNumbers {
 public:
  std::size_t of(Key place) {
    const auto [number, unseen] = numbers_.try_emplace(std::move(place), keys_.size());
    if (unseen) keys_.push_back(number->first);
    return number->second;
  }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  std::vector<Key> keys_;
  std::map<Key, std::size_t> numbers_;
};

Skipped skipped_of(const Pile& pile) {
  return {.samples = static_cast<int>(pile.skipped.size()), .reason = pile.reason};
}

bool takes_differences(const Question& question) { return question.paired || !question.partners.empty(); }

bool relative(const Question& question) { return question.relative || (question.paired && question.paired->relative); }

Cell make_cell(const Pile& pile, std::span<const Term> partners, std::span<const Key> places,
               const Question& question) {
  Cell cell{.unit = pile.unit, .skipped = skipped_of(pile), .outside = pile.outside};
  if (partners.empty()) {
    cell.estimate = estimate(pile, question.measure, question.intervals);
    return cell;
  }
  Difference difference =
      estimate_difference(pile, partners, places, question.measure, relative(question), question.intervals);
  cell.estimate = difference.estimate;
  cell.unpaired = std::move(difference.unpaired);
  for (const Term& partner : partners) {
    cell.partners.push_back({.skipped = skipped_of(*partner.pile), .outside = partner.pile->outside});
  }
  if (relative(question)) cell.unit = "%";
  return cell;
}

bool within_case(const std::string& column) { return column == "layer" || column == "head" || column == "x"; }

std::vector<Read> readers_of(const RowTable& table, const std::vector<std::string>& columns) {
  std::vector<Read> readers;
  for (const std::string& column : columns) readers.push_back(column_reader(table, column));
  return readers;
}

// Gathers rows in a pile for each cell.
class Collector {
 public:
  Collector(const RowTable& table, const Question& question)
      : table_(table),
        question_(question),
        documents_(table),
        measure_(question.measure),
        metrics_(measure_.ratio.empty() ? measure_.metrics : measure_.ratio),
        key_readers_(readers_of(table, question.columns)),
        free_columns_(free_columns(table, question)),
        free_readers_(readers_of(table, free_columns_)),
        filter_(row_filter(table, question.where)) {
    if (!question.at) return;
    sizes_.emplace(table, question.at->metric);
    for (const std::string& column : free_columns_) {
      if (tells_settings(table, column)) setting_readers_.push_back(column_reader(table, column));
    }
  }

  void take(const Row& row) {
    const bool measured = std::find(metrics_.begin(), metrics_.end(), row.metric) != metrics_.end();
    if (!row.skipped.empty()) {
      if ((measured || row.metric.empty()) && filter_(row)) take_skipped(row);
    } else if (measured && row.value && filter_(row)) {
      take_value(row);
    }
  }

  Cells finish() {
    if (question_.at) take_at_sizes();
    const bool differences = takes_differences(question_);
    std::vector<bool> averaged(free_columns_.size());
    std::vector<const Pile*> piles;
    std::vector<Partners> partners;
    std::vector<Cell*> cells;
    for (const auto& [key, pile] : piles_) {
      Partners of_pile = partners_of(key, piles_, question_);
      if (differences && of_pile.terms.empty()) {
        if (of_pile.several) cells_.unclear.push_back(key);
        std::erase(cells_.keys, key);
        continue;
      }
      piles.push_back(&pile);
      partners.push_back(std::move(of_pile));
      cells.push_back(&cells_.cells[key]);
      for (std::size_t i = 0; i < pile.spread.size(); ++i) averaged[i] = averaged[i] || pile.spread[i].size() > 1;
    }
    // Thousands of draws each.
    cpu::parallel_for(std::ssize(cells), [&](std::int64_t at) {
      const auto i = static_cast<std::size_t>(at);
      *cells[i] = make_cell(*piles[i], partners[i].terms, places_.keys(), question_);
    });
    for (std::size_t i = 0; i < averaged.size(); ++i) {
      if (!averaged[i]) continue;
      const bool swept = question_.at && tells_settings(table_, free_columns_[i]);
      (swept ? cells_.swept : cells_.averaged).push_back(free_columns_[i]);
    }
    return std::move(cells_);
  }

 private:
  // Each pile of settings becomes one a size, whose key it has where the metric stands.
  void take_at_sizes() {
    const std::size_t place = place_among(question_.columns, question_.at->metric);
    std::map<Key, Pile> piles;
    std::vector<Key> keys;
    for (const Key& key : cells_.keys) {
      for (const std::string& size : question_.at->values) {
        keys.push_back(key);
        keys.back()[place] = size;
        piles[keys.back()] = at_size(piles_.at(key), *parse_number(size), measure_);
      }
    }
    piles_ = std::move(piles);
    cells_.keys = std::move(keys);
  }

  Pile& pile_of(const Row& row, const std::string& metric) {
    Key key;
    for (std::size_t i = 0; i < key_readers_.size(); ++i) {
      key.push_back(question_.columns[i] == "metric" ? metric : key_readers_[i](row));
    }
    if (question_.first && !key.empty()) key.front() = question_.first(key.front());
    const auto [place, added] = piles_.try_emplace(key);
    if (added) cells_.keys.push_back(key);
    return place->second;
  }

  // A row that speaks of a whole case says nothing of the cells inside it.
  bool has_cell(const Row& row) const {
    for (std::size_t i = 0; i < key_readers_.size(); ++i) {
      if (within_case(question_.columns[i]) && key_readers_[i](row).empty()) return false;
    }
    return true;
  }

  void take_skipped(const Row& row) {
    if (!has_cell(row)) {
      auto& reasons = cells_.reasons;
      if (std::find(reasons.begin(), reasons.end(), row.skipped) == reasons.end()) reasons.push_back(row.skipped);
      return;
    }
    for (const std::string& metric : measure_.ratio.empty() ? metrics_ : std::vector<std::string>{"ratio"}) {
      if (!row.metric.empty() && measure_.ratio.empty() && metric != row.metric) continue;
      Pile& pile = pile_of(row, metric);
      pile.skipped.insert(sample_key(row));
      if (pile.reason.empty()) pile.reason = row.skipped;
    }
  }

  void take_value(const Row& row) {
    Pile& pile = pile_of(row, measure_.ratio.empty() ? row.metric : "ratio");
    const auto [sample, added] = pile.index.try_emplace(sample_key(row), pile.samples.size());
    if (added) {
      pile.samples.emplace_back();
      pile.documents.push_back(documents_.of(row));
      pile.sizes.emplace_back();
    }
    const std::size_t number = place_of(row, pile);
    if (sizes_) {
      if (const auto size = sizes_->of(row)) pile.sizes[sample->second].emplace(number, *size);
    }
    const bool below = !measure_.ratio.empty() && row.metric == measure_.ratio[1];
    const Quantity shown = quantity(row, measure_);
    pile.samples[sample->second][number][below ? 1 : 0].add(shown.value);
    if (measure_.ratio.empty()) pile.unit = shown.unit;
  }

  // Its place in its sample, by its number (pile.h). Notes the values of its free columns.
  std::size_t place_of(const Row& row, Pile& pile) {
    Key place = {row.metric};
    for (const Read& read : free_readers_) place.push_back(read(row));
    pile.spread.resize(free_readers_.size());
    for (std::size_t i = 0; i < free_readers_.size(); ++i) pile.spread[i].insert(place[i + 1]);
    if (sizes_) {
      Key setting;
      for (const Read& read : setting_readers_) setting.push_back(read(row));
      return places_.of(std::move(setting));
    }
    return takes_differences(question_) ? places_.of(std::move(place)) : 0;
  }

  const RowTable& table_;
  const Question& question_;
  const Documents documents_;
  const Measure& measure_;
  const std::vector<std::string>& metrics_;
  std::vector<Read> key_readers_;
  std::vector<std::string> free_columns_;
  std::vector<Read> free_readers_;
  std::function<bool(const Row&)> filter_;
  std::optional<Sizes> sizes_;  // where numbers are of an equal size
  std::vector<Read> setting_readers_;
  std::map<Key, Pile> piles_;
  PlaceNumbers places_;
  Cells cells_;
};

}  // namespace

std::function<std::string(const Row&)> column_reader(const RowTable& table, const std::string& column) {
  const auto number = [](const auto& value) { return value ? shortest(static_cast<double>(*value)) : std::string(); };
  if (column == "experiment") return [](const Row& row) { return row.experiment; };
  if (column == "model") return [](const Row& row) { return row.model; };
  if (column == "data") return [](const Row& row) { return row.data; };
  if (column == "policy") return [](const Row& row) { return row.policy; };
  if (column == "device") return [](const Row& row) { return row.device; };
  if (column == "metric") return [](const Row& row) { return row.metric; };
  if (column == "unit") return [](const Row& row) { return row.unit; };
  if (column == "text") return [](const Row& row) { return row.text; };
  if (column == "sample") return [](const Row& row) { return row.sample ? std::to_string(*row.sample) : ""; };
  if (column == "seed") return [](const Row& row) { return row.seed ? std::to_string(*row.seed) : ""; };
  if (column == "layer") return [](const Row& row) { return row.layer ? std::to_string(*row.layer) : ""; };
  if (column == "head") return [](const Row& row) { return row.head ? std::to_string(*row.head) : ""; };
  if (column == "x") return [number](const Row& row) { return number(row.x); };
  if (column == "value") return [number](const Row& row) { return number(row.value); };
  const auto axis = std::find(table.axes.begin(), table.axes.end(), column);
  if (axis == table.axes.end()) return [](const Row&) { return std::string(); };
  return [i = static_cast<std::size_t>(axis - table.axes.begin())](const Row& row) { return row.axes[i]; };
}

bool admits(const ColumnFilter& filter, const std::string& value) {
  const bool listed = std::any_of(filter.values.begin(), filter.values.end(),
                                  [&](const std::string& text) { return same_value(text, value); });
  return listed != filter.excludes;
}

std::function<bool(const Row&)> row_filter(const RowTable& table, const Where& where) {
  std::vector<std::pair<Read, ColumnFilter>> tests;
  for (const auto& [column, filter] : where) {
    if (column != "metric") tests.emplace_back(column_reader(table, column), filter);
  }
  std::optional<ColumnFilter> metric;
  if (const auto found = where.find("metric"); found != where.end()) metric = found->second;
  return [tests, metric](const Row& row) {
    const bool of_every_metric = row.metric.empty() && !row.skipped.empty();
    if (metric && !of_every_metric && !admits(*metric, row.metric)) return false;
    return std::all_of(tests.begin(), tests.end(),
                       [&](const auto& test) { return admits(test.second, test.first(row)); });
  };
}

Cells collect(const RowTable& table, const Question& question) {
  Collector collector(table, question);
  for (const Row& row : table.rows) collector.take(row);
  return collector.finish();
}

Counts counts_of(const Cells& cells) {
  Counts counts;
  const auto take = [](CountRange& range, int count) {
    range.low = range.high == 0 ? count : std::min(range.low, count);
    range.high = std::max(range.high, count);
  };
  for (const auto& [key, cell] : cells.cells) {
    if (!cell.estimate) continue;
    take(counts.samples, cell.estimate->samples);
    take(counts.clusters, cell.estimate->clusters);
    counts.clustered |= cell.estimate->clusters < cell.estimate->samples;
  }
  return counts;
}

std::string to_text(const CountRange& range) {
  return range.low == range.high ? std::to_string(range.low) : fmt::format("{} to {}", range.low, range.high);
}

std::string of_documents(const Counts& counts) {
  return counts.clustered ? fmt::format(" of {} documents", to_text(counts.clusters)) : "";
}

std::string interval_note(const Counts& counts, std::string_view name) {
  const char* what = counts.clustered ? "documents" : "samples";
  if (counts.clusters.high < kFewestForAnInterval)
    return fmt::format("no interval below {} {}", kFewestForAnInterval, what);
  if (counts.clusters.low >= kFewestForAnInterval) return std::string(name);
  return fmt::format("{}, where there are at least {} {}", name, kFewestForAnInterval, what);
}

std::string no_rows(const Measure& measure) {
  const auto& names = measure.ratio.empty() ? measure.metrics : measure.ratio;
  return fmt::format("No rows with a value for metric {}.", fmt::join(names, ", "));
}

std::string label_of(const Labels& labels, const std::string& text) {
  const auto label = labels.find(text);
  return label == labels.end() ? text : label->second;
}

std::string label_of(const Labels& labels, const std::string& column, const std::string& value) {
  if (labels.contains(value)) return labels.at(value);
  if (value.empty()) return label_of(labels, column) + "=\xe2\x80\x93";
  return parse_number(value) ? label_of(labels, column) + "=" + value : value;
}

std::string label_of(const Labels& labels, const std::vector<std::string>& columns, const Key& key) {
  KV_CHECK(columns.size() == key.size());
  std::string out;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (!out.empty()) out += ", ";
    out += label_of(labels, columns[i], key[i]);
  }
  return out;
}

}  // namespace kv
