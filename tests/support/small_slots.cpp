#include "tests/support/small_slots.h"

#include <map>

#include "sim/policy/policy.h"

namespace kv::ref {

namespace {

SlotChoice of_size(const std::string& name, const std::vector<DeclaredParam>& declared,
                   const std::map<std::string, std::string>& small) {
  SlotChoice choice{name};
  for (const DeclaredParam& option : declared) {
    const auto found = small.find(option.key);
    if (found != small.end()) choice.options.push_back({found->first, found->second, ""});
  }
  return choice;
}

template <class Entry>
std::vector<std::string> names_of(const std::vector<const Entry*>& entries, const std::string& empty) {
  std::vector<std::string> names;
  for (const Entry* entry : entries) {
    if (entry->name != empty) names.push_back(entry->name);
  }
  return names;
}

}  // namespace

SlotChoice small_admission(const std::string& name) {
  return of_size(name, describe_admission(name), {{"sinks", "2"}, {"window", "16"}, {"tau", "0.5"}});
}

SlotChoice small_selection(const std::string& name) {
  return of_size(name, describe_selection(name), {{"pages", "2"}});
}

std::vector<std::string> filling_admissions() { return names_of(admissions(), "none"); }
std::vector<std::string> filling_selections() { return names_of(selections(), "all"); }

}  // namespace kv::ref
