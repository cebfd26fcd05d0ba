#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/spec/spec.h"

namespace kv {

// Whether a result is what its spec would make now.
struct ResultState {
  std::vector<std::string> reasons{};  // why its rows are out of date; none: they are not
  bool page_differs = false;           // the rest of its spec (title, tables, plots, paper, verdict) is another one
};

// `spec`: the experiment as it is now, with the result's overrides. Compared are the sources that rows depend on, the
// keys of the spec that they do, and models, tokenizers, profiles and data, by what the manifest says of them.
// Compiler, flags and machine are not: a manifest only states them. UserError where an input is missing.
ResultState check_result(const std::filesystem::path& folder, const Spec& spec);

// Makes title, tables, plots, paper and verdict of `spec` the result's own and draws them: spec.yaml, and its hash in
// the manifest, are replaced. Returns the tables. UserError where a key that rows depend on differs.
std::string adopt_spec(const std::filesystem::path& folder, const Spec& spec);

}  // namespace kv
