#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sim/replay/sampling.h"
#include "sim/source/model_source.h"
#include "sim/tasks/own_traces.h"

namespace kv {

struct TurnsArgs {
  Backend& backend;
  ModelSource& source;
  std::span<const int32_t> numbers;  // of the texts that are written together: what their draws mix in
  Sampling sampling;
  std::span<const int32_t> stop_ids;  // end a turn, as its last id
  int tokens = 0;                     // of a text, at least 2
  int turns = 1;                      // at most, of a text
  // Ids that turn `turn` of text `number` begins with, at least one; nullopt: there are no more.
  std::function<std::optional<std::vector<int32_t>>(int32_t number, int turn, int32_t last)> prompt;
  std::function<void(int64_t written)> progress{};  // ids so far, of all texts; may be empty
};

// A text that ended before its length has run out of prompts or turns.
struct TurnsText {
  std::vector<int32_t> ids;
  std::vector<OwnTurn> turns;
};

// The model writes texts in turns over the full cache: a prompt, what it goes on with until a stop id, the next prompt,
// until the text has `tokens` ids; what is longer is cut. One text's end stops nobody else's for more than the step
// that reads its next prompt, and no token is processed twice. What a text says depends on its number, not on those
// that are written beside it, but for rounding (generate()). Throws what generate() throws, and UserError for a first
// prompt that leaves nothing to write.
std::vector<TurnsText> write_turns(const TurnsArgs& args);

}  // namespace kv
