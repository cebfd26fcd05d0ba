#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "harness/rows.h"

namespace kv {

// The rows of a result on disk: DIR/rows.csv, or DIR/columns.csv.xz where they are packed. Packed they lie column by
// column, a line of the CSV text each, since what a column holds is alike: 0.4 of the bytes of the same rows as they
// are.

// Where the rows of `rows_csv` (DIR/rows.csv) would lie packed.
std::filesystem::path packed_rows(const std::filesystem::path& rows_csv);

// Where they lie: `rows_csv`, or packed where that is missing. `rows_csv` if both are there: then packing was cut
// short, or the packed ones are older.
std::filesystem::path stored_rows(const std::filesystem::path& rows_csv);

// write_atomically (harness/files.h); removes packed rows, which are older.
void write_rows_atomically(const std::filesystem::path& rows_csv, std::span<const std::string> axes,
                           std::span<const Row> rows);
void write_rows_atomically(const std::filesystem::path& rows_csv, std::string_view csv);
// Reads stored_rows(rows_csv). UserError names that file, and of a row that is wrong its line in rows.csv.
RowTable read_rows(const std::filesystem::path& rows_csv);

// Replaces rows.csv by packed rows, in that order, so that the rows are on disk throughout; unpack_rows goes back to
// the same bytes of what kvlab wrote. A folder whose rows lie that way already is left alone; UserError where it has
// none, where they cannot be read, or where they are more than kUnpackLimit bytes.
void pack_rows(const std::filesystem::path& dir);
void unpack_rows(const std::filesystem::path& dir);

// A CSV text with its columns as lines, fields as they stand; twice gives the text back. Every line, the last one too,
// ends with "\n". UserError names `file` where a line has another number of fields than the first.
std::string transpose_csv(std::string_view csv, std::string_view file);

}  // namespace kv
