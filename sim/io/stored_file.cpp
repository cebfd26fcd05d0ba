#include "sim/io/stored_file.h"

#include "sim/io/mapped_file.h"
#include "sim/io/xz.h"

namespace kv {

std::filesystem::path packed_file(std::filesystem::path path) { return path += ".xz"; }

std::filesystem::path stored_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path packed = packed_file(path);
  return !std::filesystem::exists(path, error) && std::filesystem::exists(packed, error) ? packed : path;
}

std::string read_stored(const std::filesystem::path& path) {
  const std::filesystem::path stored = stored_file(path);
  const MappedFile file = MappedFile::open(stored);
  return stored == path ? std::string(file.text()) : unxz(file.text(), stored.string());
}

}  // namespace kv
