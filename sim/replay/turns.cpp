#include "sim/replay/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/policy/policy.h"
#include "sim/replay/generate.h"

namespace kv {
namespace {

class Turns {
 public:
  explicit Turns(const TurnsArgs& args) : args_(args), texts_(args.numbers.size()), active_(args.numbers.size(), 1) {}

  std::vector<TurnsText> write() {
    for (size_t s = 0; s < texts_.size(); ++s) begin_turn(s);
    while (std::find(active_.begin(), active_.end(), 1) != active_.end()) go_on();
    return std::move(texts_);
  }

 private:
  int left(size_t s) const { return args_.tokens - static_cast<int>(texts_[s].ids.size()); }

  // Until one of the texts ends its turn or is as long as asked.
  void go_on() {
    int shortest = args_.tokens;
    std::vector<std::span<const int32_t>> prompts;
    for (size_t s = 0; s < texts_.size(); ++s) {
      prompts.emplace_back(texts_[s].ids);
      if (active_[s]) shortest = std::min(shortest, left(s));
    }
    std::optional<LoopState> before = std::move(state_);
    const GenerateResult result =
        generate({.backend = args_.backend,
                  .source = args_.source,
                  .policy = policy_,
                  .prompts = prompts,
                  .resumed = before ? &*before : nullptr,
                  .until_first_end = true,
                  .left = &state_,
                  .active = before ? std::span<const int32_t>(active_) : std::span<const int32_t>{},
                  .max_new_tokens = shortest,
                  .stop_ids = args_.stop_ids,
                  .sampling = args_.sampling,
                  .sample_numbers = args_.numbers});
    for (size_t s = 0; s < texts_.size(); ++s) {
      if (active_[s]) take(s, result.sequences[s]);
    }
    if (args_.progress) args_.progress(written_);
  }

  void take(size_t s, const GenerateResult::Sequence& sequence) {
    TurnsText& text = texts_[s];
    text.ids.insert(text.ids.end(), sequence.ids.begin(), sequence.ids.end());
    text.turns.back().written += static_cast<int32_t>(sequence.ids.size());
    written_ += std::ssize(sequence.ids);
    if (left(s) == 0) {
      active_[s] = 0;
    } else if (sequence.ending == GenerateResult::Ending::kStop) {
      begin_turn(s);
    }
  }

  void begin_turn(size_t s) {
    TurnsText& text = texts_[s];
    active_[s] = 0;
    const int turn = static_cast<int>(text.turns.size());
    if (turn == args_.turns) return;
    const auto prompt = args_.prompt(args_.numbers[s], turn, text.ids.empty() ? -1 : text.ids.back());
    if (!prompt) return;
    KV_CHECK(!prompt->empty());
    if (turn == 0 && std::ssize(*prompt) >= args_.tokens) {
      throw UserError(fmt::format("the prompt of attempt {} has {} tokens, which leave nothing of {} to write",
                                  args_.numbers[s], prompt->size(), args_.tokens));
    }
    const int taken = std::min(left(s), static_cast<int>(prompt->size()));
    text.ids.insert(text.ids.end(), prompt->begin(), prompt->begin() + taken);
    text.turns.push_back({.prompt = taken, .written = 0});
    active_[s] = left(s) > 0 ? 1 : 0;
  }

  const TurnsArgs& args_;
  Policy policy_ = policy_of("full", nullptr);
  std::vector<TurnsText> texts_;
  std::vector<int32_t> active_;  // 1 = goes on
  std::optional<LoopState> state_;
  int64_t written_ = 0;
};

}  // namespace

std::vector<TurnsText> write_turns(const TurnsArgs& args) {
  KV_CHECK(args.tokens >= 2 && args.turns >= 1 && !args.numbers.empty());
  return Turns(args).write();
}

}  // namespace kv
