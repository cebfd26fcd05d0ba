#include "harness/journal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "harness/files.h"
#include "harness/host_name.h"
#include "kernels/error.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "unit ";

// The line before a unit's rows: "unit <key> <seconds> <checksum of the rows>".
struct Header {
  std::string_view key;
  double seconds = 0;
  std::string_view digest;
};

std::string_view next_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::optional<Header> parse_header(std::string_view line) {
  if (!line.starts_with(kMark)) return std::nullopt;
  line.remove_prefix(kMark.size());
  Header header;
  header.key = next_word(line);
  const std::string_view seconds = next_word(line);
  header.digest = line;
  const auto [end, error] = std::from_chars(seconds.data(), seconds.data() + seconds.size(), header.seconds);
  const bool good = error == std::errc() && end == seconds.data() + seconds.size() && header.seconds >= 0;
  return good ? std::optional(header) : std::nullopt;
}

// What a unit's file says, if it is whole and of that key.
std::optional<FinishedUnit> parse_unit(std::string_view content, const std::string& key,
                                       const std::vector<std::string>& axes) {
  const size_t end = content.find('\n');
  if (end == content.npos) return std::nullopt;
  const std::optional<Header> header = parse_header(content.substr(0, end));
  const std::string csv(content.substr(end + 1));
  if (!header || header->key != key || sha256_hex(csv) != header->digest) return std::nullopt;
  RowTable table = parse_rows(csv, key);
  if (table.axes != axes) return std::nullopt;
  return FinishedUnit{std::move(table.rows), header->seconds};
}

// This process, among those of all machines.
std::string writer() { return fmt::format("-{}-{}", host_name(), ::getpid()); }

}  // namespace

Journal::Journal(const fs::path& out, const std::string& code)
    : all_(out / "units"), folder_(all_ / code.substr(0, 16)) {}

void Journal::forget() const {
  std::error_code error;
  fs::remove_all(all_, error);
  if (error) throw UserError(fmt::format("cannot remove '{}': {}", all_.string(), error.message()));
}

void Journal::tidy() const {
  std::error_code error;
  std::vector<fs::path> left;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_, error)) {
    if (file.path().filename().string().find(kPartialFile) != std::string::npos) left.push_back(file.path());
  }
  for (const fs::path& file : left) fs::remove(file, error);  // what stays does no harm
}

std::optional<FinishedUnit> Journal::find(const std::string& key, const std::vector<std::string>& axes) const {
  std::error_code error;
  if (!fs::exists(folder_ / key, error)) return std::nullopt;
  try {
    return parse_unit(read_file(folder_ / key), key, axes);
  } catch (const UserError&) {
    return std::nullopt;  // whatever is wrong with it, the unit is run again
  }
}

FinishedUnit Journal::store(const std::string& key, const std::vector<std::string>& axes,
                            const FinishedUnit& unit) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  const std::string csv = format_rows(axes, unit.rows);
  write_atomically(folder_ / key,
                   fmt::format("{}{} {} {}\n{}", kMark, key, shortest(unit.seconds), sha256_hex(csv), csv), writer());
  FinishedUnit written = unit;
  written.rows = parse_rows(csv, key).rows;
  return written;
}

}  // namespace kv
