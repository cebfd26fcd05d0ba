#include "sim/model/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "sim/io/gguf.h"
#include "sim/io/hash.h"
#include "sim/io/regular_file.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// The template's parts; the second and third stand in it where it has a system message of its own.
constexpr std::string_view kLoop = "{% for message in messages %}";
constexpr std::string_view kSystem = "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n";
constexpr std::string_view kSystemEnd = "<|im_end|>\n' }}{% endif %}";
constexpr std::string_view kMessage =
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// In a quoted text of a template "\n" may stand as two characters or as the line feed that it means.
std::string with_line_feeds(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "\\n") {
      out += '\n';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool take(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

std::optional<ChatTemplate> recognised(std::string_view text) {
  ChatTemplate found;
  if (!take(text, kLoop)) return std::nullopt;
  if (take(text, kSystem)) {
    const size_t end = text.find(kSystemEnd);
    if (end == text.npos) return std::nullopt;
    found.system = text.substr(0, end);
    // What a quotation mark or a backslash means here would be for Jinja to say.
    if (found.system.empty() || found.system.find_first_of("'\\{}<") != std::string::npos) return std::nullopt;
    text.remove_prefix(end + kSystemEnd.size());
  }
  if (text != kMessage) return std::nullopt;
  return found;
}

std::string head(std::string_view role) { return fmt::format("{}{}\n", ChatTemplate::kStart, role); }

void refuse_marks(std::string_view prompt) {
  for (const std::string_view mark : {ChatTemplate::kStart, ChatTemplate::kEnd}) {
    if (prompt.find(mark) == prompt.npos) continue;
    throw UserError(fmt::format("a prompt holds {}, a mark of the chat template, expected plain text", mark));
  }
}

// Of tokenizer_config.json.
std::optional<std::string> configured(const fs::path& file) {
  const std::string owner = file.string();
  const nlohmann::json config = parse_strict_json(RegularFile(file).read(), owner);
  const auto refuse = [&](const nlohmann::json& value) {
    throw UserError(
        fmt::format("{}: chat_template is {}, expected a text, or a list of names and templates with one "
                    "named default",
                    owner, shown_json(value)));
  };
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null()) {
    return std::nullopt;
  }
  const nlohmann::json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse(value);
  for (const nlohmann::json& entry : value) {
    const bool is_default = entry.is_object() && entry.value("name", nlohmann::json()) == "default";
    if (is_default && entry.contains("template") && entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  refuse(value);
  return std::nullopt;
}

}  // namespace

std::string ChatTemplate::first(std::string_view prompt) const {
  refuse_marks(prompt);
  return opening().append(prompt) + closing();
}

std::string ChatTemplate::next(std::string_view prompt) const {
  refuse_marks(prompt);
  return ("\n" + head("user")).append(prompt) + closing();
}

std::string ChatTemplate::opening() const {
  return (system.empty() ? "" : fmt::format("{}{}{}\n", head("system"), system, kEnd)) + head("user");
}

std::string ChatTemplate::closing() { return fmt::format("{}\n{}", kEnd, head("assistant")); }

ChatTemplate parse_chat_template(std::string_view text, std::string_view owner) {
  if (const auto found = recognised(with_line_feeds(text))) return *found;
  throw UserError(
      fmt::format("{}: its chat template (SHA-256 {:.12}…) is not known (expected ChatML as SmolLM2 or Qwen2 have it); "
                  "with `template: none` prompts are taken as they are",
                  owner, sha256_hex(text)));
}

std::optional<std::string> stored_chat_template(const fs::path& model) {
  if (is_gguf(model)) {
    const GgufFile file = GgufFile::open(model);
    const auto text = file.text("tokenizer.chat_template");
    if (!text) return std::nullopt;
    return std::string(*text);
  }
  std::error_code error;
  if (fs::exists(model / "chat_template.jinja", error)) return RegularFile(model / "chat_template.jinja").read();
  if (fs::exists(model / "tokenizer_config.json", error)) return configured(model / "tokenizer_config.json");
  return std::nullopt;
}

}  // namespace kv
