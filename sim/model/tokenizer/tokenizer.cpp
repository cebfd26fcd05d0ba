#include "sim/model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "kernels/error.h"
#include "sim/io/gguf.h"
#include "sim/io/regular_file.h"
#include "sim/model/tokenizer/added_tokens.h"
#include "sim/model/tokenizer/bpe.h"
#include "sim/model/tokenizer/definition.h"
#include "sim/model/tokenizer/gguf_tokenizer.h"
#include "sim/model/tokenizer/pre_tokenizer.h"
#include "sim/model/tokenizer/unicode.h"

namespace kv {
namespace {

std::vector<AddedToken> select(const TokenizerDefinition& definition, FoundIn place) {
  std::vector<AddedToken> selected;
  for (AddedToken token : definition.added) {
    if (token.found_in != place) continue;
    if (place == FoundIn::kNormalizedText && definition.normalization == Normalization::kNfc)
      token.content = to_nfc(token.content);
    selected.push_back(std::move(token));
  }
  return selected;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(TokenizerDefinition given)
      : definition(std::move(given)),
        raw_added(select(definition, FoundIn::kGivenText)),
        normalized_added(select(definition, FoundIn::kNormalizedText)),
        pre_tokenizer(definition.splits, definition.name),
        bpe(definition) {
    for (size_t id = 0; id < definition.tokens.size(); ++id)
      if (!definition.tokens[id].empty()) ids.emplace(definition.tokens[id], static_cast<int32_t>(id));
  }

  TokenizerDefinition definition;
  AddedTokens raw_added;
  AddedTokens normalized_added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  std::unordered_map<std::string, int32_t> ids;
};

namespace {

// One text's worth of work: words repeat, so that most are merged once and then looked up. The cache lives and dies
// with the call, which keeps the tokenizer free of shared state.
class Encoding {
 public:
  Encoding(const PreTokenizer& splitter, const Bpe& bpe) : splitter_(splitter), scratch_(splitter), bpe_(bpe) {}

  void append_text(std::string_view text) {
    for (std::string& piece : splitter_.pieces(text, scratch_)) append_piece(std::move(piece));
  }

  void append_id(int32_t id) { ids_.push_back(id); }

  std::vector<int32_t> take() { return std::move(ids_); }

 private:
  struct Span {
    size_t begin;
    size_t end;
  };

  void append_piece(std::string piece) {
    const auto [found, fresh] = seen_.try_emplace(std::move(piece));
    if (fresh) {
      const size_t begin = ids_.size();
      bpe_.append(found->first, ids_);
      found->second = {begin, ids_.size()};
      return;
    }
    for (size_t i = found->second.begin; i < found->second.end; ++i) ids_.push_back(ids_[i]);
  }

  const PreTokenizer& splitter_;
  PreTokenizer::Scratch scratch_;
  const Bpe& bpe_;
  std::unordered_map<std::string, Span> seen_;  // where in ids_ the piece was written first
  std::vector<int32_t> ids_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  return from_json(RegularFile(path).read(), path.string());
}

Tokenizer Tokenizer::load_gguf(const std::filesystem::path& path) {
  const GgufFile file = GgufFile::open(path);
  return Tokenizer(std::make_unique<const Parts>(parse_tokenizer(gguf_tokenizer(file), file.name())));
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) {
  return Tokenizer(std::make_unique<const Parts>(parse_tokenizer(json, name)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const Parts& parts = *parts_;
  if (const auto offset = first_invalid_utf8(text))
    throw UserError(fmt::format("tokenizer {}: text is not UTF-8 at byte {} (0x{:02X})", parts.definition.name, *offset,
                                static_cast<unsigned char>(text[*offset])));
  Encoding encoding(parts.pre_tokenizer, parts.bpe);
  for (const Stretch& raw : parts.raw_added.find(text)) {
    if (raw.id >= 0) {
      encoding.append_id(raw.id);
      continue;
    }
    const bool composes = parts.definition.normalization == Normalization::kNfc;
    const std::string composed = composes ? to_nfc(raw.text) : std::string();
    for (const Stretch& stretch : parts.normalized_added.find(composes ? composed : raw.text)) {
      if (stretch.id >= 0) {
        encoding.append_id(stretch.id);
      } else {
        encoding.append_text(stretch.text);
      }
    }
  }
  return encoding.take();
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += decode_token(id);
  return text;
}

std::string_view Tokenizer::decode_token(int32_t id) const {
  if (!has_token(id))
    throw UserError(fmt::format("tokenizer {}: token id {} is not in the vocabulary of {} tokens",
                                parts_->definition.name, id, vocab_size()));
  return parts_->definition.tokens[static_cast<size_t>(id)];
}

bool Tokenizer::has_token(int32_t id) const {
  return id >= 0 && id < vocab_size() && !parts_->definition.tokens[static_cast<size_t>(id)].empty();
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->definition.tokens.size()); }

std::optional<int32_t> Tokenizer::token_id(std::string_view bytes) const {
  const auto found = parts_->ids.find(std::string(bytes));
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kv
