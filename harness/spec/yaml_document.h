#pragma once

#include <yaml-cpp/yaml.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/policy/params.h"

namespace kv {

// A YAML file whose every value knows where it was written: "file:line:column", or "--set key=value" for one that an
// override replaced. Refuses what a spec never needs and what makes parsers slow or wrong: syntax errors, duplicate
// keys, more than 32 levels, more than 100 000 values (aliases count every time they are used).
class YamlDocument {
 public:
  // `overrides` are "dotted.path=YAML", applied in order. A number in the path is an index into a list; a word picks
  // the list's entry with that name, label, task, policy or metric.
  YamlDocument(std::string_view yaml, std::string file, std::span<const std::string> overrides = {});

  const YAML::Node& root() const { return root_; }
  const std::string& file() const { return file_; }
  std::string where(const YAML::Node& node) const;
  bool overridden(std::string_view top_level_key) const;

  [[noreturn]] void fail(const YAML::Node& node, std::string_view message) const;

 private:
  void apply(const std::string& override_text);
  void check(const YAML::Node& node, int depth, int& values) const;
  void remember(const YAML::Node& node, const std::string& origin);

  std::string file_;
  YAML::Node root_;
  std::vector<std::pair<YAML::Node, std::string>> overridden_;
  std::vector<std::string> overridden_keys_;  // their first path component
};

// Reads one map of a document. Each accessor marks its key as known; finish() refuses the others, with the nearest
// known key. Every error names place, owner, key, value and what was expected.
class MapReader {
 public:
  MapReader(const YamlDocument& document, const YAML::Node& node, std::string owner);

  YAML::Node find(const std::string& key);  // undefined where absent
  bool has(const std::string& key) const;
  std::string text(const std::string& key, std::string_view fallback = "");
  int integer(const std::string& key, int fallback, int low);
  uint64_t seed(const std::string& key, uint64_t fallback);
  std::string word(const std::string& key, std::string_view fallback, std::initializer_list<std::string_view> choices);

  // What nobody read, as options for a policy, metric or task; nothing is left for finish().
  std::vector<GivenParam> rest();
  void finish() const;

  std::string where() const { return document_.where(node_); }
  std::string where(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, std::string_view message) const;
  [[noreturn]] void fail_here(std::string_view message) const;

 private:
  std::string prefix() const { return owner_.empty() ? "" : owner_ + ": "; }

  const YamlDocument& document_;
  const YAML::Node node_;
  std::string owner_;
  std::vector<std::string> known_;
};

// The candidate with the smallest edit distance, if that is small enough to be a slip; empty otherwise.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace kv
