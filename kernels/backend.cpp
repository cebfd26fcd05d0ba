#include "kernels/backend.h"

#include <map>
#include <string>

#include "kernels/error.h"

namespace kv {

namespace {

#ifdef NDEBUG
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

std::map<std::string, BackendFactory, std::less<>>& factories() {
  static std::map<std::string, BackendFactory, std::less<>> map;
  return map;
}

}  // namespace

Backend::Backend() : checks_every_op_(kDebugBuild) {}

bool register_backend(std::string_view name, BackendFactory factory) {
  return factories().emplace(std::string(name), factory).second;
}

std::unique_ptr<Backend> make_backend(std::string_view name) {
  const auto found = factories().find(name);
  if (found != factories().end()) return found->second();
  std::string known;
  for (const auto& [other, factory] : factories()) known += (known.empty() ? "" : ", ") + other;
  throw UserError("device '" + std::string(name) + "' is not in this build (expected one of: " + known + ")");
}

}  // namespace kv
