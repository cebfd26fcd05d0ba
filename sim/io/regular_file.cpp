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
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(errno);
  struct stat info {};
  const int error = ::fstat(descriptor_, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(info.st_mode)) {
    size_ = static_cast<std::size_t>(info.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) fail(error);
  throw UserError(fmt::format("{}: cannot read: not a regular file", path.string()));
}

RegularFile::~RegularFile() { ::close(descriptor_); }

std::string RegularFile::read() const {
  std::string content;
  content.reserve(size_);
  std::array<char, 1 << 14> buffer;
  while (true) {
    const ssize_t size = ::pread(descriptor_, buffer.data(), buffer.size(), static_cast<off_t>(content.size()));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail(errno);
    if (size == 0) return content;
    content.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

void RegularFile::fail(int error) const {
  throw UserError(fmt::format("{}: cannot read: {}", path_.string(), std::generic_category().message(error)));
}

}  // namespace kv
