#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "kernels/error.h"

namespace kv {

// Calls make(). A UserError of it that names no place gets `where`, the place of what caused it.
template <class Make>
auto at(const std::string& where, const Make& make) {
  try {
    return make();
  } catch (const UserError& error) {
    const std::string file = where.substr(0, where.find(':'));
    const std::string_view what = error.what();
    if (what.starts_with(file + ":") || what.starts_with("--set ")) throw;
    throw UserError(fmt::format("{}: {}", where, what));
  }
}

}  // namespace kv
