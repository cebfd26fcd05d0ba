#include "harness/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "harness/files.h"
#include "kernels/error.h"
#include "sim/io/hash.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "unit ";
constexpr size_t kDigestLength = 64;

// The line before a unit's rows: "unit <key> <seconds> <bytes> <checksum of the rows>".
struct Header {
  std::string_view key;
  double seconds = 0;
  int64_t bytes = 0;
  std::string_view digest;
};

std::string_view next_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<Header> parse_header(std::string_view line) {
  if (!line.starts_with(kMark)) return std::nullopt;
  line.remove_prefix(kMark.size());
  Header header;
  header.key = next_word(line);
  const std::string_view seconds = next_word(line), bytes = next_word(line);
  header.digest = line;
  const bool good = header.key.size() == kDigestLength && parse(seconds, header.seconds) && header.seconds >= 0 &&
                    parse(bytes, header.bytes) && header.bytes >= 0 && header.digest.size() == kDigestLength;
  return good ? std::optional(header) : std::nullopt;
}

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

[[noreturn]] void fail(std::string_view action, const fs::path& path) {
  throw UserError(fmt::format("cannot {} '{}': {}", action, path.string(), std::strerror(errno)));
}

}  // namespace

Journal::Journal(const fs::path& out, const std::string& code)
    : folder_(out / "units"), file_(folder_ / (code.substr(0, 16) + ".units")) {
  std::error_code error;
  if (!fs::exists(file_, error)) return;
  open(0);
  index();
}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Journal::open(int flags) {
  descriptor_ = ::open(file_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | flags, 0644);
  if (descriptor_ < 0) fail("open", file_);
}

// Finds where each unit is. After what is no unit, the next line that begins like one is the next.
void Journal::index() {
  const std::string content = read_file(file_);
  size_ = std::ssize(content);
  torn_ = !content.empty() && content.back() != '\n';
  size_t at = 0;
  while (at < content.size()) {
    const size_t end = content.find('\n', at);
    if (end == content.npos) break;
    const std::optional<Header> header = parse_header(std::string_view(content).substr(at, end - at));
    const size_t rows = end + 1;
    if (header && static_cast<size_t>(header->bytes) <= content.size() - rows) {
      entries_[std::string(header->key)] = {static_cast<int64_t>(rows), header->bytes, header->seconds,
                                            std::string(header->digest)};
      const size_t next = rows + static_cast<size_t>(header->bytes);
      if (next == content.size() || content.compare(next, kMark.size(), kMark) == 0) {
        at = next;
        continue;
      }
    }
    const size_t found = content.find(fmt::format("\n{}", kMark), at);
    at = found == content.npos ? content.size() : found + 1;
  }
}

void Journal::forget() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  size_ = 0;
  torn_ = false;
  entries_.clear();
  std::error_code error;
  fs::remove_all(folder_, error);
  if (error) throw UserError(fmt::format("cannot remove '{}': {}", folder_.string(), error.message()));
}

std::optional<FinishedUnit> Journal::find(const std::string& key, const std::vector<std::string>& axes) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : read(found->second, axes);
}

std::optional<FinishedUnit> Journal::read(const Entry& entry, const std::vector<std::string>& axes) const {
  std::string csv(static_cast<size_t>(entry.bytes), '\0');
  for (size_t done = 0; done < csv.size();) {
    const ssize_t size =
        ::pread(descriptor_, csv.data() + done, csv.size() - done, entry.offset + static_cast<int64_t>(done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return std::nullopt;
    done += static_cast<size_t>(size);
  }
  if (sha256_hex(csv) != entry.digest) return std::nullopt;
  try {
    RowTable table = parse_rows(csv, file_.string());
    if (table.axes != axes) return std::nullopt;
    return FinishedUnit{std::move(table.rows), entry.seconds};
  } catch (const UserError&) {
    return std::nullopt;  // whatever is wrong with it, the unit is run again
  }
}

FinishedUnit Journal::store(const std::string& key, const std::vector<std::string>& axes, const FinishedUnit& unit) {
  if (descriptor_ < 0) {
    std::error_code error;
    fs::create_directories(folder_, error);
    open(O_CREAT);
  }
  const std::string csv = format_rows(axes, unit.rows);
  const std::string digest = sha256_hex(csv);
  const std::string header =
      fmt::format("{}{}{} {} {} {}\n", torn_ ? "\n" : "", kMark, key, shortest(unit.seconds), csv.size(), digest);
  if (!write_all(descriptor_, header + csv) || ::fdatasync(descriptor_) != 0) {
    const int reason = errno;
    [[maybe_unused]] const int undone = ::ftruncate(descriptor_, size_);
    errno = reason;
    fail("write", file_);
  }
  const Entry entry{size_ + std::ssize(header), std::ssize(csv), unit.seconds, digest};
  size_ = entry.offset + entry.bytes;
  torn_ = false;
  entries_[key] = entry;
  FinishedUnit written = unit;
  written.rows = parse_rows(csv, file_.string()).rows;
  return written;
}

}  // namespace kv
