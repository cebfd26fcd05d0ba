#include "harness/journal.h"

#include <fmt/format.h>

#include "kernels/error.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDigestLength = 64;
constexpr size_t kProbeBytes = size_t{1} << 20;  // about what the rows of a large run take

}  // namespace

Journal::Journal(const fs::path& out) : folder_(out / "cases") {
  std::error_code error;
  const bool existed = fs::exists(out, error);
  fs::create_directories(folder_, error);
  if (error) throw UserError(fmt::format("cannot create '{}': {}", folder_.string(), error.message()));
  const fs::path probe = folder_ / "probe";
  try {
    write_atomically(probe, std::string(kProbeBytes, '\n'));
  } catch (const UserError&) {
    fs::remove(folder_, error);  // not if cases of an earlier start lie there
    if (!existed) fs::remove(out, error);
    throw;
  }
  fs::remove(probe, error);
}

fs::path Journal::file_of(const std::string& key) const { return folder_ / (key + ".csv"); }

void Journal::forget() const {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) fs::remove(entry.path(), error);
}

std::optional<std::vector<Row>> Journal::find(const std::string& key, const std::vector<std::string>& axes) const {
  std::error_code error;
  if (!fs::exists(file_of(key), error)) return std::nullopt;
  try {
    const std::string content = read_file(file_of(key));
    if (content.size() <= kDigestLength || content[kDigestLength] != '\n') return std::nullopt;
    const std::string_view csv = std::string_view(content).substr(kDigestLength + 1);
    if (sha256_hex(csv) != std::string_view(content).substr(0, kDigestLength)) return std::nullopt;
    RowTable table = parse_rows(csv, file_of(key).string());
    if (table.axes != axes) return std::nullopt;
    return std::move(table.rows);
  } catch (const UserError&) {
    return std::nullopt;  // whatever is wrong with it, the case is run again
  }
}

void Journal::store(const std::string& key, const std::vector<std::string>& axes, const std::vector<Row>& rows) const {
  const std::string csv = format_rows(axes, rows);
  write_atomically(file_of(key), sha256_hex(csv) + "\n" + csv);
}

void Journal::remove() const {
  std::error_code error;
  fs::remove_all(folder_, error);
}

}  // namespace kv
