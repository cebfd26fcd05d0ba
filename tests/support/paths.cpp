#include "tests/support/paths.h"

#include <cstdlib>

namespace kv::ref {

namespace {

std::string from_environment(const char* variable, const char* built_in) {
  const char* value = std::getenv(variable);
  return value ? value : built_in;
}

}  // namespace

std::string source_path(std::string_view relative) {
  return from_environment("KV_SOURCE_DIR", KV_SOURCE_DIR) + "/" + std::string(relative);
}

std::string binary_path() { return from_environment("KV_BINARY", KV_BINARY); }

}  // namespace kv::ref
