#include "sim/io/stored_path.h"

namespace kv {

std::filesystem::path packed_file(std::filesystem::path path) { return path += ".xz"; }

std::filesystem::path stored_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path packed = packed_file(path);
  return !std::filesystem::exists(path, error) && std::filesystem::exists(packed, error) ? packed : path;
}

}  // namespace kv
