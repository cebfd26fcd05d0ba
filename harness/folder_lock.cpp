#include "harness/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "harness/notice.h"
#include "kernels/error.h"

namespace kv {

FolderLock::FolderLock(const std::filesystem::path& path, std::string_view by)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw UserError(fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw UserError(fmt::format("'{}' is being written by another {}", path.string(), by));
  }
  notice(fmt::format("kvlab: '{}' cannot be locked ({}); let no other run write to it", path.string(),
                     std::strerror(errno)));
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void FolderLock::sync() const { ::fsync(descriptor_); }

}  // namespace kv
