#include "harness/rows.h"

#include <csv.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr std::array<std::string_view, 15> kStandardColumns = {"experiment", "model", "data",  "policy", "device",
                                                               "sample",     "seed",  "layer", "head",   "x",
                                                               "metric",     "value", "unit",  "text",   "skipped"};

constexpr std::size_t kLongestLine = std::size_t{1} << 24;  // bytes
constexpr std::size_t kPieceRows = 4096;                    // that a thread formats

void append_field(std::string& out, std::string_view field) {
  // Readers that trim unquoted blanks exist, so a field that starts or ends with one is quoted too.
  const bool quote = field.find_first_of(",\"\r\n") != field.npos ||
                     (!field.empty() &&
                      (field.front() == ' ' || field.front() == '\t' || field.back() == ' ' || field.back() == '\t'));
  if (!quote) {
    out += field;
    return;
  }
  out += '"';
  for (const char c : field) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

template <typename Int>
std::string to_text(const std::optional<Int>& number) {
  return number ? std::to_string(*number) : std::string();
}

std::string to_text(const std::optional<double>& number) { return number ? shortest(*number) : std::string(); }

// Counts exactly; of anything else nine digits, as many as tell two floats apart. More would be rounding errors, which
// take half the space of a packed file. What is read back is written alike.
double rounded(double value) {
  KV_CHECK(std::isfinite(value));
  if (value == std::trunc(value)) return value;
  std::array<char, 32> buffer;
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::general, 9);
  KV_CHECK(error == std::errc());
  double rounded = 0;
  std::from_chars(buffer.data(), end, rounded);
  return rounded;
}

std::string header_line(std::span<const std::string> axes) {
  std::string out;
  for (const std::string_view column : kStandardColumns) {
    if (!out.empty()) out += ',';
    out += column;
  }
  for (const std::string& axis : axes) append_field(out += ',', axis);
  return out += '\n';
}

void append_row(std::string& out, const Row& row) {
  append_field(out, row.experiment);
  for (const std::string* field : {&row.model, &row.data, &row.policy, &row.device}) append_field(out += ',', *field);
  for (const auto& number : {row.sample, row.seed}) (out += ',') += to_text(number);
  for (const auto& number : {row.layer, row.head}) (out += ',') += to_text(number);
  (out += ',') += to_text(row.x);
  append_field(out += ',', row.metric);
  (out += ',') += row.value ? shortest(rounded(*row.value)) : std::string();
  for (const std::string* field : {&row.unit, &row.text, &row.skipped}) append_field(out += ',', *field);
  for (const std::string& axis : row.axes) append_field(out += ',', axis);
  out += '\n';
}

struct Record {
  std::vector<std::string> fields;
  int line = 0;
};

struct Reader {
  int line = 0;         // being fed
  int record_line = 0;  // where the current record began
  Record current;
  std::vector<Record> finished;
};

void on_field(void* data, std::size_t size, void* context) {
  auto& reader = *static_cast<Reader*>(context);
  if (reader.current.fields.empty()) reader.current.line = reader.record_line;
  reader.current.fields.emplace_back(static_cast<const char*>(data), size);
}

void on_record(int, void* context) {
  auto& reader = *static_cast<Reader*>(context);
  reader.finished.push_back(std::move(reader.current));
  reader.current = {};
}

[[noreturn]] void fail(std::string_view file, int line, const std::string& what) {
  throw UserError(fmt::format("{}:{}: {}", file, line, what));
}

// User text inside an error: one line, of bounded length.
std::string shown_start(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > 40 ? out + "..." : out;
}

struct Parser {
  csv_parser parser;
  Parser() {
    KV_CHECK(csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) == 0);
    csv_set_space_func(&parser, [](unsigned char) { return 0; });  // RFC 4180: blanks are part of a field
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { csv_free(&parser); }
};

