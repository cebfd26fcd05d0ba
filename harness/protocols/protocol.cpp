#include "harness/protocols/protocol.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/policy/largest_count.h"

namespace kv {
namespace {

std::map<std::string, Protocol, std::less<>>& registry() {
  static std::map<std::string, Protocol, std::less<>> map;
  return map;
}

template <class T>
T number_of(const GivenParam& param, T low, T high, std::string_view expected) {
  T value{};
  const auto [end, error] = std::from_chars(param.text.data(), param.text.data() + param.text.size(), value);
  if (error == std::errc() && end == param.text.data() + param.text.size() && value >= low && value <= high) {
    return value;
  }
  throw UserError(fmt::format("{}: axes: {} = {}: expected {}", param.where, param.key, param.text, expected));
}

}  // namespace

const ProtocolAxis* Protocol::find_axis(std::string_view axis) const {
  const auto found =
      std::find_if(axes.begin(), axes.end(), [&](const ProtocolAxis& known) { return known.name == axis; });
  return found == axes.end() ? nullptr : &*found;
}

std::vector<std::string> Protocol::axis_names() const {
  std::vector<std::string> names;
  for (const ProtocolAxis& axis : axes) names.push_back(axis.name);
  return names;
}

std::vector<DeclaredParam> ProtocolKey::options() const {
  Params params(name);
  read(params);
  return params.declared();
}

const ProtocolKey* Protocol::find_key_of_axis(std::string_view axis) const {
  for (const ProtocolKey& key : keys) {
    if (!key.as_axes) continue;
    for (const DeclaredParam& option : key.options()) {
      if (option.key == axis) return &key;
    }
  }
  return nullptr;
}

RegisterProtocol::RegisterProtocol(Protocol protocol) {
  const std::string name = protocol.name;
  KV_CHECK(!protocol.open || protocol.samples_repeat || protocol.memory);
  KV_CHECK(registry().emplace(name, std::move(protocol)).second);
}

std::vector<const Protocol*> protocols() {
  std::vector<const Protocol*> all;
  for (const auto& [name, protocol] : registry()) all.push_back(&protocol);
  return all;
}

const Protocol* find_protocol(std::string_view name) {
  const auto found = registry().find(name);
  return found == registry().end() ? nullptr : &found->second;
}

const Protocol& default_protocol() {
  const auto found =
      std::find_if(registry().begin(), registry().end(), [](const auto& entry) { return entry.second.is_default; });
  KV_CHECK(found != registry().end());
  return found->second;
}

ProtocolAxis token_axis(std::string name, std::string help) {
  return {.name = std::move(name), .help = std::move(help), .check = [](const GivenParam& param) {
            number_of_tokens(param);
          }};
}

ProtocolAxis fraction_axis(std::string name, std::string help) {
  return {.name = std::move(name), .help = std::move(help), .check = [](const GivenParam& param) { fraction(param); }};
}

ProtocolAxis word_axis(std::string name, std::vector<std::string> words, std::string help) {
  const auto check = [words = std::move(words)](const GivenParam& param) {
    if (std::find(words.begin(), words.end(), param.text) != words.end()) return;
    throw UserError(
        fmt::format("{}: axes: {} = {}: expected {}", param.where, param.key, param.text, fmt::join(words, " or ")));
  };
  return {.name = std::move(name), .help = std::move(help), .check = check};
}

ProtocolAxis budget_axis() { return token_axis("budget", "entries that a head keeps at an event, on average"); }

ProtocolAxis interval_axis() { return token_axis("interval", "tokens from one event to the next"); }

ProtocolAxis cutting(ProtocolAxis axis) {
  axis.cuts = true;
  return axis;
}

int whole_number(const GivenParam& param, int low, int high, std::string_view expected) {
  return number_of(param, low, high, expected);
}

int number_of_tokens(const GivenParam& param) {
  return whole_number(param, 1, kLargestCount, fmt::format("a number of tokens, 1 to {}", kLargestCount));
}

double fraction(const GivenParam& param) { return number_of(param, 1e-6, 1.0, "a fraction above 0 and at most 1"); }

}  // namespace kv
