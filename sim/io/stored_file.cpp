#include "sim/io/stored_file.h"

#include "sim/io/mapped_file.h"

namespace kv {

std::string read_stored(const std::filesystem::path& path) { return std::string(MappedFile::open(path).text()); }

}  // namespace kv
