#pragma once

#include <string_view>

namespace kv {

// What this binary was built from; the manifest of a run quotes it. The definition is generated at every build by
// cmake/build_info.cmake.
struct BuildInfo {
  std::string_view commit;  // 40 hexadecimal digits, or "unknown" where the sources are not a git checkout
  bool dirty;               // the code (not results, specs or data) differed from the commit
  // SHA-256 of the sources that rows depend on (cmake/row_sources.cmake says which), and of those of them that rows on
  // the CPU do.
  std::string_view sources, cpu_sources;
  std::string_view compiler;    // name and version, "GNU 12.2.0"
  std::string_view flags;       // every compile flag, in order
  std::string_view build_type;  // "Release"
  std::string_view libraries;   // "fmt 9.1.0, yaml-cpp 0.7.0, ..."
};

const BuildInfo& build_info();

}  // namespace kv
