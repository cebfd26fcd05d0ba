#include "sim/policy/params.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "kernels/error.h"
#include "sim/io/stored_file.h"
#include "sim/policy/spelling.h"

namespace kv {

namespace {

template <class T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Params::Params(std::string owner, std::vector<GivenParam> given) : owner_(std::move(owner)), given_(std::move(given)) {}

const GivenParam* Params::find(std::string_view key) const {
  const auto found = std::find_if(given_.begin(), given_.end(), [&](const GivenParam& p) { return p.key == key; });
  return found == given_.end() ? nullptr : &*found;
}

void Params::declare(std::string_view key, std::string_view type, std::string fallback, std::string_view help,
                     std::string value) {
  declared_.push_back({.key = std::string(key),
                       .type = std::string(type),
                       .fallback = std::move(fallback),
                       .help = std::string(help),
                       .value = std::move(value)});
}

void Params::declare(const std::vector<DeclaredParam>& others) {
  declared_.insert(declared_.end(), others.begin(), others.end());
}

bool Params::has(std::string_view key) const { return find(key) != nullptr; }

int Params::get(std::string_view key, int fallback, std::string_view help) {
  int value = fallback;
  if (const GivenParam* given = find(key); given && !parse(given->text, value)) fail(key, "expected an integer");
  declare(key, "integer", fmt::format("{}", fallback), help, fmt::format("{}", value));
  return value;
}

double Params::get(std::string_view key, double fallback, std::string_view help) {
  double value = fallback;
  const GivenParam* given = find(key);
  if (given && (!parse(given->text, value) || !std::isfinite(value))) fail(key, "expected a finite number");
  if (value == 0) value = 0;  // −0 is 0
  declare(key, "number", fmt::format("{}", fallback), help, fmt::format("{}", value));
  return value;
}

std::string Params::get(std::string_view key, std::string_view fallback,
                        std::initializer_list<std::string_view> choices, std::string_view help) {
  const std::string accepted = fmt::format("{}", fmt::join(choices, " | "));
  const GivenParam* given = find(key);
  if (given && std::find(choices.begin(), choices.end(), given->text) == choices.end()) {
    fail(key, fmt::format("expected {}", accepted));
  }
  std::string value = given ? given->text : std::string(fallback);
  declare(key, accepted, std::string(fallback), help, value);
  return value;
}

std::string Params::text(std::string_view key, std::string_view help) {
  const GivenParam* given = find(key);
  declare(key, "text", "none", help, given ? given->text : "none");
  return given ? given->text : "";
}

std::string Params::file(std::string_view key, std::string_view help) {
  const GivenParam* given = find(key);
  std::error_code error;
  if (given && !std::filesystem::is_regular_file(stored_file(given->text), error)) fail(key, "no such file");
  declare(key, "file", "none", help, given ? given->text : "none");
  return given ? given->text : "";
}

void Params::finish() const {
  for (const GivenParam& given : given_) {
    const bool known = std::any_of(declared_.begin(), declared_.end(),
                                   [&](const DeclaredParam& declared) { return declared.key == given.key; });
    if (known) continue;
    std::vector<std::string> keys;
    for (const DeclaredParam& declared : declared_) keys.push_back(declared.key);
    fail(given.key, keys.empty() ? "unknown option (there are none)"
                                 : fmt::format("unknown option{} (expected one of: {})", did_you_mean(given.key, keys),
                                               fmt::join(keys, ", ")));
  }
}

void Params::fail(std::string_view key, std::string_view message) const {
  const GivenParam* given = find(key);
  const std::string where = given && !given->where.empty() ? given->where + ": " : "";
  const std::string value = given ? fmt::format(" = {}", given->text) : "";
  throw UserError(fmt::format("{}{}: {}{}: {}", where, owner_, key, value, message));
}

}  // namespace kv
