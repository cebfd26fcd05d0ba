#include "sim/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "kernels/error.h"
#include "sim/io/regular_file.h"

namespace kv {

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const RegularFile file(path);  // the mapping outlives it
  if (file.size() == 0) throw UserError(fmt::format("{}: the file is empty", path.string()));
  void* const address = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) file.fail(errno);
  return MappedFile({static_cast<const std::byte*>(address), file.size()});
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
