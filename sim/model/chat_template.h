#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kv {

// How an instruct model's chats are written, for one prompt after the other. Templates are programs (Jinja), which are
// not run here: the ones known are recognised by their text, and every other is refused rather than approximated.
// Known is ChatML as SmolLM2 and Qwen2 have it: "<|im_start|>ROLE\nTEXT<|im_end|>\n" a message, with or without a
// system message that stands in front where the chat brings none.
struct ChatTemplate {
  std::string system;  // that message's text; empty: none

  // What stands before the model's first word: the system message, the user's, and the head of the model's own.
  // UserError for a prompt that holds one of the template's marks.
  std::string first(std::string_view prompt) const;
  // The two halves of that, around a prompt that is tokens already and free of the template's marks.
  std::string opening() const;
  static std::string closing();
  // What follows a message that the model has ended with the mark of its end: the user's next one and the head of the
  // model's own.
  std::string next(std::string_view prompt) const;

  // Begins and ends a message; one token each in the models that know them.
  static constexpr std::string_view kStart = "<|im_start|>";
  static constexpr std::string_view kEnd = "<|im_end|>";
};

// The template of that text. UserError that begins with `owner` and says which are known.
ChatTemplate parse_chat_template(std::string_view text, std::string_view owner);

// The text of a model's chat template: of a GGUF file tokenizer.chat_template, of a Hugging Face folder
// chat_template.jinja, else chat_template in tokenizer_config.json (of several the one named default). nullopt where
// there is none. UserError that names the file where it cannot be read.
std::optional<std::string> stored_chat_template(const std::filesystem::path& model);

}  // namespace kv
