#include "sim/tasks/own_prompts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"
#include "sim/io/strict_json.h"
#include "sim/tasks/random.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::string parse_prompt(const std::string& line, const std::string& where) {
  const nlohmann::json record = parse_strict_json(line, where);
  if (!record.is_object()) {
    throw UserError(fmt::format("{}: {}, expected an object with a prompt", where, shown_json(record)));
  }
  const auto found = record.find("prompt");
  if (found == record.end()) throw UserError(fmt::format("{}: \"prompt\" is missing", where));
  if (!found->is_string() || found->get_ref<const std::string&>().empty()) {
    throw UserError(fmt::format("{}: \"prompt\" is {}, expected a text", where, shown_json(*found)));
  }
  return found->get<std::string>();
}

}  // namespace

PromptFile load_prompts(const fs::path& file) {
  // read_stored finds what is packed by the name without the ending.
  const std::string content = read_stored(file.extension() == ".xz" ? fs::path(file).replace_extension() : file);
  PromptFile out{.prompts = {}, .sha256 = sha256_hex(content)};
  std::istringstream stream(content);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    out.prompts.push_back(parse_prompt(line, fmt::format("{}:{}", file.string(), number)));
  }
  if (out.prompts.empty()) throw UserError(fmt::format("{}: is empty, expected one JSON object a line", file.string()));
  return out;
}

OwnPrompts::OwnPrompts(const PromptFile& file, int seed, std::optional<ChatTemplate> chat, int32_t first_token,
                       const Tokenizer& tokenizer)
    : file_(file),
      seed_(seed),
      chat_(std::move(chat)),
      first_token_(first_token),
      tokenizer_(tokenizer),
      openings_(file.prompts.size()) {
  std::iota(openings_.begin(), openings_.end(), size_t{0});
  Random(static_cast<uint64_t>(seed_)).shuffle(openings_);
}

size_t OwnPrompts::prompt_of(int attempt, int turn) const {
  std::vector<size_t> order = openings_;
  std::swap(order.front(), order[static_cast<size_t>(attempt) % order.size()]);
  std::vector<size_t> others(order.begin() + 1, order.end());
  Random(static_cast<uint64_t>(seed_), 1 + static_cast<uint64_t>(attempt)).shuffle(others);
  return turn == 0 ? order.front() : others[static_cast<size_t>(turn) - 1];
}

std::optional<std::vector<int32_t>> OwnPrompts::turn(int attempt, int turn, int32_t last) const {
  if (turn >= std::ssize(file_.prompts)) return std::nullopt;
  const std::string& prompt = file_.prompts[prompt_of(attempt, turn)];
  if (!chat_) {
    std::vector<int32_t> ids = tokenizer_.encode(prompt);
    if (turn == 0 || last != first_token_) ids.insert(ids.begin(), first_token_);
    return ids;
  }
  if (turn == 0) return tokenizer_.encode(chat_->first(prompt));
  const bool has_ended = tokenizer_.decode_token(last) == ChatTemplate::kEnd;
  return tokenizer_.encode((has_ended ? "" : std::string(ChatTemplate::kEnd)) + chat_->next(prompt));
}

std::vector<int32_t> OwnPrompts::stop_ids() const {
  if (!chat_) return {};
  if (const auto id = tokenizer_.token_id(ChatTemplate::kEnd)) return {*id};
  throw UserError(
      fmt::format("the tokenizer has no {}, which the chat template ends messages with", ChatTemplate::kEnd));
}

}  // namespace kv
