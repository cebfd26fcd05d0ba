#include "harness/rows_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "harness/files.h"
#include "kernels/error.h"
#include "sim/io/mapped_file.h"
#include "sim/io/xz.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Where the field that begins at `begin` ends: before a comma, a line end or the end of the text.
std::size_t field_end(std::string_view csv, std::size_t begin) {
  std::size_t end = begin;
  if (end < csv.size() && csv[end] == '"') {
    // A doubled quote closes the field and opens it again.
    for (bool inside = true; ++end < csv.size() && (inside || csv[end] == '"');) inside = inside != (csv[end] == '"');
  }
  while (end < csv.size() && csv[end] != ',' && csv[end] != '\n') ++end;  // find_first_of() asks memchr() at each byte
  return end;
}

// A line of a CSV text, of which fields are taken from the left.
struct Line {
  std::string_view rest{};
  std::size_t fields = 0;

  std::string_view take() {
    const std::string_view field = rest.substr(0, field_end(rest, 0));
    rest.remove_prefix(std::min(field.size() + 1, rest.size()));
    return field;
  }
};

Line first_line(std::string_view csv) {
  std::size_t end = field_end(csv, 0), fields = 1;
  for (; end < csv.size() && csv[end] == ','; ++fields) end = field_end(csv, end + 1);
  return {.rest = csv.substr(0, end), .fields = fields};
}

// UserError where there are more than `most` lines.
std::vector<Line> split_lines(std::string_view csv, std::string_view file, std::size_t most) {
  std::vector<Line> lines;
  while (!csv.empty()) {
    if (lines.size() == most) throw UserError(fmt::format("{}: more than {} columns", file, most));
    lines.push_back(first_line(csv));
    csv.remove_prefix(std::min(lines.back().rest.size() + 1, csv.size()));
    if (lines.back().fields == lines[0].fields) continue;
    throw UserError(fmt::format("{}: line {} has {} fields, expected {} as the first has", file, lines.size(),
                                lines.back().fields, lines[0].fields));
  }
  return lines;
}

std::string transpose(std::string_view csv, std::string_view file, std::size_t most_lines) {
  std::vector<Line> lines = split_lines(csv, file, most_lines);
  std::string transposed;
  transposed.reserve(csv.size() + 1);
  for (std::size_t column = 0; !lines.empty() && column < lines[0].fields; ++column) {
    for (Line& line : lines) (transposed += line.take()) += ',';
    transposed.back() = '\n';
  }
  return transposed;
}

// A small packed file may unpack to millions of lines; no spec has so many axes.
constexpr std::size_t kMostColumns = 1000;

std::string unpacked(std::string_view packed, const std::string& file) {
  return transpose(unxz(packed, file), file, kMostColumns);
}

}  // namespace

fs::path packed_rows(const fs::path& rows_csv) { return rows_csv.parent_path() / "columns.csv.xz"; }

fs::path stored_rows(const fs::path& rows_csv) {
  std::error_code error;
  const fs::path packed = packed_rows(rows_csv);
  return !fs::exists(rows_csv, error) && fs::exists(packed, error) ? packed : rows_csv;
}

void write_rows_atomically(const fs::path& rows_csv, std::span<const std::string> axes, std::span<const Row> rows) {
  write_rows_atomically(rows_csv, format_rows(axes, rows));
}

void write_rows_atomically(const fs::path& rows_csv, std::string_view csv) {
  write_atomically(rows_csv, csv);
  remove_file(packed_rows(rows_csv));
}

RowTable read_rows(const fs::path& rows_csv) {
  const fs::path stored = stored_rows(rows_csv);
  const MappedFile file = MappedFile::open(stored);
  if (stored == rows_csv) return parse_rows(file.text(), stored.string());
  return parse_rows(unpacked(file.text(), stored.string()), stored.string());
}

void pack_rows(const fs::path& dir) {
  const fs::path rows_csv = dir / "rows.csv";
  if (stored_rows(rows_csv) != rows_csv) return;
  const RowTable table = read_rows(rows_csv);
  const std::string content = transpose_csv(format_rows(table.axes, table.rows), rows_csv.string());
  if (content.size() > kUnpackLimit) {
    throw UserError(fmt::format("{}: over {} bytes, too much to pack", rows_csv.string(), kUnpackLimit));
  }
  write_atomically(packed_rows(rows_csv), xz(content));
  remove_file(rows_csv);
}

void unpack_rows(const fs::path& dir) {
  const fs::path rows_csv = dir / "rows.csv";
  const RowTable table = read_rows(rows_csv);
  if (stored_rows(rows_csv) != rows_csv) write_rows_atomically(rows_csv, table.axes, table.rows);
}

std::string transpose_csv(std::string_view csv, std::string_view file) {
  return transpose(csv, file, std::numeric_limits<std::size_t>::max());
}

}  // namespace kv
