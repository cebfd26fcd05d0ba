#include "sim/io/regular_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "kernels/error.h"

namespace kv {

RegularFile::RegularFile(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail_to_read(path, errno);
  struct stat info {};
  const int error = ::fstat(descriptor_, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(info.st_mode)) {
    size_ = static_cast<std::size_t>(info.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) fail_to_read(path, error);
  throw UserError(fmt::format("{}: cannot read: not a regular file", path.string()));
}

RegularFile::~RegularFile() { ::close(descriptor_); }

void fail_to_read(const std::filesystem::path& path, int error) {
  throw UserError(fmt::format("{}: cannot read: {}", path.string(), std::generic_category().message(error)));
}

std::string read_file(const std::filesystem::path& path) {
  const RegularFile file(path);
  std::string content;
  content.reserve(file.size());
  std::array<char, 1 << 14> buffer;
  while (true) {
    const ssize_t size = ::read(file.descriptor(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail_to_read(path, errno);
    if (size == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace kv
