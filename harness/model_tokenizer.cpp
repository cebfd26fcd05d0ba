#include "harness/model_tokenizer.h"

#include <fmt/format.h>

#include <system_error>

#include "kernels/error.h"
#include "sim/io/gguf.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

fs::path tokenizer_file(const fs::path& folder) { return folder / "tokenizer.json"; }

}  // namespace

bool has_tokenizer(const fs::path& model) {
  std::error_code error;
  return is_gguf(model) || fs::exists(tokenizer_file(model), error);
}

Tokenizer load_tokenizer(const fs::path& model) {
  if (is_gguf(model)) return Tokenizer::load_gguf(model);
  const fs::path file = tokenizer_file(model);
  if (!has_tokenizer(model)) {
    throw UserError(fmt::format("{}: no such file; pass token ids instead (--ids, or ids: in a spec)", file.string()));
  }
  return Tokenizer::load(file);
}

int32_t first_token_of(const ModelConfig& config, const Tokenizer& tokenizer) {
  if (!config.bos_ids.empty()) return config.bos_ids.front();
  if (const auto id = tokenizer.token_id("<|endoftext|>")) return *id;
  throw UserError(
      "the model's bos_token_id is missing and its tokenizer has no <|endoftext|>; expected one of them "
      "(or pass --ids)");
}

}  // namespace kv
