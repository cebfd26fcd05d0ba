#include "harness/spec/yaml_document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "kernels/error.h"
#include "sim/policy/spelling.h"

namespace kv {
namespace {

constexpr int kMaxDepth = 32;
constexpr int kMaxValues = 100000;

template <class T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Notes where a document holds something.
class FirstValue final : public YAML::EventHandler {
 public:
  const std::optional<YAML::Mark>& mark() const { return mark_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { note(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override { note(mark); }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    note(mark);
  }
  void OnMapEnd() override {}

 private:
  void note(const YAML::Mark& mark) {
    if (!mark_) mark_ = mark;
  }

  std::optional<YAML::Mark> mark_;
};

// Empty ones may follow the first document. The parser finds a next one without end in some texts that are no YAML
// (those that begin with a comma), so it is asked a few times only.
void refuse_second_document(const std::string& yaml, const std::string& file) {
  constexpr int kMostDocuments = 16;
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  FirstValue first, other;
  if (!parser.HandleNextDocument(first)) return;
  for (int i = 1; i < kMostDocuments && !other.mark(); ++i) {
    if (!parser.HandleNextDocument(other)) return;
  }
  if (!other.mark()) return;
  throw UserError(fmt::format("{}:{}:{}: a second document begins here, expected one", file, other.mark()->line + 1,
                              other.mark()->column + 1));
}

YAML::Node load(std::string_view yaml, const std::string& file) {
  try {
    const std::string text(yaml);
    refuse_second_document(text, file);
    return YAML::Load(text);
  } catch (const YAML::Exception& error) {
    throw UserError(fmt::format("{}:{}:{}: {}", file, error.mark.line + 1, error.mark.column + 1, error.msg));
  }
}

// What a path may call an entry of a list.
std::vector<std::string> names_of(const YAML::Node& item) {
  if (item.IsScalar()) return {item.Scalar()};
  std::vector<std::string> names;
  for (const char* key : {"name", "label", "task", "policy", "metric"}) {
    const YAML::Node value = item.IsMap() ? item[key] : YAML::Node(YAML::NodeType::Undefined);
    if (value.IsDefined() && value.IsScalar()) names.push_back(value.Scalar());
  }
  return names;
}

// A number is an index; a word the entry with that name.
size_t index_of_entry(const YAML::Node& list, const std::string& entry, const std::string& origin) {
  size_t index = 0;
  const bool is_number = parse(entry, index);
  if (is_number && index < list.size()) return index;
  std::vector<std::string> known;
  for (index = 0; !is_number && index < list.size(); ++index) {
    const std::vector<std::string> names = names_of(list[index]);
    if (std::find(names.begin(), names.end(), entry) != names.end()) return index;
    known.insert(known.end(), names.begin(), names.end());
  }
  throw UserError(fmt::format("{}: no entry '{}' in that list of {}{}", origin, shown(entry), list.size(),
                              did_you_mean(entry, known)));
}

std::vector<std::string> split_path(std::string_view text, const std::string& origin) {
  std::vector<std::string> path;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    path.emplace_back(text.substr(begin, end - begin));
    if (path.back().empty()) throw UserError(origin + ": an empty name in the path, expected key=value");
    begin = end + 1;
  }
  return path;
}

bool has_key(const YAML::Node& map, const std::string& key) { return map.IsMap() && map[key].IsDefined(); }

}  // namespace

std::string value_text(const YAML::Node& node) {
  if (node.IsScalar()) return shown(node.Scalar());
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a map";
  return "nothing";
}

YamlDocument::YamlDocument(std::string_view yaml, std::string file, std::span<const std::string> overrides)
    : file_(std::move(file)), root_(load(yaml, file_)) {
  if (!root_.IsMap()) throw UserError(fmt::format("{}:1:1: expected a map of keys and values", file_));
  int values = 0;
  check(root_, "", 0, values);
  apply(overrides);
}

void YamlDocument::apply(std::span<const std::string> overrides) {
  for (const std::string& text : overrides) apply(text);
}

void YamlDocument::inherit(const YamlDocument& base, const std::string& link) {
  root_.remove(link);
  const YAML::Node& reading = root_;
  for (const auto& entry : base.root_) {
    const std::string& key = entry.first.Scalar();
    if (reading[key].IsDefined()) continue;
    root_[key] = entry.second;
    remember_key(root_, key, base.where(entry.first));
    remember_inherited(entry.second, base);
  }
}

std::string YamlDocument::where(const YAML::Node& node) const {
  const YAML::Mark mark = node.Mark();
  const auto [begin, end] = elsewhere_.equal_range(mark.pos);
  for (auto entry = begin; entry != end; ++entry) {
    const auto& [other, origin] = entry->second;
    if (node.IsDefined() && node.is(other)) return origin;
  }
  if (mark.is_null()) return file_;
  return fmt::format("{}:{}:{}", file_, mark.line + 1, mark.column + 1);
}

void YamlDocument::fail(const YAML::Node& node, std::string_view message) const {
  throw UserError(fmt::format("{}: {}", where(node), message));
}

void YamlDocument::check(const YAML::Node& node, const std::string& origin, int depth, int& values) const {
  const auto refuse = [&](const YAML::Node& place, const std::string& message) {
    throw UserError(fmt::format("{}: {}", origin.empty() ? where(place) : origin, message));
  };
  if (depth > kMaxDepth) refuse(node, fmt::format("nested deeper than {} levels", kMaxDepth));
  if (++values > kMaxValues) refuse(node, fmt::format("more than {} values", kMaxValues));
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) check(item, origin, depth + 1, values);
  }
  if (!node.IsMap()) return;
  std::set<std::string> keys;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar()) {
      refuse(entry.first, fmt::format("a key is {}, expected a word", value_text(entry.first)));
    }
    const std::string& key = entry.first.Scalar();
    if (!keys.insert(key).second) refuse(entry.first, fmt::format("the key '{}' appears twice", shown(key)));
    check(entry.second, origin, depth + 1, values);
  }
}

