#include "tests/ref/memory_turn.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace kv::ref {

MemoryTurn::MemoryTurn() {
  // Each user's own: that of another may not be opened.
  const auto path = std::filesystem::temp_directory_path() / ("kvlab-tests-memory-" + std::to_string(getuid()));
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file_ < 0 || flock(file_, LOCK_EX) != 0) {
    throw std::system_error(errno, std::generic_category(), path.string());
  }
}

MemoryTurn::~MemoryTurn() { close(file_); }

}  // namespace kv::ref
