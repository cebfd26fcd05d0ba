#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kv {

// A YAML file whose every value knows where it was written: "file:line:column", also of another file that it takes keys
// from, or "--set key=value" for one that an override replaced. Refuses what a spec never needs and what makes parsers
// slow or wrong: syntax errors, duplicate keys, a second document, more than 32 levels, more than 100 000 values
// (aliases count every time they are used).
class YamlDocument {
 public:
  // `overrides` are "dotted.path=YAML", applied in order. A number in the path is an index into a list; a word picks
  // the list's entry with that name, label, task, policy or metric.
  YamlDocument(std::string_view yaml, std::string file, std::span<const std::string> overrides = {});

  const YAML::Node& root() const { return root_; }
  const std::string& file() const { return file_; }
  std::string where(const YAML::Node& node) const;

  [[noreturn]] void fail(const YAML::Node& node, std::string_view message) const;

  // Takes each top-level value of `base` whose key is not written here, with its place there, and drops the key `link`.
  void inherit(const YamlDocument& base, const std::string& link);
  // As the constructor's.
  void apply(std::span<const std::string> overrides);

 private:
  void apply(const std::string& override_text);
  // `origin`: the override that the node is part of; empty for the file.
  void check(const YAML::Node& node, const std::string& origin, int depth, int& values) const;
  void remember_key(const YAML::Node& map, const std::string& key, const std::string& origin);
  YAML::Node entered(YAML::Node map, const std::string& key, const std::string& origin);
  YAML::Node entered_item(YAML::Node item, const std::string& list, const std::string& origin);
  void remember(const YAML::Node& node, const std::string& origin);
  void remember_inherited(const YAML::Node& node, const YamlDocument& base);
  void note(const YAML::Node& node, const std::string& origin);

  std::string file_;
  YAML::Node root_;
  // Nodes that stand elsewhere, and where; by their position in the text that they were read from, to be found fast.
  std::multimap<int, std::pair<YAML::Node, std::string>> elsewhere_;
};

// A value as an error shows it: its text, or "a list", "a map", "nothing".
std::string value_text(const YAML::Node& node);

}  // namespace kv
