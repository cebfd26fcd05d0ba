#include "sim/model/tokenizer/definition.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "kernels/error.h"
#include "sim/io/strict_json.h"
#include "sim/model/tokenizer/unicode.h"

namespace kv {
namespace {

using Json = nlohmann::json;

constexpr int64_t kIdEnd = 1 << 21;

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Parser {
 public:
  explicit Parser(std::string_view name) { result_.name = name; }

  TokenizerDefinition parse(const Json& root) {
    if (!root.is_object()) fail(fmt::format("is {}, expected an object", root.type_name()));
    const Json& model = object_at(root, "model");
    check_model(model);
    result_.whole_words = flag_at(model, "ignore_merges", false) ? WholeWords::kLookedUp : WholeWords::kMerged;
    read_vocabulary(object_at(model, "vocab"));
    read_merges(array_at(model, "merges"));
    if (root.contains("added_tokens") && !root["added_tokens"].is_null()) read_added(array_at(root, "added_tokens"));
    read_bytes();
    read_normalizer(optional_part(root, "normalizer"));
    read_pre_tokenizers(optional_part(root, "pre_tokenizer"));
    check_post_processor(optional_part(root, "post_processor"));
    check_decoder(optional_part(root, "decoder"));
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw UserError(fmt::format("tokenizer {}: {}", result_.name, what));
  }

  [[noreturn]] void refuse(std::string_view part, const Json& found) const {
    fail(fmt::format("{} {} is not supported, expected a byte-level BPE tokenizer; give token ids with --ids instead",
                     part, shown_json(found)));
  }

  const Json& member(const Json& parent, const char* key) const {
    const auto found = parent.find(key);
    if (found == parent.end()) fail(fmt::format("\"{}\" is missing", key));
    return *found;
  }

  const Json& object_at(const Json& parent, const char* key) const {
    const Json& value = member(parent, key);
    if (!value.is_object()) fail(fmt::format("\"{}\" is {}, expected an object", key, shown_json(value)));
    return value;
  }

  const Json& array_at(const Json& parent, const char* key) const {
    const Json& value = member(parent, key);
    if (!value.is_array()) fail(fmt::format("\"{}\" is {}, expected an array", key, shown_json(value)));
    return value;
  }

  const std::string& string_at(const Json& parent, const char* key) const {
    const Json& value = member(parent, key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is {}, expected a string", key, shown_json(value)));
    return value.get_ref<const std::string&>();
  }

  bool flag_at(const Json& parent, const char* key, bool otherwise) const {
    const auto found = parent.find(key);
    if (found == parent.end() || found->is_null()) return otherwise;
    if (!found->is_boolean()) fail(fmt::format("\"{}\" is {}, expected true or false", key, shown_json(*found)));
    return found->get<bool>();
  }

  // Null for what is absent or null.
  const Json& optional_part(const Json& parent, const char* key) const {
    static const Json kNull;
    const auto found = parent.find(key);
    if (found == parent.end() || found->is_null()) return kNull;
    if (!found->is_object()) fail(fmt::format("\"{}\" is {}, expected an object or null", key, shown_json(*found)));
    return *found;
  }

  // The members of a Sequence, or the part itself.
  std::vector<const Json*> members(const Json& part, const char* key) const {
    if (part.is_null()) return {};
    if (string_at(part, "type") != "Sequence") return {&part};
    std::vector<const Json*> result;
    for (const Json& object : array_at(part, key)) {
      if (!object.is_object()) fail(fmt::format("\"{}\" holds {}, expected objects", key, shown_json(object)));
      const auto nested = members(object, key);
      result.insert(result.end(), nested.begin(), nested.end());
    }
    return result;
  }

  void check_model(const Json& model) const {
    // Files written before 2020 have no type; only BPE has merges.
    if (model.contains("type") && model["type"] != "BPE") refuse("model type", model["type"]);
    if (flag_at(model, "byte_fallback", false)) refuse("byte_fallback", model["byte_fallback"]);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (model.contains(key) && !model[key].is_null() && model[key] != "") refuse(key, model[key]);
    if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0)
      refuse("dropout", model["dropout"]);
  }

  int32_t checked_id(const Json& value, std::string_view token) const {
    if (!value.is_number_integer() || value < 0 || value >= kIdEnd)
      fail(fmt::format("token {} has id {}, expected an integer of 0 to {}", shown_json(Json(token)), shown_json(value),
                       kIdEnd - 1));
    return value.get<int32_t>();
  }

  void put(int32_t id, const std::string& bytes, std::string_view token) {
    const auto index = static_cast<size_t>(id);
    if (index >= result_.tokens.size()) result_.tokens.resize(index + 1);
    if (!result_.tokens[index].empty())
      fail(fmt::format("tokens {} and {} share id {}", shown_token(index), shown_json(Json(token)), id));
    result_.tokens[index] = bytes;
  }

  std::string shown_token(size_t id) const {
    const std::string& bytes = result_.tokens[id];
    return first_invalid_utf8(bytes) ? fmt::format("number {}", id) : shown_json(Json(bytes));
  }

  void read_vocabulary(const Json& vocabulary) {
    ids_.reserve(vocabulary.size());
    for (const auto& [token, value] : vocabulary.items()) {
      const int32_t id = checked_id(value, token);
      if (token.empty()) fail(fmt::format("token with id {} is empty", id));
      // A token outside the alphabet is no outcome of merging bytes; it decodes to its own text.
      put(id, bytes_of_alphabet(token).value_or(token), token);
      ids_.emplace(token, id);
    }
    if (ids_.empty()) fail("\"vocab\" is empty");
  }

  int32_t known(const std::string& token, size_t rank) const {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      fail(fmt::format("merge {} needs token {}, which is not in the vocabulary", rank, shown_json(Json(token))));
    return found->second;
  }

  std::pair<std::string, std::string> parts_of(const Json& merge, size_t rank) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != text.npos && text.find(' ', space + 1) == text.npos)
        return {text.substr(0, space), text.substr(space + 1)};
    }
    fail(fmt::format("merge {} is {}, expected \"left right\" or [\"left\", \"right\"]", rank, shown_json(merge)));
  }

  void read_merges(const Json& merges) {
    result_.merges.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto [left, right] = parts_of(merges[rank], rank);
      result_.merges.push_back({known(left, rank), known(right, rank), known(left + right, rank)});
    }
  }

  void read_added(const Json& added) {
    for (const Json& token : added) {
      if (!token.is_object()) fail(fmt::format("\"added_tokens\" holds {}, expected objects", shown_json(token)));
      const std::string& content = string_at(token, "content");
      if (content.empty()) fail("an added token is empty");
      if (flag_at(token, "single_word", false)) refuse("single_word of added token", token["content"]);
      const int32_t id = checked_id(member(token, "id"), content);
      const auto known_as = ids_.find(content);
      if (known_as == ids_.end()) {
        put(id, content, content);
        ids_.emplace(content, id);
      } else if (known_as->second != id) {
        fail(fmt::format("added token {} has id {}, but {} elsewhere", shown_json(token["content"]), id,
                         known_as->second));
      } else {
        result_.tokens[static_cast<size_t>(id)] = content;
      }
      const bool special = flag_at(token, "special", false);
      result_.added.push_back(
          {.id = id,
           .content = content,
           .strips_left = flag_at(token, "lstrip", false),
           .strips_right = flag_at(token, "rstrip", false),
           .found_in = flag_at(token, "normalized", !special) ? FoundIn::kNormalizedText : FoundIn::kGivenText});
    }
  }

  void read_bytes() {
    result_.byte_tokens.assign(256, -1);
    for (const auto& [token, id] : ids_) {
      const auto bytes = bytes_of_alphabet(token);
      if (bytes && bytes->size() == 1) result_.byte_tokens[static_cast<unsigned char>((*bytes)[0])] = id;
    }
  }

  void read_normalizer(const Json& normalizer) {
    for (const Json* part : members(normalizer, "normalizers")) {
      if (string_at(*part, "type") != "NFC") refuse("normalizer", (*part)["type"]);
      result_.normalization = Normalization::kNfc;
    }
  }

  SplitBehavior behavior_of(const Json& split) const {
    static const std::vector<std::pair<std::string_view, SplitBehavior>> kBehaviors = {
        {"Isolated", SplitBehavior::kIsolated},
        {"Removed", SplitBehavior::kRemoved},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous}};
    const std::string& name = string_at(split, "behavior");
    for (const auto& [known_name, behavior] : kBehaviors)
      if (name == known_name) return behavior;
    fail(
        fmt::format("Split behavior is {}, expected Isolated, Removed, MergedWithPrevious, MergedWithNext or "
                    "Contiguous",
                    shown_json(split["behavior"])));
  }

  SplitDefinition split_of(const Json& split) const {
    const Json& pattern = object_at(split, "pattern");
    const bool literal = pattern.contains("String");
    return {.pattern = string_at(pattern, literal ? "String" : "Regex"),
            .kind = literal ? PatternKind::kLiteral : PatternKind::kRegex,
            .behavior = behavior_of(split),
            .role = flag_at(split, "invert", false) ? MatchRole::kContent : MatchRole::kDelimiter};
  }

  void read_pre_tokenizers(const Json& part) {
    const auto steps = members(part, "pretokenizers");
    bool ends_in_bytes = false;
    for (const Json* step : steps) {
      const std::string& type = string_at(*step, "type");
      // After ByteLevel a piece is written in its alphabet, where later patterns would mean something else.
      if (ends_in_bytes) refuse("pre-tokenizer after ByteLevel,", (*step)["type"]);
      if (type == "Split") {
        result_.splits.push_back(split_of(*step));
      } else if (type == "Digits") {
        const bool single = flag_at(*step, "individual_digits", false);
        result_.splits.push_back(
            {.pattern = R"(\p{N})", .behavior = single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
      } else if (type == "ByteLevel") {
        ends_in_bytes = true;
        const bool by_words = flag_at(*step, "use_regex", true);
        const bool prefixed = flag_at(*step, "add_prefix_space", true);
        if (by_words || prefixed)
          result_.splits.push_back(
              {.pattern = by_words ? kGpt2Pattern : "", .prefix = prefixed ? PrefixSpace::kAdded : PrefixSpace::kNone});
      } else {
        refuse("pre-tokenizer", (*step)["type"]);
      }
    }
    if (!ends_in_bytes) refuse("pre-tokenizer without ByteLevel,", part.is_null() ? Json() : part["type"]);
  }

  void check_post_processor(const Json& part) const {
    for (const Json* entry : members(part, "processors")) {
      const std::string& type = string_at(*entry, "type");
      if (type != "ByteLevel" && type != "TemplateProcessing") refuse("post-processor", (*entry)["type"]);
    }
  }

  void check_decoder(const Json& part) const {
    for (const Json* entry : members(part, "decoders"))
      if (string_at(*entry, "type") != "ByteLevel") refuse("decoder", (*entry)["type"]);
  }

  TokenizerDefinition result_;
  std::unordered_map<std::string, int32_t> ids_;  // by the text of the file, the alphabet not yet undone
};

}  // namespace

TokenizerDefinition parse_tokenizer(std::string_view json, std::string_view name) {
  return parse_tokenizer(parse_strict_json(json, fmt::format("tokenizer {}", name)), name);
}

TokenizerDefinition parse_tokenizer(const Json& root, std::string_view name) { return Parser(name).parse(root); }

}  // namespace kv
