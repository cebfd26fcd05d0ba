#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// A byte-level BPE tokenizer as Hugging Face stores it in tokenizer.json. Ids equal those of the `tokenizers` library
// with add_special_tokens=False.
//
// Read: normalizer null, NFC or a Sequence of them; pre-tokenizers Split (Regex or String; every behavior; invert),
// Digits and, last, ByteLevel, alone or in a Sequence; merges as "a b" or ["a", "b"]; ignore_merges; added tokens with
// lstrip, rstrip and normalized. Post-processors ByteLevel and TemplateProcessing are accepted and not applied: callers
// put the first token themselves. Truncation and padding are not applied either.
// Refused with a UserError that names what was found: every other kind (Unigram, WordPiece, Metaspace, byte_fallback,
// single_word, ...), damaged files, nesting deeper than 32, ids of 2^21 and above.
//
// Thread-safe: const calls share nothing that changes. Deviation: U+180E counts as white space (PCRE2's \s).
class Tokenizer {
 public:
  static Tokenizer load(const std::filesystem::path& path);

  // That of a GGUF file's metadata (sim/model/tokenizer/gguf_tokenizer.h).
  static Tokenizer load_gguf(const std::filesystem::path& path);

  // `name` stands in front of every error, where a file name would.
  static Tokenizer from_json(std::string_view json, std::string_view name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Throws UserError, with the offset of the byte, for text that is not UTF-8, and for a byte that the vocabulary
  // lacks.
  std::vector<int32_t> encode(std::string_view text) const;

  // The bytes that the ids stand for, special tokens included. They may end inside a UTF-8 sequence, and are then given
  // as they are. Throws UserError for an id without a token.
  std::string decode(std::span<const int32_t> ids) const;
  std::string_view decode_token(int32_t id) const;

  // The largest id plus one; ids without a token may lie below.
  int32_t vocab_size() const;
  bool has_token(int32_t id) const;

  // The token that decodes to exactly these bytes.
  std::optional<int32_t> token_id(std::string_view bytes) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace kv
