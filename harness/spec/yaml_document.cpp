#include "harness/spec/yaml_document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "kernels/error.h"

namespace kv {
namespace {

constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 100000;

// User text inside an error: one line, of bounded length.
std::string shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 60)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > 60 ? out + "..." : out;
}

std::string value_text(const YAML::Node& node) {
  if (node.IsScalar()) return shown(node.Scalar());
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a map";
  return "nothing";
}

template <class T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

YAML::Node load(std::string_view yaml, const std::string& file) {
  try {
    return YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    throw UserError(fmt::format("{}:{}:{}: {}", file, error.mark.line + 1, error.mark.column + 1, error.msg));
  }
}

YAML::Node entry_named(const YAML::Node& list, const std::string& name) {
  for (const YAML::Node& item : list) {
    if (item.IsScalar() && item.Scalar() == name) return item;
    if (!item.IsMap()) continue;
    for (const char* key : {"name", "label", "task", "policy", "metric"}) {
      const YAML::Node value = item[key];
      if (value.IsDefined() && value.IsScalar() && value.Scalar() == name) return item;
    }
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

// Optimal string alignment: two swapped neighbours, the commonest slip of the fingers, count as one.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  if (word.size() > 60) return best;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

YamlDocument::YamlDocument(std::string_view yaml, std::string file, std::span<const std::string> overrides)
    : file_(std::move(file)), root_(load(yaml, file_)) {
  if (!root_.IsMap()) throw UserError(fmt::format("{}:1:1: expected a map of keys and values", file_));
  int values = 0;
  check(root_, 0, values);
  for (const std::string& text : overrides) apply(text);
}

std::string YamlDocument::where(const YAML::Node& node) const {
  for (const auto& [other, origin] : overridden_) {
    if (node.IsDefined() && node.is(other)) return origin;
  }
  const YAML::Mark mark = node.Mark();
  if (mark.is_null()) return file_;
  return fmt::format("{}:{}:{}", file_, mark.line + 1, mark.column + 1);
}

bool YamlDocument::overridden(std::string_view top_level_key) const {
  return std::find(overridden_keys_.begin(), overridden_keys_.end(), top_level_key) != overridden_keys_.end();
}

void YamlDocument::fail(const YAML::Node& node, std::string_view message) const {
  throw UserError(fmt::format("{}: {}", where(node), message));
}

void YamlDocument::check(const YAML::Node& node, int depth, int& values) const {
  if (depth > kMaxDepth) fail(node, fmt::format("nested deeper than {} levels", kMaxDepth));
  if (++values > kMaxValues) fail(node, fmt::format("more than {} values", kMaxValues));
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) check(item, depth + 1, values);
  }
  if (!node.IsMap()) return;
  std::vector<std::string> keys;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar())
      fail(entry.first, fmt::format("a key is {}, expected a word", value_text(entry.first)));
    keys.push_back(entry.first.Scalar());
    if (std::count(keys.begin(), keys.end(), keys.back()) > 1) {
      fail(entry.first, fmt::format("the key '{}' appears twice", shown(keys.back())));
    }
    check(entry.second, depth + 1, values);
  }
}

void YamlDocument::remember(const YAML::Node& node, const std::string& origin) {
  overridden_.emplace_back(node, origin);
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) remember(item, origin);
  } else if (node.IsMap()) {
    for (const auto& entry : node) {
      overridden_.emplace_back(entry.first, origin);
      remember(entry.second, origin);
    }
  }
}

