#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/tasks/sample.h"

namespace kv {

// What a model wrote itself, as token ids: a draw in bf16 cannot be repeated elsewhere, so every policy, backend and
// later run reads the same ones.

// All that the ids depend on but for the rounding of the machine that drew them.
struct OwnRecipe {
  std::string model;              // its name
  std::string model_sha256;       // of its files (sim/model/model_files.h)
  int vocabulary = 0;             // ids are below
  std::string vocabulary_sha256;  // of what they stand for
  std::string prompts;            // the file's name
  std::string prompts_sha256;     // of its unpacked bytes
  std::string wording;            // "chatml": the model's chat template; "plain": prompts as they are
  double temperature = 0;
  double top_p = 0;
  int seed = 0;
  int tokens = 0;         // of a trace, prompts included
  int turns = 0;          // prompts of a trace at most
  double repetition = 0;  // largest repetition_rate (sim/tasks/output_rates.h) of what the model wrote
  std::string device;     // "cpu", "cuda"

  bool operator==(const OwnRecipe&) const = default;
};

// Tokens of a prompt, then of what the model wrote after it, its end of text included. Of the last turn either may be
// cut.
struct OwnTurn {
  int32_t prompt = 0;
  int32_t written = 0;

  bool operator==(const OwnTurn&) const = default;
};

struct OwnAttempt {
  std::string refused{};         // why it is no trace; empty: it is one
  double repetition = 0;         // repetition_rate of what was written
  int written = 0;               // tokens
  std::vector<OwnTurn> turns{};  // of a trace
  std::vector<int32_t> ids{};    // of a trace, OwnRecipe::tokens of them

  bool operator==(const OwnAttempt&) const = default;
};

struct OwnTraces {
  OwnRecipe recipe;
  std::string origin;                // what wrote them: a JSON object on one line, nobody's business here
  std::vector<OwnAttempt> attempts;  // by number, refused ones among them

  std::vector<const OwnAttempt*> traces() const;
};

// JSON lines: a head with recipe and origin, a line an attempt, and an end that counts them. The same bytes for the
// same traces.
std::string own_head(const OwnTraces& traces);
std::string own_line(size_t number, const OwnAttempt& attempt);
std::string format_own_traces(const OwnTraces& traces);

enum class OwnFile {
  kWhole,    // with its end
  kPartial,  // of a writer that is not done: no end, and what follows the last line feed is torn off
};

// Throws UserError "<owner>:<line>: …" for whatever is not as format_own_traces writes it: syntax, a key that is
// missing or unknown, a value out of range, an id outside the vocabulary, turns or counts that do not add up, no end.
OwnTraces parse_own_traces(std::string_view text, const std::string& owner, OwnFile file = OwnFile::kWhole);

// The trace's first `tokens` tokens. Prompts are questions, what the model wrote answers; the first prompt is the
// context that one-shot compression cuts. Requires 2 to recipe.tokens tokens.
Sample sample_of(const OwnAttempt& trace, int tokens);

}  // namespace kv