void YamlDocument::note(const YAML::Node& node, const std::string& origin) {
  elsewhere_.emplace(node.Mark().pos, std::pair(node, origin));
}

void YamlDocument::remember_inherited(const YAML::Node& node, const YamlDocument& base) {
  note(node, base.where(node));
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) remember_inherited(item, base);
  } else if (node.IsMap()) {
    for (const auto& entry : node) {
      note(entry.first, base.where(entry.first));
      remember_inherited(entry.second, base);
    }
  }
}

void YamlDocument::remember(const YAML::Node& node, const std::string& origin) {
  note(node, origin);
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) remember(item, origin);
  } else if (node.IsMap()) {
    for (const auto& entry : node) {
      note(entry.first, origin);
      remember(entry.second, origin);
    }
  }
}

void YamlDocument::apply(const std::string& override_text) {
  const std::string origin = "--set " + shown(override_text);
  const size_t equals = override_text.find('=');
  if (equals == 0 || equals == override_text.npos) throw UserError(origin + ": expected key=value");
  const YAML::Node value = load(std::string_view(override_text).substr(equals + 1), origin);
  int values = 0;
  check(value, origin, 0, values);
  remember(value, origin);
  const std::vector<std::string> path = split_path(std::string_view(override_text).substr(0, equals), origin);

  // yaml-cpp nodes are handles and `=` writes through them, so the walk re-seats its handle with reset().
  YAML::Node node = root_;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool last = i + 1 == path.size();
    if (node.IsSequence()) {
      const size_t index = index_of_entry(node, path[i], origin);
      if (last) {
        node[index] = value;
      } else {
        node.reset(entered_item(node[index], path.front(), origin));
      }
    } else if (node.IsMap() || node.IsNull()) {
      const std::string rest =
          fmt::format("{}", fmt::join(path.begin() + static_cast<std::ptrdiff_t>(i), path.end(), "."));
      // The name of an axis may have dots of its own (harness/spec/axis_owners.h).
      const bool names_axis = i == 1 && path.front() == "axes" && !has_key(node, path[i]);
      if (last || has_key(node, rest) || names_axis) {
        node[rest] = value;
        remember_key(node, rest, origin);
        return;
      }
      node.reset(entered(node, path[i], origin));
    } else {
      throw UserError(
          fmt::format("{}: '{}' is a single value, it has no '{}'", origin, shown(path[i - 1]), shown(path[i])));
    }
  }
}

void YamlDocument::remember_key(const YAML::Node& map, const std::string& key, const std::string& origin) {
  for (const auto& entry : map) {
    if (entry.first.IsScalar() && entry.first.Scalar() == key) note(entry.first, origin);
  }
}

// The value of a key that a path goes through; a map where there was none.
YAML::Node YamlDocument::entered(YAML::Node map, const std::string& key, const std::string& origin) {
  const YAML::Node& reading = map;
  const bool absent = !reading[key].IsDefined();
  if (absent) map[key] = YAML::Node(YAML::NodeType::Map);
  YAML::Node value = map[key];
  if (absent) {
    note(value, origin);
    remember_key(map, key, origin);
  }
  return value;
}

// An entry of the spec's list `list` that a path goes through. One given by its name alone, such as `- h2o`, becomes a
// map.
YAML::Node YamlDocument::entered_item(YAML::Node item, const std::string& list, const std::string& origin) {
  if (!item.IsScalar()) return item;
  const std::string name = item.Scalar();
  item = YAML::Node(YAML::NodeType::Map);
  item[list == "policies" ? "policy" : list == "metrics" ? "metric" : "task"] = name;
  remember(item, origin);
  return item;
}

}  // namespace kv
