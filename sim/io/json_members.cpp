#include "sim/io/json_members.h"

#include <utility>

#include "kernels/error.h"
#include "sim/io/strict_json.h"

namespace kv {

namespace {

constexpr double kMostNumber = 1e9;

}  // namespace

JsonMembers::JsonMembers(const Json& object, std::string_view owner, std::string name)
    : owner_(owner), name_(std::move(name)) {
  if (!object.is_object()) refuse(name_, object, "an object");
  left_ = object;
}

JsonMembers::Json JsonMembers::take(const std::string& key) {
  const auto found = left_.find(key);
  if (found == left_.end()) throw UserError(fmt::format("{}: lacks {}", owner_, path(key)));
  Json value = std::move(*found);
  left_.erase(found);
  return value;
}

JsonMembers JsonMembers::object(const std::string& key) { return {take(key), owner_, path(key)}; }

std::string JsonMembers::text(const std::string& key) {
  const Json value = take(key);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) refuse(path(key), value, "a text");
  return value;
}

double JsonMembers::number(const std::string& key, double least) { return number(take(key), path(key), least); }

std::vector<double> JsonMembers::numbers(const std::string& key, size_t count) {
  const Json value = take(key);
  if (!value.is_array() || value.size() != count) refuse(path(key), value, fmt::format("a list of {} numbers", count));
  std::vector<double> numbers;
  for (const Json& element : value) numbers.push_back(number(element, path(key), 0));
  return numbers;
}

void JsonMembers::finish() const {
  if (left_.empty()) return;
  throw UserError(fmt::format("{}: unknown key {}", owner_, in_quotes(path(left_.begin().key()))));
}

void JsonMembers::refuse(const std::string& where, const Json& value, std::string_view expected) const {
  throw UserError(fmt::format("{}: {} is {}, expected {}", owner_, where.empty() ? "the whole" : where,
                              shown_json(value), expected));
}

double JsonMembers::number(const Json& value, const std::string& where, double least) const {
  if (value.is_number() && value >= least && value <= kMostNumber) return value.get<double>();
  refuse(where, value, fmt::format("a number, at least {}", least));
}

}  // namespace kv
