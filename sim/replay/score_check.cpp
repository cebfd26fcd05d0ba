#include "sim/replay/score_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "kernels/find_bad.h"

namespace kv {

namespace {

// As every platform writes it: a NaN may come with a sign.
std::string_view text_of(float value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

float download_float(Backend& backend, const float* from) {
  float value = 0;
  backend.download(&value, from, sizeof(value));
  return value;
}

[[noreturn]] void complain(const ScoreCheckArgs& args, size_t layer, int64_t at) {
  const ScoredLayer& scored = args.layers[layer];
  const int64_t row = at / scored.scores.pitch, slot = at % scored.scores.pitch;
  const float score = download_float(args.backend, scored.scores.data + at);
  const bool is_tie = std::isfinite(score);
  throw NotFiniteError(fmt::format(
      "{}: the {} of entry {} of {} in layer {}, KV head {}, is {} (expected a finite number)", args.policy,
      is_tie ? "second key" : "score", slot, scored.lengths[static_cast<size_t>(row)], args.layer_numbers[layer],
      row % args.kv_heads, text_of(is_tie ? download_float(args.backend, scored.ties.data + at) : score)));
}

}  // namespace

void check_scores(const ScoreCheckArgs& args) {
  int64_t most_slots = 1;
  for (const ScoredLayer& scored : args.layers) {
    most_slots = std::max(most_slots, scored.scores.elements());
  }
  Tensor word(args.backend, DType::kU8, sizeof(uint64_t));  // fresh memory: nothing bad
  auto* first = reinterpret_cast<uint64_t*>(word.ref().as<uint8_t>());
  for (size_t layer = 0; layer < args.layers.size(); ++layer) {
    const ScoredLayer& scored = args.layers[layer];
    args.backend.find_bad_score({.cache = scored.cache,
                                 .scores = scored.scores,
                                 .ties = scored.ties,
                                 .sinks = args.protection.sinks,
                                 .recent = args.protection.recent,
                                 .rows_due = args.rows_due,
                                 .number = layer * static_cast<uint64_t>(most_slots),
                                 .first = first});
  }
  uint64_t number = kNothingBad;
  word.download(&number, sizeof(number));
  if (number == kNothingBad) return;
  const auto at = static_cast<int64_t>(number);
  complain(args, static_cast<size_t>(at / most_slots), at % most_slots);
}

}  // namespace kv
