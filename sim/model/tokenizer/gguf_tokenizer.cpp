#include "sim/model/tokenizer/gguf_tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"
#include "sim/io/strict_json.h"
#include "sim/model/tokenizer/unicode.h"

namespace kv {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKind = "tokenizer.ggml.model";
constexpr std::string_view kSplitting = "tokenizer.ggml.pre";
constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kTokenTypes = "tokenizer.ggml.token_type";
constexpr std::string_view kMerges = "tokenizer.ggml.merges";

// Numbers of token_type.
constexpr int64_t kControl = 3, kUserDefined = 4;

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class Splitting { kGpt2, kSmollm, kLlama3, kQwen2 };

struct SplittingName {
  std::string_view name;
  Splitting splitting;
};

constexpr std::array<SplittingName, 7> kSplittings = {{{"gpt-2", Splitting::kGpt2},
                                                       {"smollm", Splitting::kSmollm},
                                                       {"llama-bpe", Splitting::kLlama3},
                                                       {"llama3", Splitting::kLlama3},
                                                       {"llama-v3", Splitting::kLlama3},
                                                       {"qwen2", Splitting::kQwen2},
                                                       {"deepseek-r1-qwen", Splitting::kQwen2}}};

Splitting splitting_of(const GgufFile& file) {
  const auto name = file.text(kSplitting);
  std::string known;
  for (const SplittingName& each : kSplittings) {
    if (name == each.name) return each.splitting;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  file.refuse(kSplitting, fmt::format("one of {}; give token ids with --ids instead", known));
}

Json bytes_step(bool by_words) { return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", by_words}}; }

Json steps(const Json& first, const Json& last) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({first, last})}};
}

Json split_step(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

Json pre_tokenizer(Splitting splitting) {
  switch (splitting) {
    case Splitting::kGpt2:
      return bytes_step(true);
    case Splitting::kSmollm:
      return steps({{"type", "Digits"}, {"individual_digits", true}}, bytes_step(true));
    case Splitting::kLlama3:
      return steps(split_step(kLlama3Pattern), bytes_step(false));
    case Splitting::kQwen2:
      return steps(split_step(kQwen2Pattern), bytes_step(false));
  }
  return {};
}

// The texts of a list that must be there.
std::vector<std::string_view> texts(const GgufFile& file, std::string_view key) {
  const GgufArray* list = file.array(key);
  if (!list) file.refuse(key, "a list of texts");
  std::vector<std::string_view> values;
  values.reserve(list->size());
  for (const GgufValue& value : *list) {
    const auto* text = std::get_if<std::string_view>(&value.value);
    if (!text || first_invalid_utf8(*text)) {
      throw UserError(fmt::format("{}: {}: entry {} is {}, expected a text in UTF-8", file.name(), key, values.size(),
                                  shown(value)));
    }
    values.push_back(*text);
  }
  return values;
}

// Those whose type says that they stand in a text as they are written.
Json added_tokens(const GgufFile& file, const std::vector<std::string_view>& tokens) {
  Json added = Json::array();
  const GgufArray* types = file.array(kTokenTypes);
  if (!types) return added;
  if (types->size() != tokens.size()) {
    file.refuse(kTokenTypes, fmt::format("as many as there are tokens, {}", tokens.size()));
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto* type = std::get_if<int64_t>(&(*types)[id].value);
    if (!type) file.refuse(kTokenTypes, "a list of signed integers");
    if (*type != kControl && *type != kUserDefined) continue;
    added.push_back({{"id", id}, {"content", tokens[id]}, {"special", *type == kControl}, {"normalized", false}});
  }
  return added;
}

}  // namespace

Json gguf_tokenizer(const GgufFile& file) {
  if (file.text(kKind) != "gpt2") file.refuse(kKind, "gpt2 (byte-level BPE); give token ids with --ids instead");
  const Splitting splitting = splitting_of(file);
  const std::vector<std::string_view> tokens = texts(file, kTokens);
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const auto [earlier, fresh] = vocabulary.emplace(tokens[id], id);
    if (fresh) continue;
    throw UserError(fmt::format("{}: {}: entries {} and {} are both {}", file.name(), kTokens,
                                earlier.value().get<size_t>(), id, in_quotes(tokens[id])));
  }
  Json tokenizer = {{"model",
                     {{"type", "BPE"},
                      {"vocab", std::move(vocabulary)},
                      {"merges", texts(file, kMerges)},
                      {"ignore_merges", splitting == Splitting::kLlama3}}},
                    {"added_tokens", added_tokens(file, tokens)},
                    {"pre_tokenizer", pre_tokenizer(splitting)}};
  if (splitting == Splitting::kQwen2) tokenizer["normalizer"] = {{"type", "NFC"}};
  return tokenizer;
}

}  // namespace kv
