#include "tests/ref/memory_turn.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>

#include "kernels/check.h"

namespace kv::ref {

MemoryTurn::MemoryTurn() {
  const auto path = std::filesystem::temp_directory_path() / "kvlab-tests-memory-turn";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  KV_CHECK(file_ >= 0);
  KV_CHECK(flock(file_, LOCK_EX) == 0);
}

MemoryTurn::~MemoryTurn() { close(file_); }

}  // namespace kv::ref
