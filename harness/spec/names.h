#pragma once

#include <string>
#include <vector>

namespace kv {

// The names of a registry's entries.
template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto* entry : entries) names.push_back(entry->name);
  return names;
}

}  // namespace kv
