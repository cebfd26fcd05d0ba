#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// One object of a JSON file that may lie (sim/io/strict_json.h); every member is read once, finish() refuses the rest.
// Errors are UserErrors "<owner>: <path> is <value>, expected …", or "<owner>: lacks <path>"; `owner` must stay alive.
class JsonMembers {
 public:
  using Json = nlohmann::json;

  // name: the object's own path, empty for the whole.
  JsonMembers(const Json& object, std::string_view owner, std::string name);

  Json take(const std::string& key);
  JsonMembers object(const std::string& key);
  std::string text(const std::string& key);  // not empty
  double number(const std::string& key, double least);
  std::vector<double> numbers(const std::string& key, size_t count);  // at least 0 each
  template <class T = int>
  T count(const std::string& key, T least, T most) {
    const Json value = take(key);
    const std::string expected = fmt::format("an integer, {} to {}", least, most);
    if (!value.is_number_integer() || value < least || value > most) refuse(path(key), value, expected);
    return value.get<T>();
  }

  void finish() const;

  [[noreturn]] void refuse(const std::string& where, const Json& value, std::string_view expected) const;
  std::string path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }

 private:
  double number(const Json& value, const std::string& where, double least) const;

  std::string_view owner_;
  std::string name_;
  Json left_;
};

}  // namespace kv
