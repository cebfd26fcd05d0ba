#pragma once

#include <yaml-cpp/yaml.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/spec/yaml_document.h"
#include "sim/policy/params.h"

namespace kv {

// The words that a key accepts, and what each means.
template <class Value>
using Words = std::vector<std::pair<std::string_view, Value>>;

// Both ends are accepted.
struct IntegerRange {
  int low = 0;
  int high = std::numeric_limits<int>::max();
};

// A word that stands where an integer may, and the integer that it becomes.
struct WordForInteger {
  std::string_view word;
  int value = 0;
};

// Reads one map of a document. Each accessor states its key, default and meaning once: declared() is what `kvlab
// describe` prints, and finish() refuses every other key, with the nearest declared one. A value that is no such thing
// throws UserError "<place>: <owner>: <key> = <value>: expected …".
class MapReader {
 public:
  MapReader(const YamlDocument& document, const YAML::Node& node, std::string owner);

  // A reader of no map: every key is absent, none is missed, and declared() lists what a map could have.
  static MapReader blank();

  bool has(const std::string& key) const;
  // Any value, undefined where the key is absent; `type` says in words what its owner expects of it.
  YAML::Node find(const std::string& key, std::string_view type, std::string_view help);
  YAML::Node require(const std::string& key, std::string_view type, std::string_view help);
  std::string text(const std::string& key, std::string_view fallback, std::string_view help);
  std::string required_text(const std::string& key, std::string_view help);
  int integer(const std::string& key, int fallback, IntegerRange range, std::string_view help);
  std::optional<int> integer(const std::string& key, IntegerRange range, std::string_view help);
  // The word is the default.
  int integer_or_word(const std::string& key, WordForInteger word, IntegerRange range, std::string_view help);
  uint64_t seed(const std::string& key, uint64_t fallback, std::string_view help);
  bool flag(const std::string& key, bool fallback, std::string_view help);
  // A value stands for a list of one; empty where the key is absent.
  std::vector<std::string> list(const std::string& key, std::string_view help);
  std::optional<double> number(const std::string& key, std::string_view help);  // finite
  // [low, high] with low < high.
  std::optional<std::array<double, 2>> range(const std::string& key, std::string_view help);
  template <class Value>
  Value word(const std::string& key, const Value& fallback, const Words<Value>& words, std::string_view help);
  template <class Value>
  Value required_word(const std::string& key, const Words<Value>& words, std::string_view help);

  // Every key with its value as errors show it, and the place of that.
  std::vector<GivenParam> written() const;
  // What no accessor read, as options for a policy, metric or task; nothing is left for finish().
  std::vector<GivenParam> options();
  void finish() const;

  const std::vector<DeclaredParam>& declared() const { return declared_; }
  const YamlDocument& document() const { return *document_; }
  const YAML::Node& node() const { return node_; }
  const std::string& owner() const { return owner_; }
  void rename(std::string owner) { owner_ = std::move(owner); }

  std::string where() const { return document_->where(node_); }
  std::string where(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, std::string_view message) const;
  [[noreturn]] void fail_at(const YAML::Node& value, const std::string& key, std::string_view message) const;
  [[noreturn]] void fail_here(std::string_view message) const;

  std::string scalar(const YAML::Node& value, const std::string& key) const;
  std::vector<std::string> scalars(const YAML::Node& value, const std::string& key) const;

 private:
  MapReader();

  [[noreturn]] void refuse_unknown(const YAML::Node& key, const std::vector<std::string>& known) const;
  int integer_of(const std::string& key, IntegerRange range, std::string_view alternative = "") const;
  std::string prefix() const { return owner_.empty() ? "" : owner_ + ": "; }
  YAML::Node value_of(const std::string& key) const { return node_[key]; }
  bool has_declared(const std::string& key) const;
  void declare(const std::string& key, std::string_view type, std::string fallback, std::string_view help);
  void declare_word(const std::string& key, const std::vector<std::string>& words, std::string fallback,
                    std::string_view help);
  template <class Value>
  static std::vector<std::string> names_of(const Words<Value>& words) {
    std::vector<std::string> names;
    for (const auto& [name, meaning] : words) names.emplace_back(name);
    return names;
  }
  // The index of the value among the words; −1 where the key is absent.
  int index_of_word(const std::string& key, const std::vector<std::string>& words) const;

  const YamlDocument* document_;
  const YAML::Node node_;  // const: reading a missing key must not add it
  std::string owner_;
  bool blank_ = false;
  std::vector<DeclaredParam> declared_;
};

// The keys of one kind of map, for `kvlab describe`.
struct KeySection {
  std::string title{};
  std::vector<DeclaredParam> keys{};
};

bool is_given(const YAML::Node& node);  // neither absent nor null
// The items of a list; a single value stands for a list of one, and nothing for none.
std::vector<YAML::Node> items_of(const YAML::Node& node);

template <class Value>
Value MapReader::word(const std::string& key, const Value& fallback, const Words<Value>& words, std::string_view help) {
  std::string fallback_name = "none";
  for (const auto& [name, meaning] : words) {
    if (meaning == fallback && fallback_name == "none") fallback_name = name;
  }
  const std::vector<std::string> names = names_of(words);
  declare_word(key, names, fallback_name, help);
  const int index = index_of_word(key, names);
  return index < 0 ? fallback : words[static_cast<size_t>(index)].second;
}

template <class Value>
Value MapReader::required_word(const std::string& key, const Words<Value>& words, std::string_view help) {
  const std::vector<std::string> names = names_of(words);
  declare_word(key, names, "required", help);
  require(key, "", help);
  const int index = index_of_word(key, names);
  return words[static_cast<size_t>(index < 0 ? 0 : index)].second;
}

}  // namespace kv
