#include "harness/spec/map_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "sim/policy/spelling.h"

namespace kv {
namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

const YamlDocument& empty_document() {
  static const YamlDocument kDocument("{}", "");
  return kDocument;
}

std::vector<std::string> keys_of(const std::vector<DeclaredParam>& declared) {
  std::vector<std::string> keys;
  for (const DeclaredParam& param : declared) keys.push_back(param.key);
  return keys;
}

}  // namespace

MapReader::MapReader(const YamlDocument& document, const YAML::Node& node, std::string owner)
    : document_(&document), node_(node), owner_(std::move(owner)) {
  if (!node_.IsMap()) {
    document_->fail(node_, fmt::format("{}expected a map of keys and values, got {}", prefix(), value_text(node_)));
  }
}

MapReader::MapReader() : document_(&empty_document()), node_(empty_document().root()), blank_(true) {}

MapReader MapReader::blank() { return {}; }

bool MapReader::has(const std::string& key) const { return value_of(key).IsDefined(); }

bool MapReader::has_declared(const std::string& key) const {
  return std::any_of(declared_.begin(), declared_.end(),
                     [&](const DeclaredParam& declared) { return declared.key == key; });
}

void MapReader::declare(const std::string& key, std::string_view type, std::string fallback, std::string_view help) {
  if (has_declared(key)) return;
  declared_.push_back(
      {.key = key, .type = std::string(type), .fallback = std::move(fallback), .help = std::string(help), .value = {}});
}

YAML::Node MapReader::find(const std::string& key, std::string_view type, std::string_view help) {
  declare(key, type, "none", help);
  return value_of(key);
}

YAML::Node MapReader::require(const std::string& key, std::string_view type, std::string_view help) {
  declare(key, type, "required", help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined() && !blank_) fail_here(fmt::format("lacks the key '{}'", key));
  return value;
}

std::string MapReader::where(const std::string& key) const {
  const YAML::Node value = value_of(key);
  return document_->where(value.IsDefined() ? value : node_);
}

void MapReader::fail(const std::string& key, std::string_view message) const {
  const YAML::Node value = value_of(key);
  fail_at(value.IsDefined() ? value : node_, key, message);
}

void MapReader::fail_at(const YAML::Node& value, const std::string& key, std::string_view message) const {
  document_->fail(value, fmt::format("{}{} = {}: {}", prefix(), shown(key), value_text(value), message));
}

void MapReader::fail_here(std::string_view message) const {
  document_->fail(node_, fmt::format("{}{}", prefix(), message));
}

std::string MapReader::scalar(const YAML::Node& value, const std::string& key) const {
  if (!value.IsScalar()) fail_at(value, key, "expected a single value");
  return value.Scalar();
}

std::vector<std::string> MapReader::scalars(const YAML::Node& value, const std::string& key) const {
  if (value.IsScalar()) return {value.Scalar()};
  if (!value.IsSequence()) fail_at(value, key, "expected a value or a list of values");
  std::vector<std::string> texts;
  for (const YAML::Node& item : value) texts.push_back(scalar(item, key));
  if (texts.empty()) fail_at(value, key, "expected at least one value");
  return texts;
}

std::string MapReader::text(const std::string& key, std::string_view fallback, std::string_view help) {
  declare(key, "text", fallback.empty() ? "none" : std::string(fallback), help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined()) return std::string(fallback);
  if (!value.IsScalar() || value.Scalar().empty()) fail(key, "expected a text");
  return value.Scalar();
}

std::string MapReader::required_text(const std::string& key, std::string_view help) {
  const YAML::Node value = require(key, "text", help);
  if (!value.IsDefined()) return {};  // of a blank map
  if (!value.IsScalar() || value.Scalar().empty()) fail(key, "expected a text");
  return value.Scalar();
}

int MapReader::integer(const std::string& key, int fallback, IntegerRange range, std::string_view help) {
  declare(key, "integer", fmt::format("{}", fallback), help);
  return has(key) ? integer_of(key, range) : fallback;
}

std::optional<int> MapReader::integer(const std::string& key, IntegerRange range, std::string_view help) {
  declare(key, "integer", "none", help);
  return has(key) ? std::optional(integer_of(key, range)) : std::nullopt;
}

int MapReader::integer_or_word(const std::string& key, WordForInteger word, IntegerRange range, std::string_view help) {
  declare(key, fmt::format("integer | {}", word.word), std::string(word.word), help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined() || (value.IsScalar() && value.Scalar() == word.word)) return word.value;
  return integer_of(key, range, fmt::format("{} or ", word.word));
}

