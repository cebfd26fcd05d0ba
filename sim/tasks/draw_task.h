#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/tasks/sample.h"
#include "sim/tasks/task.h"
#include "sim/tasks/text_data.h"

namespace kv {

class Tokenizer;

enum class Length { kExact, kAtMost };

inline constexpr int kMostTaskTokens = 1 << 20;

struct TaskRequest {
  std::string task;
  int tokens = 0;      // length of the sample
  uint64_t seed = 0;   // of the experiment
  uint64_t index = 0;  // of the sample: samples of one seed are independent
  TaskOptions options = {};
  std::optional<Length> length = {};        // default: exact where the task's text can be cut, else at_most
  std::optional<int32_t> first_token = {};  // default: the tokenizer's <|endoftext|>
};

// A pure function of its arguments. Token 0 is the first token (label context); then the task's text. `exact`: exactly
// `tokens` ids, cut at the end, never padded; only for tasks whose text can be cut. `at_most`: whole, its length
// close to and never above `tokens`. A token that overlaps a labelled range belongs to it (answer before question
// before needle before context). Throws UserError where the request cannot be met.
Sample make_sample(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data);

// The same with the text that it was made of, whole even where the sample is cut.
struct DrawnTask {
  TaskText text;
  Sample sample;
};
DrawnTask draw_task(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data);

// Throws UserError where there is neither a given first token nor an <|endoftext|>.
int32_t first_token_of(std::optional<int32_t> given, const Tokenizer& tokenizer);

// Tokens of a TaskText, for texts made elsewhere. Throws UserError where the tokenizer rewrites the text (a normalizer
// or a prefix space), since labels could not be placed.
Sample tokenize_task(const TaskText& text, int32_t first_token, const Tokenizer& tokenizer);

}  // namespace kv
