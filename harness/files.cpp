#include "harness/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "sim/io/regular_file.h"

namespace kv {
namespace {

[[noreturn]] void fail_system(const std::string& action, const std::filesystem::path& path) {
  throw UserError(fmt::format("cannot {} '{}': {}", action, path.string(), std::strerror(errno)));
}

// Closes on every path; `close_checked` reports what a network file system says only then.
class File {
 public:
  File(const std::filesystem::path& path, int flags) : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  bool close_checked() { return ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

bool write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

void write_atomically(const std::filesystem::path& path, std::string_view content, std::string_view writer) {
  std::filesystem::path partial = path;
  partial += kPartialFile;
  partial += writer;
  const auto give_up = [&](const std::string& action) {
    const int reason = errno;
    ::unlink(partial.c_str());
    errno = reason;
    fail_system(action, path);
  };
  {
    File file(partial, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.get() < 0) fail_system("write", path);
    if (!write_all(file.get(), content) || ::fsync(file.get()) != 0 || !file.close_checked()) give_up("write");
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) give_up("write");
  // The rename itself must survive a power cut; a file system that cannot sync a folder is no reason to fail.
  const File folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."), O_RDONLY | O_DIRECTORY);
  if (folder.get() >= 0) ::fsync(folder.get());
}

void remove_file(const std::filesystem::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_system("remove", path);
}

std::string read_file(const std::filesystem::path& path) { return RegularFile(path).read(); }

}  // namespace kv
