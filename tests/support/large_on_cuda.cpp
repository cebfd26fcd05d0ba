#include "tests/support/large_on_cuda.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "tests/support/backends.h"

namespace kv::ref {

// A turn lasts from its making, which may have to wait, to its end.
class LargeOnCuda::Turn {
 public:
  Turn() {
    // Each user's own: that of another may not be opened.
    const auto path = std::filesystem::temp_directory_path() / ("kvlab-tests-memory-" + std::to_string(getuid()));
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) {
      throw std::system_error(errno, std::generic_category(), path.string());
    }
  }
  ~Turn() { close(file_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int file_;
};

LargeOnCuda::LargeOnCuda() = default;
LargeOnCuda::~LargeOnCuda() = default;

void LargeOnCuda::take_gpu(size_t needed) {
  backend_ = try_backend("cuda");
  if (!backend_) GTEST_SKIP() << "cuda is not here";
  turn_ = std::make_unique<Turn>();
  const size_t free = backend_->memory().free;
  if (free < needed) GTEST_SKIP() << free << " bytes are free on the device, it takes " << needed;
}

}  // namespace kv::ref
