#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/chat_template.h"
#include "sim/model/tokenizer/tokenizer.h"

namespace kv {

// JSON lines with the key `prompt`, a text; other keys are allowed and not read. The file may lie packed
// (sim/io/stored_file.h), and be named by either name.
struct PromptFile {
  std::vector<std::string> prompts;  // at least one
  std::string sha256;                // of the unpacked bytes
};

// Throws UserError that begins with file and line for a line that is no such object; blank ones are skipped.
PromptFile load_prompts(const std::filesystem::path& file);

// The prompts of a model that writes from one after the other, as token ids. Every attempt has an order of its own, a
// function of seed and number, in which no prompt comes twice; as many attempts in a row as there are prompts begin
// with different ones.
class OwnPrompts {
 public:
  // `first_token` opens a text without a chat template. References must stay alive.
  OwnPrompts(const PromptFile& file, int seed, std::optional<ChatTemplate> chat, int32_t first_token,
             const Tokenizer& tokenizer);

  // Ids that the turn begins with, after `last`, the id that ended the turn before; nullopt: every prompt has been had.
  // A text without a template goes on as a new one, with the first token in front, which may be `last` itself.
  // UserError for a prompt that cannot be encoded.
  std::optional<std::vector<int32_t>> turn(int attempt, int turn, int32_t last) const;

  // Beside the model's own ends of text: the end of a message.
  std::vector<int32_t> stop_ids() const;
  std::string_view wording() const { return chat_ ? "chatml" : "plain"; }

 private:
  size_t prompt_of(int attempt, int turn) const;

  const PromptFile& file_;
  int seed_;
  std::optional<ChatTemplate> chat_;
  int32_t first_token_;
  const Tokenizer& tokenizer_;
  std::vector<size_t> openings_;  // the prompts in the order in which attempts begin with them
};

}  // namespace kv
