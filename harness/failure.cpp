#include "harness/failure.h"

#include <filesystem>
#include <new>

#include "kernels/error.h"

namespace kv {

Failure failure_of(const std::exception& error) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return {2, file->path1().string() + ": " + file->code().message()};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return {1, "out of memory; try a smaller batch, fewer tokens or fewer metrics"};
  }
  return {dynamic_cast<const UserError*>(&error) ? 2 : 1, error.what()};
}

}  // namespace kv