void YamlDocument::apply(const std::string& override_text) {
  const std::string origin = "--set " + shown(override_text);
  const size_t equals = override_text.find('=');
  if (equals == 0 || equals == override_text.npos) throw UserError(origin + ": expected key=value");
  YAML::Node value = load(std::string_view(override_text).substr(equals + 1), origin);
  int values = 0;
  remember(value, origin);
  check(value, 0, values);

  std::vector<std::string> path;
  for (size_t at = 0; at <= equals;) {
    const size_t end = std::min(override_text.find('.', at), equals);
    path.push_back(override_text.substr(at, end - at));
    if (path.back().empty()) throw UserError(origin + ": an empty name in the path, expected key=value");
    at = end + 1;
  }
  overridden_keys_.push_back(path.front());

  // yaml-cpp nodes are handles and `=` writes through them, so the walk re-seats its handle with reset().
  YAML::Node node = root_;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool last = i + 1 == path.size();
    if (node.IsSequence()) {
      size_t index = 0;
      YAML::Node item(YAML::NodeType::Undefined);
      if (!parse(path[i], index)) {
        item.reset(entry_named(node, path[i]));
      } else if (index < node.size()) {
        item.reset(node[index]);
      }
      if (!item.IsDefined()) {
        throw UserError(fmt::format("{}: no entry '{}' in that list of {}", origin, path[i], node.size()));
      }
      // An entry given by its name alone, such as `- h2o`, becomes a map before an option is set on it.
      if (!last && item.IsScalar()) {
        const std::string name = item.Scalar();
        const char* key = path[0] == "policies" ? "policy" : path[0] == "metrics" ? "metric" : "task";
        item = YAML::Node(YAML::NodeType::Map);
        item[key] = name;
        remember(item, origin);
      }
      if (last) {
        for (size_t k = 0; k < node.size(); ++k) {
          if (node[k].is(item)) node[k] = value;
        }
        return;
      }
      node.reset(item);
    } else if (node.IsMap() || node.IsNull()) {
      if (last) {
        node[path[i]] = value;
        return;
      }
      const YAML::Node& reading = node;
      if (!reading[path[i]].IsDefined()) node[path[i]] = YAML::Node(YAML::NodeType::Map);
      node.reset(node[path[i]]);
    } else {
      throw UserError(fmt::format("{}: '{}' is a single value, it has no '{}'", origin, path[i - 1], path[i]));
    }
  }
}

MapReader::MapReader(const YamlDocument& document, const YAML::Node& node, std::string owner)
    : document_(document), node_(node), owner_(std::move(owner)) {
  if (!node_.IsMap()) {
    document_.fail(node_, fmt::format("{}expected a map of keys and values, got {}", prefix(), value_text(node_)));
  }
}

bool MapReader::has(const std::string& key) const { return node_[key].IsDefined(); }

YAML::Node MapReader::find(const std::string& key) {
  known_.push_back(key);
  return node_[key];
}

std::string MapReader::where(const std::string& key) const {
  const YAML::Node value = node_[key];
  return document_.where(value.IsDefined() ? value : node_);
}

void MapReader::fail(const std::string& key, std::string_view message) const {
  const YAML::Node value = node_[key];
  document_.fail(value, fmt::format("{}{} = {}: {}", prefix(), key, value_text(value), message));
}

void MapReader::fail_here(std::string_view message) const {
  document_.fail(node_, fmt::format("{}{}", prefix(), message));
}

std::string MapReader::text(const std::string& key, std::string_view fallback) {
  const YAML::Node value = find(key);
  if (!value.IsDefined()) return std::string(fallback);
  if (!value.IsScalar() || value.Scalar().empty()) fail(key, "expected a text");
  return value.Scalar();
}

int MapReader::integer(const std::string& key, int fallback, int low) {
  const YAML::Node value = find(key);
  if (!value.IsDefined()) return fallback;
  int number = 0;
  if (!value.IsScalar() || !parse(value.Scalar(), number) || number < low) {
    fail(key, fmt::format("expected an integer of at least {}", low));
  }
  return number;
}

uint64_t MapReader::seed(const std::string& key, uint64_t fallback) {
  const YAML::Node value = find(key);
  if (!value.IsDefined()) return fallback;
  int64_t number = 0;
  if (!value.IsScalar() || !parse(value.Scalar(), number) || number < 0) {
    fail(key, "expected an integer from 0 to 9223372036854775807");
  }
  return static_cast<uint64_t>(number);
}

std::string MapReader::word(const std::string& key, std::string_view fallback,
                            std::initializer_list<std::string_view> choices) {
  const YAML::Node value = find(key);
  if (!value.IsDefined()) return std::string(fallback);
  std::string text = value.IsScalar() ? value.Scalar() : "";
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    fail(key, fmt::format("expected {}", fmt::join(choices, " or ")));
  }
  return text;
}

std::vector<GivenParam> MapReader::rest() {
  std::vector<GivenParam> options;
  for (const auto& entry : node_) {
    const std::string& key = entry.first.Scalar();
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    known_.push_back(key);
    if (!entry.second.IsScalar()) fail(key, "expected a single value");
    options.push_back({.key = key, .text = entry.second.Scalar(), .where = document_.where(entry.second)});
  }
  return options;
}

void MapReader::finish() const {
  for (const auto& entry : node_) {
    const std::string& key = entry.first.Scalar();
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string close = nearest(key, known_);
    const std::string hint = close.empty() ? "" : fmt::format(", did you mean '{}'?", close);
    // A key that --set added has no place of its own; its value has.
    const YAML::Node& at = entry.first.Mark().is_null() ? entry.second : entry.first;
    document_.fail(at, fmt::format("{}unknown key '{}'{} (expected one of: {})", prefix(), shown(key), hint,
                                   fmt::join(known_, ", ")));
  }
}

}  // namespace kv
