#include "harness/rows_file.h"

#include <fmt/format.h>

#include <vector>

#include "harness/files.h"
#include "kernels/error.h"
#include "sim/io/mapped_file.h"
#include "sim/io/xz.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// The end of the field that begins at `begin`: of the comma or the line end after it.
std::size_t field_end(std::string_view csv, std::size_t begin) {
  std::size_t end = begin;
  if (end < csv.size() && csv[end] == '"') {
    // A doubled quote closes the field and opens it again.
    for (bool inside = true; ++end < csv.size() && (inside || csv[end] == '"');) inside = inside != (csv[end] == '"');
  }
  return std::min(csv.find_first_of(",\n", end), csv.size());
}

std::vector<std::vector<std::string_view>> split_csv(std::string_view csv, std::string_view file) {
  std::vector<std::vector<std::string_view>> lines;
  for (std::size_t begin = 0; begin < csv.size();) {
    std::vector<std::string_view> fields;
    if (!lines.empty()) fields.reserve(lines[0].size());
    for (bool goes_on = true; goes_on;) {
      const std::size_t end = field_end(csv, begin);
      fields.push_back(csv.substr(begin, end - begin));
      goes_on = end < csv.size() && csv[end] == ',';
      begin = end + 1;
    }
    lines.push_back(std::move(fields));
    if (lines.back().size() == lines[0].size()) continue;
    throw UserError(fmt::format("{}:{}: {} fields, expected {} as in the first line", file, lines.size(),
                                lines.back().size(), lines[0].size()));
  }
  return lines;
}

}  // namespace

fs::path packed_rows(const fs::path& rows_csv) { return rows_csv.parent_path() / "columns.csv.xz"; }

fs::path stored_rows(const fs::path& rows_csv) {
  std::error_code error;
  const fs::path packed = packed_rows(rows_csv);
  return !fs::exists(rows_csv, error) && fs::exists(packed, error) ? packed : rows_csv;
}

void write_rows_atomically(const fs::path& rows_csv, std::span<const std::string> axes, std::span<const Row> rows) {
  write_atomically(rows_csv, format_rows(axes, rows));
  remove_file(packed_rows(rows_csv));
}

RowTable read_rows(const fs::path& rows_csv) {
  const fs::path stored = stored_rows(rows_csv);
  const MappedFile file = MappedFile::open(stored);
  if (stored == rows_csv) return parse_rows(file.text(), stored.string());
  return parse_rows(transpose_csv(unxz(file.text(), stored.string()), stored.string()), stored.string());
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
  const std::vector<std::vector<std::string_view>> lines = split_csv(csv, file);
  std::string transposed;
  transposed.reserve(csv.size());
  for (std::size_t column = 0; !lines.empty() && column < lines[0].size(); ++column) {
    for (const std::vector<std::string_view>& fields : lines) (transposed += fields[column]) += ',';
    transposed.back() = '\n';
  }
  return transposed;
}

}  // namespace kv
