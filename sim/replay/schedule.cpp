#include "sim/replay/schedule.h"

#include <algorithm>

#include "kernels/check.h"

namespace kv {

namespace {

// Appends steps that take every sequence s from done[s] to until[s] in pieces of at most `chunk` tokens.
void advance(Schedule& schedule, std::vector<int32_t>& done, std::span<const int32_t> until, int chunk) {
  KV_CHECK(chunk > 0);
  const size_t sequences = done.size();
  while (true) {
    Step step{std::vector<int32_t>(sequences, 0), std::vector<int32_t>(sequences, -1)};
    int32_t longest = 0;
    for (size_t s = 0; s < sequences; ++s) {
      step.counts[s] = std::clamp<int32_t>(until[s] - done[s], 0, chunk);
      done[s] += step.counts[s];
      longest = std::max(longest, step.counts[s]);
    }
    if (longest == 0) return;
    schedule.push_back(std::move(step));
  }
}

// Of texts that `more` tokens follow, up to there.
Schedule pruned_schedule(std::span<const int32_t> lengths, int32_t more, int budget, int interval, int prefill_chunk) {
  KV_CHECK(budget > 0 && interval > 0);
  const size_t sequences = lengths.size();
  Schedule schedule;
  std::vector<int32_t> done(sequences, 0);
  std::vector<int32_t> prefix(sequences);
  for (size_t s = 0; s < sequences; ++s) prefix[s] = std::min(lengths[s], budget);
  advance(schedule, done, prefix, prefill_chunk);
  while (true) {
    Step step{std::vector<int32_t>(sequences, 0), std::vector<int32_t>(sequences, -1)};
    bool any = false;
    for (size_t s = 0; s < sequences; ++s) {
      step.counts[s] = std::min(interval, lengths[s] - done[s]);
      done[s] += step.counts[s];
      any = any || step.counts[s] > 0;
      // An event after the last token would cost time and change nothing.
      const bool goes_on = step.counts[s] > 0 && done[s] < lengths[s] + more;
      if (goes_on && cut_is_due(done[s], budget, interval)) step.keep[s] = budget;
    }
    if (!any) return schedule;
    schedule.push_back(std::move(step));
  }
}

}  // namespace

bool cut_is_due(int32_t done, int budget, int interval) { return done > budget && (done - budget) % interval == 0; }

Schedule decode_schedule(std::span<const int32_t> lengths, int budget, int interval, int prefill_chunk) {
  return pruned_schedule(lengths, 0, budget, interval, prefill_chunk);
}

Schedule prompt_decode_schedule(std::span<const int32_t> lengths, int budget, int interval, int prefill_chunk) {
  return pruned_schedule(lengths, 1, budget, interval, prefill_chunk);
}

Schedule one_shot_schedule(std::span<const int32_t> lengths, std::span<const int32_t> contexts,
                           std::span<const int32_t> keep, int prefill_chunk) {
  Schedule schedule;
  std::vector<int32_t> done(lengths.size(), 0);
  advance(schedule, done, contexts, prefill_chunk);
  if (!schedule.empty()) schedule.back().keep.assign(keep.begin(), keep.end());
  advance(schedule, done, lengths, prefill_chunk);
  return schedule;
}

Schedule full_schedule(std::span<const int32_t> lengths, int block) {
  Schedule schedule;
  std::vector<int32_t> done(lengths.size(), 0);
  advance(schedule, done, lengths, block);
  return schedule;
}

Schedule token_by_token(const Schedule& schedule, std::span<const int32_t> prompts) {
  Schedule single;
  const size_t sequences = prompts.size();
  const std::vector<int32_t> none(sequences, 0), never(sequences, -1);
  const auto any = [](const std::vector<int32_t>& values, int32_t above) {
    return std::any_of(values.begin(), values.end(), [&](int32_t value) { return value > above; });
  };
  std::vector<int32_t> done(sequences, 0);
  for (const Step& step : schedule) {
    // First what belongs to prompts, then a token at a time; each event with its sequence's last token.
    Step prompt{none, never};
    std::vector<int32_t> rest(sequences, 0);
    for (size_t s = 0; s < sequences; ++s) {
      prompt.counts[s] = std::clamp<int32_t>(prompts[s] - done[s], 0, step.counts[s]);
      rest[s] = step.counts[s] - prompt.counts[s];
      if (rest[s] == 0) prompt.keep[s] = step.keep[s];
      done[s] += step.counts[s];
    }
    if (any(prompt.counts, 0) || any(prompt.keep, -1)) single.push_back(std::move(prompt));
    for (int32_t i = 0; any(rest, i); ++i) {
      Step token{none, never, true};
      for (size_t s = 0; s < sequences; ++s) {
        token.counts[s] = rest[s] > i ? 1 : 0;
        if (rest[s] == i + 1) token.keep[s] = step.keep[s];
      }
      single.push_back(std::move(token));
    }
  }
  return single;
}

int32_t kept_tokens(int32_t tokens, double fraction) {
  return std::max<int32_t>(1, static_cast<int32_t>(static_cast<double>(tokens) * fraction));
}

}  // namespace kv
