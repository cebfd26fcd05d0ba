#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kv {

// A whole file mapped read-only; the bytes live as long as the object and do not move with it. Where a file is missing
// but lies packed beside (sim/io/stored_path.h), they are what it unpacks to. A file that is missing, unreadable, not a
// regular file or empty throws UserError. Where the file is shortened while it is mapped, reading
// what it lost is a SIGBUS: mapped_file_at tells a handler which file that was.
class MappedFile {
 public:
  static MappedFile open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  static MappedFile unpacked(const std::filesystem::path& path);
  MappedFile(std::span<const std::byte> bytes, std::unique_ptr<const std::string> path);

  std::span<const std::byte> bytes_;
  std::unique_ptr<const std::string> path_;  // at a place of its own, for mapped_file_at
};

// The path of the file whose mapping holds `address`; nullptr where there is none, or where over a thousand files are
// mapped. May be called in a signal handler.
const char* mapped_file_at(const void* address);

}  // namespace kv
