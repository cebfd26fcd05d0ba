#include "sim/io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/error.h"

namespace kv {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw UserError(fmt::format("{}: cannot read: {}", path.string(), std::generic_category().message(error)));
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path, errno);
  struct stat info {};
  const int stat_error = ::fstat(file, &info) == 0 ? 0 : errno;
  const bool regular = stat_error == 0 && S_ISREG(info.st_mode);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = MAP_FAILED;
  int map_error = 0;
  if (regular && size > 0) {
    address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (address == MAP_FAILED) map_error = errno;
  }
  ::close(file);  // the mapping outlives the descriptor
  if (stat_error != 0) fail(path, stat_error);
  if (!regular) throw UserError(fmt::format("{}: cannot read: not a regular file", path.string()));
  if (size == 0) throw UserError(fmt::format("{}: the file is empty", path.string()));
  if (map_error != 0) fail(path, map_error);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace kv