// Splits a whole line at its commas. False, and nothing done, where a quote or a carriage return inside it may mean
// more than that.
bool split_plain(std::string_view line, Record& record) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.find('"') != line.npos || line.find('\r') != line.npos) return false;
  std::size_t count = 0;
  for (bool more = !line.empty(); more; ++count) {
    if (count == record.fields.size()) record.fields.emplace_back();
    const std::size_t comma = line.find(',');
    more = comma != line.npos;
    record.fields[count].assign(line.substr(0, comma));
    line.remove_prefix(more ? comma + 1 : line.size());
  }
  record.fields.resize(count);
  return true;
}

// Calls `use` for every record. Fed a physical line at a time, so that every error knows its line; of those that commas
// alone divide, which are nearly all, the parser sees nothing.
void for_each_record(std::string_view csv, std::string_view file, const std::function<void(const Record&)>& use) {
  Parser parser;
  Reader reader;
  const auto drain = [&] {
    for (const Record& record : reader.finished) use(record);
    reader.finished.clear();
  };
  Record plain;
  bool inside = false;  // a record, whose quoted field goes on over the end of the line
  while (!csv.empty()) {
    ++reader.line;
    if (!inside) reader.record_line = reader.line;
    const std::size_t end = csv.find('\n');
    const std::string_view line = csv.substr(0, end == csv.npos ? csv.size() : end + 1);
    if (line.size() > kLongestLine) fail(file, reader.line, fmt::format("a line of over {} bytes", kLongestLine));
    csv.remove_prefix(line.size());
    if (!inside && split_plain(line, plain)) {
      plain.line = reader.line;
      if (!plain.fields.empty()) use(plain);
      continue;
    }
    if (csv_parse(&parser.parser, line.data(), line.size(), on_field, on_record, &reader) != line.size()) {
      fail(file, reader.line, "a quote inside a field, expected RFC 4180 (quote the field and double the quote)");
    }
    inside = parser.parser.pstate != 0;  // no record has begun
    drain();
  }
  if (csv_fini(&parser.parser, on_field, on_record, &reader) != 0) {
    fail(file, reader.record_line, "a quoted field is never closed, expected RFC 4180");
  }
  drain();
}

using Setter = std::function<void(Row&, const std::string&, int line)>;

template <typename Int>
Setter integer_setter(std::optional<Int> Row::*member, std::string_view column, std::string_view file) {
  return [=](Row& row, const std::string& text, int line) {
    if (text.empty()) return;
    Int number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) {
      fail(file, line, fmt::format("{} '{}', expected an integer or nothing", column, shown_start(text)));
    }
    row.*member = number;
  };
}

Setter number_setter(std::optional<double> Row::*member, std::string_view column, std::string_view file) {
  return [=](Row& row, const std::string& text, int line) {
    if (text.empty()) return;
    row.*member = parse_number(text);
    if (!(row.*member)) fail(file, line, fmt::format("{} '{}', expected a finite number", column, shown_start(text)));
  };
}

Setter text_setter(std::string Row::*member) {
  return [=](Row& row, const std::string& text, int) { row.*member = text; };
}

Setter standard_setter(std::string_view column, std::string_view file) {
  if (column == "experiment") return text_setter(&Row::experiment);
  if (column == "model") return text_setter(&Row::model);
  if (column == "data") return text_setter(&Row::data);
  if (column == "policy") return text_setter(&Row::policy);
  if (column == "device") return text_setter(&Row::device);
  if (column == "sample") return integer_setter(&Row::sample, column, file);
  if (column == "seed") return integer_setter(&Row::seed, column, file);
  if (column == "layer") return integer_setter(&Row::layer, column, file);
  if (column == "head") return integer_setter(&Row::head, column, file);
  if (column == "x") return number_setter(&Row::x, column, file);
  if (column == "metric") return text_setter(&Row::metric);
  if (column == "value") return number_setter(&Row::value, column, file);
  if (column == "unit") return text_setter(&Row::unit);
  if (column == "text") return text_setter(&Row::text);
  KV_CHECK(column == "skipped");
  return text_setter(&Row::skipped);
}