int MapReader::integer_of(const std::string& key, IntegerRange range, std::string_view alternative) const {
  const YAML::Node value = value_of(key);
  int number = 0;
  if (value.IsScalar() && parse(value.Scalar(), number) && number >= range.low && number <= range.high) return number;
  fail(key, range.high == IntegerRange{}.high
                ? fmt::format("expected {}an integer of at least {}", alternative, range.low)
                : fmt::format("expected {}an integer from {} to {}", alternative, range.low, range.high));
}

uint64_t MapReader::seed(const std::string& key, uint64_t fallback, std::string_view help) {
  declare(key, "integer", fmt::format("{}", fallback), help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined()) return fallback;
  int64_t number = 0;
  if (!value.IsScalar() || !parse(value.Scalar(), number) || number < 0) {
    fail(key, "expected an integer from 0 to 9223372036854775807");
  }
  return static_cast<uint64_t>(number);
}

bool MapReader::flag(const std::string& key, bool fallback, std::string_view help) {
  return word<bool>(key, fallback, {{"yes", true}, {"no", false}, {"true", true}, {"false", false}}, help);
}

std::vector<std::string> MapReader::list(const std::string& key, std::string_view help) {
  declare(key, "a value or a list", "none", help);
  const YAML::Node value = value_of(key);
  return value.IsDefined() ? scalars(value, key) : std::vector<std::string>{};
}

std::optional<double> MapReader::number(const std::string& key, std::string_view help) {
  declare(key, "number", "none", help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined()) return std::nullopt;
  double number = 0;
  if (!parse(scalar(value, key), number) || !std::isfinite(number)) fail(key, "expected a number");
  return number;
}

std::optional<std::array<double, 2>> MapReader::range(const std::string& key, std::string_view help) {
  declare(key, "[low, high]", "of the data", help);
  const YAML::Node value = value_of(key);
  if (!value.IsDefined()) return std::nullopt;
  const std::vector<std::string> ends = scalars(value, key);
  std::array<double, 2> numbers{};
  const bool is_pair = ends.size() == 2 && parse(ends[0], numbers[0]) && parse(ends[1], numbers[1]);
  if (!is_pair || !std::isfinite(numbers[0]) || !std::isfinite(numbers[1]) || numbers[0] >= numbers[1]) {
    fail(key, "expected [low, high] with low < high");
  }
  return numbers;
}

void MapReader::declare_word(const std::string& key, const std::vector<std::string>& words, std::string fallback,
                             std::string_view help) {
  declare(key, fmt::format("{}", fmt::join(words, " | ")), std::move(fallback), help);
}

int MapReader::index_of_word(const std::string& key, const std::vector<std::string>& words) const {
  const YAML::Node value = value_of(key);
  if (!value.IsDefined()) return -1;
  const std::string text = value.IsScalar() ? value.Scalar() : "";
  const auto found = std::find(words.begin(), words.end(), text);
  if (found == words.end()) {
    fail(key, fmt::format("expected {}{}", fmt::join(words, " or "), did_you_mean(text, words)));
  }
  return static_cast<int>(found - words.begin());
}

std::vector<GivenParam> MapReader::written() const {
  std::vector<GivenParam> keys;
  for (const auto& entry : node_) {
    keys.push_back({entry.first.Scalar(), value_text(entry.second), document_->where(entry.second)});
  }
  return keys;
}

std::vector<GivenParam> MapReader::options() {
  std::vector<GivenParam> options;
  const std::vector<std::string> known = keys_of(declared_);
  for (const auto& entry : node_) {
    const std::string& key = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (!entry.second.IsScalar()) {  // no option has such a value, one of the keys may
      if (!nearest(key, known).empty()) refuse_unknown(entry.first, known);
      fail(key, "expected a single value");
    }
    declare(key, "", "", "");
    options.push_back({.key = key, .text = entry.second.Scalar(), .where = document_->where(entry.second)});
  }
  return options;
}

void MapReader::finish() const {
  const std::vector<std::string> known = keys_of(declared_);
  for (const auto& entry : node_) {
    const std::string& key = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    refuse_unknown(entry.first, known);
  }
}

void MapReader::refuse_unknown(const YAML::Node& key, const std::vector<std::string>& known) const {
  document_->fail(key, fmt::format("{}unknown key '{}'{} (expected one of: {})", prefix(), shown(key.Scalar()),
                                   did_you_mean(key.Scalar(), known), fmt::join(known, ", ")));
}

bool is_given(const YAML::Node& node) { return node.IsDefined() && !node.IsNull(); }

std::vector<YAML::Node> items_of(const YAML::Node& node) {
  if (!is_given(node)) return {};
  if (!node.IsSequence()) return {node};
  return {node.begin(), node.end()};
}

}  // namespace kv
