#include "harness/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "harness/host_name.h"
#include "harness/notice.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kHolder = ".held-by";

// Empty where it cannot be read: it only helps to say who.
std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& path, std::string_view by)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), holder_(path / kHolder) {
  if (descriptor_ < 0) throw UserError(fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  const bool is_locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    const std::string holder = text_of(holder_);
    throw UserError(
        fmt::format("'{}' is being written by {}another {}", path.string(), holder.empty() ? "" : holder + ", ", by));
  }
  if (!is_locked) {
    notice(fmt::format("kvlab: '{}' cannot be locked ({}); let no other run write to it", path.string(),
                       std::strerror(errno)));
  }
  note_holder();
}

FolderLock::~FolderLock() {
  std::error_code error;
  std::filesystem::remove(holder_, error);
  ::close(descriptor_);
}

void FolderLock::note_holder() const {
  const std::string place = " on " + host_name(), before = text_of(holder_);
  if (!before.empty() && !before.ends_with(place)) {
    notice(fmt::format("kvlab: {} has not said that it ended; if it has not, let it end first", before));
  }
  std::ofstream(holder_) << fmt::format("process {}{}", ::getpid(), place);
}

void FolderLock::sync() const { ::fsync(descriptor_); }

}  // namespace kv
