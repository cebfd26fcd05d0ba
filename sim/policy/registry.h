#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/policy/params.h"
#include "sim/policy/spelling.h"

namespace kv {

// Everything of one kind that registered itself by name from a static object of its source file. Entry has a `name`.
template <class Entry>
class Registry {
 public:
  // `kind` as complaints call it: "policy".
  explicit Registry(std::string_view kind) : kind_(kind) {}

  void add(Entry entry) {
    const std::string name = entry.name;
    KV_CHECK(entries_.emplace(name, std::move(entry)).second);
  }

  // Sorted by name.
  std::vector<const Entry*> all() const {
    std::vector<const Entry*> list;
    for (const auto& [name, entry] : entries_) list.push_back(&entry);
    return list;
  }

  // Throws UserError that lists the known names.
  const Entry& find(std::string_view name) const {
    const auto found = entries_.find(name);
    if (found != entries_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [other, entry] : entries_) known.push_back(other);
    throw UserError(fmt::format("unknown {} '{}'{} (expected one of: {})", kind_, shown(name),
                                did_you_mean(name, known), fmt::join(known, ", ")));
  }

 private:
  std::string kind_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// A part that is made from options. Part::kKind is what complaints call its kind.
template <class Part>
struct PartEntry {
  std::string name;
  std::string summary;  // one line, with the source
  std::function<std::unique_ptr<Part>(Params&)> make;
};

template <class Part>
Registry<PartEntry<Part>>& registry_of() {
  static Registry<PartEntry<Part>> registry(Part::kKind);
  return registry;
}

// Registers from a static object in the part's .cpp:  const RegisterPolicy registered{{.name = "h2o", …}};
template <class Part>
struct RegisterPart {
  explicit RegisterPart(PartEntry<Part> entry) { registry_of<Part>().add(std::move(entry)); }
};

// Throws UserError: unknown name (lists the known ones), unknown or ill-typed option. What was declared on the way,
// with its values, is added to `declared`, which may be null.
template <class Part>
std::unique_ptr<Part> make_part(std::string_view name, std::vector<GivenParam> options,
                                std::vector<DeclaredParam>* declared = nullptr) {
  const PartEntry<Part>& entry = registry_of<Part>().find(name);
  Params params(entry.name, std::move(options));
  std::unique_ptr<Part> part = entry.make(params);
  params.finish();
  if (declared) *declared = params.declared();
  return part;
}

// The options that its factory reads.
template <class Part>
std::vector<DeclaredParam> describe_part(std::string_view name) {
  std::vector<DeclaredParam> declared;
  make_part<Part>(name, {}, &declared);
  return declared;
}

}  // namespace kv
