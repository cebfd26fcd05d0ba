#include "sim/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "sim/io/regular_file.h"
#include "sim/io/stored_path.h"
#include "sim/io/xz.h"

namespace kv {
namespace {

// A mapping as signal handlers find it: without a lock. `end` is 0 in a free place.
struct Mapping {
  std::atomic<bool> taken = false;
  std::atomic<std::uintptr_t> begin = 0, end = 0;
  std::atomic<const char*> path = nullptr;
};

constinit std::array<Mapping, 1024> mappings{};

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

void enter(std::span<const std::byte> bytes, const std::string& path) {
  for (Mapping& mapping : mappings) {
    if (mapping.taken.exchange(true)) continue;
    mapping.path = path.c_str();
    mapping.begin = number_of(bytes.data());
    mapping.end = number_of(bytes.data()) + bytes.size();
    return;
  }
}

void leave(std::span<const std::byte> bytes) {
  for (Mapping& mapping : mappings) {
    if (mapping.end == 0 || mapping.begin != number_of(bytes.data())) continue;
    mapping.end = 0;
    mapping.taken = false;
    return;
  }
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& path) {
  if (const std::filesystem::path stored = stored_file(path); stored != path) return unpacked(stored);
  const RegularFile file(path);  // the mapping outlives it
  if (file.size() == 0) throw UserError(fmt::format("{}: the file is empty", path.string()));
  void* const address = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) file.fail(errno);
  return {{static_cast<const std::byte*>(address), file.size()}, std::make_unique<const std::string>(path.string())};
}

MappedFile MappedFile::unpacked(const std::filesystem::path& path) {
  const std::string content = unxz(open(path).text(), path.string());
  if (content.empty()) throw UserError(fmt::format("{}: the file is empty", path.string()));
  void* const address = ::mmap(nullptr, content.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw UserError(fmt::format("{}: no memory to unpack it", path.string()));
  std::memcpy(address, content.data(), content.size());
  return {{static_cast<const std::byte*>(address), content.size()}, std::make_unique<const std::string>(path.string())};
}

MappedFile::MappedFile(std::span<const std::byte> bytes, std::unique_ptr<const std::string> path)
    : bytes_(bytes), path_(std::move(path)) {
  enter(bytes_, *path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  leave(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

const char* mapped_file_at(const void* address) {
  for (const Mapping& mapping : mappings) {
    if (number_of(address) >= mapping.begin && number_of(address) < mapping.end) return mapping.path;
  }
  return nullptr;
}

}  // namespace kv