std::vector<Setter> read_header(const Record& header, std::string_view file, RowTable& table) {
  std::vector<Setter> setters;
  std::set<std::string_view> seen;
  for (const std::string& name : header.fields) {
    if (name.empty()) fail(file, header.line, "a column without a name, expected a header line");
    if (!seen.insert(name).second) fail(file, header.line, fmt::format("column '{}' appears twice", shown_start(name)));
    const auto standard = std::find(kStandardColumns.begin(), kStandardColumns.end(), name);
    if (standard != kStandardColumns.end()) {
      setters.push_back(standard_setter(*standard, file));
      continue;
    }
    const std::size_t axis = table.axes.size();
    table.axes.push_back(name);
    setters.push_back([axis](Row& row, const std::string& text, int) { row.axes[axis] = text; });
  }
  for (const std::string_view column : kStandardColumns) {
    if (!seen.contains(column)) fail(file, header.line, fmt::format("the header lacks the column '{}'", column));
  }
  return setters;
}

}  // namespace

bool is_timing(std::string_view metric) {
  return metric.ends_with("_time") || metric.ends_with("_throughput") || metric == "max_batch" ||
         metric == "batch_size" || metric == "peak_bytes";
}

std::span<const std::string_view> standard_columns() { return kStandardColumns; }

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string shortest(double value) {
  KV_CHECK(std::isfinite(value));
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  KV_CHECK(error == std::errc());
  return {buffer.data(), end};
}

std::string quote_csv(std::string_view field) {
  std::string out;
  append_field(out, field);
  return out;
}

std::string format_rows(std::span<const std::string> axes, std::span<const Row> rows, RowChoice choice) {
  const std::size_t pieces = (rows.size() + kPieceRows - 1) / kPieceRows;
  std::vector<std::string> texts(pieces + 1);
  texts[0] = header_line(axes);
  cpu::parallel_for(static_cast<std::int64_t>(pieces), [&](std::int64_t piece) {
    const auto first = static_cast<std::size_t>(piece) * kPieceRows;
    std::string& text = texts[static_cast<std::size_t>(piece) + 1];
    for (const Row& row : rows.subspan(first, std::min(kPieceRows, rows.size() - first))) {
      KV_CHECK(row.axes.size() == axes.size());
      if (choice == RowChoice::kAll || !is_timing(row.metric)) append_row(text, row);
    }
  });
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  std::string out;
  out.reserve(bytes);
  for (const std::string& text : texts) out += text;
  return out;
}

WrittenRows written_rows(std::vector<std::string> axes, std::vector<Row> rows) {
  WrittenRows written{.table = {.axes = std::move(axes), .rows = std::move(rows)}};
  written.csv = format_rows(written.table.axes, written.table.rows);
  cpu::parallel_for(std::ssize(written.table.rows), [&](std::int64_t i) {
    std::optional<double>& value = written.table.rows[static_cast<std::size_t>(i)].value;
    if (value) value = rounded(*value);
  });
  return written;
}

RowTable parse_rows(std::string_view csv, std::string_view file) {
  RowTable table;
  std::vector<Setter> setters;
  for_each_record(csv, file, [&](const Record& record) {
    if (setters.empty()) {
      setters = read_header(record, file, table);
      return;
    }
    if (record.fields.size() != setters.size()) {
      fail(file, record.line,
           fmt::format("{} fields, expected {} as in the header", record.fields.size(), setters.size()));
    }
    Row row;
    row.axes.resize(table.axes.size());
    for (std::size_t i = 0; i < setters.size(); ++i) setters[i](row, record.fields[i], record.line);
    table.rows.push_back(std::move(row));
  });
  if (setters.empty()) fail(file, 1, "empty, expected a header line");
  return table;
}

}  // namespace kv
