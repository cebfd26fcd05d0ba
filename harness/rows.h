#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// One measured value, tidy: everything else in the row says what was measured. Either .value, .text or .skipped is set.
struct Row {  // {}: every member may be left out of a designated initialiser
  std::string experiment{}, model{}, data{}, policy{}, device{};
  std::optional<std::int64_t> sample{}, seed{};  // absent: the row speaks of the whole case
  std::optional<int> layer{}, head{};            // absent: of all layers, of all heads
  std::optional<double> x{};                     // abscissa of a curve (token, fraction, row of a matrix)
  std::string metric{};                          // snake_case; empty in a row that says why its case was skipped
  std::optional<double> value{};                 // finite
  std::string unit{}, text{};
  std::string skipped{};            // why there is no value
  std::vector<std::string> axes{};  // one a name of RowTable::axes, in its order

  bool operator==(const Row&) const = default;
};

// The metric whose text names the document that a sample was drawn from. Samples of one document are not independent:
// intervals are of documents where rows name them (harness/report/cells.h).
inline constexpr std::string_view kDocumentMetric = "document";

// A row whose value depends on the clock, or on what else has taken memory.
bool is_timing(std::string_view metric);

struct RowTable {
  std::vector<std::string> axes{};  // the spec's axes: budget, interval, keep ...
  std::vector<Row> rows{};

  bool operator==(const RowTable&) const = default;
};

// The columns every rows.csv starts with, in order; the axes follow them.
std::span<const std::string_view> standard_columns();

// Parses a whole text or nothing (locale-independent): 12 is a number, "12 " and "nan" are not.
std::optional<double> parse_number(std::string_view text);
// The shortest decimal that reads back as the same double; the value is finite.
std::string shortest(double value);

// A field as RFC 4180 wants it: quoted where it must be.
std::string quote_csv(std::string_view field);

// RFC 4180 with "\n" line ends. Whole numbers stand exactly, other values with nine significant digits: as many as tell
// two floats apart, and rounding errors do not fill the file. A value that is NaN or infinite fails KV_CHECK: the
// caller states a reason in .skipped.
enum class RowChoice : std::uint8_t { kAll, kUntimed };
std::string format_rows(std::span<const std::string> axes, std::span<const Row> rows,
                        RowChoice choice = RowChoice::kAll);
// Header first; columns in any order; a column that is not a standard one is an axis. Any defect throws
// UserError "<file>:<line>: ...".
RowTable parse_rows(std::string_view csv, std::string_view file);

// Rows and the text that a file has of them; the table is what the text reads back as.
struct WrittenRows {
  RowTable table{};
  std::string csv{};
};
WrittenRows written_rows(std::vector<std::string> axes, std::vector<Row> rows);

}  // namespace kv
