#include "harness/shipped.h"

#include "sim/io/stored_file.h"

namespace kv {

namespace fs = std::filesystem;

fs::path find_shipped(const fs::path& relative, const fs::path& from) {
  std::error_code error;
  for (fs::path folder : {fs::absolute(from.empty() ? "." : from, error), fs::current_path(error),
                          fs::read_symlink("/proc/self/exe", error).parent_path()}) {
    for (; !folder.empty(); folder = folder.parent_path()) {
      if (fs::exists(stored_file(folder / relative), error)) return folder / relative;
      if (folder == folder.parent_path()) break;
    }
  }
  return {};
}

}  // namespace kv
