#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace kv {

// A regular file opened for reading, closed with the object. One that is missing, may not be read, or is something else
// (a folder, a device without an end, a pipe that nobody writes to) throws UserError "<path>: cannot read: <reason>",
// at once: opening never waits.
class RegularFile {
 public:
  explicit RegularFile(const std::filesystem::path& path);
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;
  ~RegularFile();

  int descriptor() const { return descriptor_; }
  std::size_t size() const { return size_; }
  // From the first byte on; the file may be empty.
  std::string read() const;
  // UserError "<path>: cannot read: <the system's reason for `error`>".
  [[noreturn]] void fail(int error) const;

 private:
  std::filesystem::path path_;
  int descriptor_;
  std::size_t size_ = 0;
};

}  // namespace kv
