#include "tests/support/shipped_texts.h"

#include "tests/support/paths.h"

namespace kv::ref {

const Tokenizer& shipped_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(source_path("experiments/models/reference/tokenizer.json"));
  return tokenizer;
}

const TextData& shipped_texts() {
  static const TextData texts = TextData::load(source_path("experiments/data"));
  return texts;
}

}  // namespace kv::ref
