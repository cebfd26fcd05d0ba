#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/report/cell.h"
#include "harness/report/plan.h"
#include "harness/rows.h"
#include "harness/statistics.h"

namespace kv {

// The one place where rows become numbers; tables and plots only arrange them.

struct Cells {
  std::vector<Key> keys;  // in order of first appearance in the rows, which is the spec's order of cases
  std::map<Key, Cell> cells;
  // Columns that no key fixes and that take several values within one cell ("layer"): the reader must be told that the
  // cell is a mean over them.
  std::vector<std::string> averaged;
  std::vector<std::string> swept;    // so, too, of numbers at an equal size, which are taken between them
  std::vector<std::string> reasons;  // of skipped rows whose cell is unknown (keys of layer, head or x)
  std::vector<Key> unclear;          // left out of differences, because several cells could be the partner
};

struct Question {
  const Measure& measure;
  const Where& where;
  std::vector<std::string> columns;  // the key
  bool intervals = true;
  // Numbers at equal sizes (harness/report/equal_size.h); `columns` has its metric, whose values are the sizes.
  std::optional<EqualSize> at = {};
  // Differences instead: of each cell from the one with that value in that column (of `columns`), which itself is left
  // out, as are cells without such a partner, or with several that fit no better than each other. Rows are paired: same
  // sample, and same value of every free column. Of an interaction all three partners are needed.
  std::optional<Pairing> paired = {};
  // So, too, for these cells only, each with the one that it is taken from.
  std::map<Key, Key> partners = {};
  bool relative = false;  // the differences from `partners` in % of the other's number
  // Maps the value of the first key column, e.g. to the bin of a curve with thousands of points.
  std::function<std::string(const std::string&)> first = {};
};

// Text of a column; numbers as in the CSV, absent ones empty. A column the table lacks is empty everywhere (a run made
// with another --set).
std::function<std::string(const Row&)> column_reader(const RowTable& table, const std::string& column);

// Row filter of a where map; rows that only say why a case was skipped pass on everything but "metric".
bool admits(const ColumnFilter& filter, const std::string& value);
std::function<bool(const Row&)> row_filter(const RowTable& table, const Where& where);

// The sample is the unit of the bootstrap: values of one (model, data, sample, seed) are averaged first, so many layers
// or heads of one text do not pass for many samples. Where rows name the documents that samples were drawn from
// (kDocumentMetric), documents are drawn, each with all its samples. A ratio needs both of its metrics in a sample.
Cells collect(const RowTable& table, const Question& question);

// The least and the most that a cell with a number has; 0 where none has one.
struct CountRange {
  int low = 0, high = 0;
};
struct Counts {
  CountRange samples;
  CountRange clusters;     // that the interval's draws are made of
  bool clustered = false;  // in some cell samples share a document
};
Counts counts_of(const Cells& cells);
std::string to_text(const CountRange& range);    // "64" or "48 to 64"
std::string of_documents(const Counts& counts);  // " of 16 documents", or nothing where samples stand alone

// The name of the intervals with which cells stand, or that there is none (kFewestForAnInterval), or from how many
// samples on.
std::string interval_note(const Counts& counts, std::string_view name);

// What a table or plot says that found nothing to show.
std::string no_rows(const Measure& measure);

// "h2o", or its label; numbers of an axis are named: "budget=512".
std::string label_of(const Labels& labels, const std::string& text);
std::string label_of(const Labels& labels, const std::string& column, const std::string& value);
std::string label_of(const Labels& labels, const std::vector<std::string>& columns, const Key& key);

}  // namespace kv
