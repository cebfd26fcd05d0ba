#include "tests/support/packed_tensors.h"

#include <string>

#include "sim/io/xz.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv::ref {

// The file stays mapped when its folder is gone.
SafetensorsFile open_packed(std::string_view path) {
  const std::string packed = source_path(std::string(path) + ".xz");
  const test::TempFolder folder;
  test::write_file(folder / "tensors", unxz(test::read_file(packed), packed));
  return SafetensorsFile::open(folder / "tensors");
}

}  // namespace kv::ref
