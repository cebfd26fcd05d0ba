#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace kv {

// A whole file mapped read-only; the bytes live as long as the object and do not move with it. A file that is missing,
// unreadable, not a regular file or empty throws UserError. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace kv
