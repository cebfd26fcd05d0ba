#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kv {

// What a verb that takes specs changes in each of them.
struct Overrides {
  std::vector<std::string> sets;
  std::optional<std::string> device, texts_folder;

  // As parse_spec takes them: --device NAME is --set device=NAME, --data DIR is --set texts=DIR. Throws UserError where
  // both are said.
  std::vector<std::string> texts() const;
};

void add_override_options(CLI::App& verb, Overrides& overrides);

}  // namespace kv
