#include "sim/replay/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "sim/replay/loop.h"
#include "sim/replay/run_footprint.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"
#include "sim/replay/writer.h"

namespace kv {

namespace {

// Steps between two looks of the host at the new ids: what is computed beyond a sequence's end stays under that many
// tokens, and the device waits for the host no more often.
constexpr int kLookEvery = 16;
// Steps that one recording serves: pages for all of them are taken at once.
constexpr int kLongestRun = 256;
// Sums of two of them stay within 32 bits.
constexpr int kMostTokens = 1 << 29;

void check_prompts(const GenerateArgs& args) {
  if (args.prompts.empty()) throw UserError("generation: no prompts");
  for (size_t s = 0; s < args.prompts.size(); ++s) {
    if (args.prompts[s].empty()) throw UserError(fmt::format("generation: prompt {} is empty", s));
    args.source.check_length(std::ssize(args.prompts[s]) + args.max_new_tokens);
  }
}

// Throws where the protocol and the policy do not go together; returns the interval that the policy really runs at.
int check_protocol(const GenerateArgs& args) {
  if (args.max_new_tokens < 1) {
    throw UserError(fmt::format("generation: {} new tokens: expected at least 1", args.max_new_tokens));
  }
  for (const int count : {args.max_new_tokens, args.budget, args.interval}) {
    if (count > kMostTokens) {
      throw UserError(fmt::format("generation: {} tokens: expected at most {}", count, kMostTokens));
    }
  }
  const bool decode = args.budget != 0 || args.interval != 0;
  if (decode && args.keep) {
    throw UserError("generation: expected either a budget and an interval or a fraction of the prompt to keep");
  }
  if (args.keep && !(*args.keep > 0 && *args.keep <= 1)) {
    throw UserError(fmt::format("generation: keep {}: expected a fraction above 0 and at most 1", *args.keep));
  }
  if (decode && (args.budget < 1 || args.interval < 1)) {
    throw UserError(
        fmt::format("generation: budget {}, interval {}: expected at least 1 each", args.budget, args.interval));
  }
  KV_CHECK(!args.resumed || (!args.policy.scorer && args.filled == 0));
  KV_CHECK(args.until_first_end == (args.left != nullptr) && !(args.left && args.policy.scorer));
  KV_CHECK(args.active.empty() || args.resumed);
  if (!args.policy.scorer) {
    if (decode || args.keep) {
      throw UserError(
          fmt::format("generation: {} never evicts (expected no budget and nothing to keep)", args.policy.name));
    }
    return 0;
  }
  if (!decode && !args.keep) {
    throw UserError(fmt::format("generation: {} needs a budget and an interval, or a fraction of the prompt to keep",
                                args.policy.name));
  }
  return decode ? check_decode(args.policy, args.budget, args.interval) : 0;
}

int32_t kept_of(const GenerateArgs& args, int32_t length) {
  return args.keep ? kept_tokens(length, *args.keep) : length;
}

// Tokens that pages are taken for together.
int64_t generation_block(const GenerateArgs& args) {
  const int32_t filled = Loop::filled_at_once(args.policy, std::ssize(args.prompts));
  return std::max({args.prefill_chunk, std::min(args.max_new_tokens, kLongestRun), std::min(args.filled, filled)});
}

// Bounds for prompts that start with an empty cache. The last new token is never processed.
std::vector<ResidentBound> resident_bounds(const GenerateArgs& args, int interval) {
  const Arrivals arrivals{args.policy.admission.get(), generation_block(args), Foreseen::kSurely};
  std::vector<ResidentBound> bounds;
  for (const auto& prompt : args.prompts) {
    const auto length = static_cast<int32_t>(prompt.size());
    bounds.push_back(generation_bound(args.source.info(), *args.policy.allocation,
                                      {.prompt = length,
                                       .kept = kept_of(args, length),
                                       .more = args.max_new_tokens - 1,
                                       .budget = args.budget,
                                       .interval = interval},
                                      arrivals));
  }
  return bounds;
}

bool goes_on(const GenerateArgs& args, size_t s) { return args.active.empty() || args.active[s] != 0; }

RunShape shape_of(const GenerateArgs& args, int interval) {
  int64_t tokens = 0;
  for (size_t s = 0; s < args.prompts.size(); ++s) {
    if (!goes_on(args, s)) continue;
    const int64_t present = args.resumed ? args.resumed->done[s] : args.filled;
    tokens += std::min<int64_t>(std::ssize(args.prompts[s]) - present, args.prefill_chunk);
  }
  RunShape shape = run_shape(resident_bounds(args, interval), tokens);
  shape.interval = interval;
  shape.logits = shape.sequences * args.source.vocab();
  return shape;
}

void check_memory(const GenerateArgs& args, const RunShape& shape) {
  Footprint need = run_footprint(args.backend, args.source, args.policy, shape);
  if (args.resumed) {
    std::vector<int32_t> more;
    for (size_t s = 0; s < args.prompts.size(); ++s) {
      const int32_t unread = static_cast<int32_t>(args.prompts[s].size()) - args.resumed->done[s];
      more.push_back(goes_on(args, s) ? unread + args.max_new_tokens - 1 : 0);
    }
    need.cache = args.resumed->cache.growth_bytes(more);
  }
  require_memory(args.backend, need, fmt::format("a batch of {} under {}", args.prompts.size(), args.policy.name));
}

class Generation {
 public:
  Generation(const GenerateArgs& args, int interval, int64_t pages)
      : args_(args),
        interval_(interval),
        pages_(pages),
        writer_({.backend = args.backend,
                 .model = args.source,
                 .prompts = args.prompts,
                 .sample_numbers = args.sample_numbers,
                 .sampling = args.sampling,
                 .max_new_tokens = args.max_new_tokens}),
        loop_({.backend = args.backend,
               .source = writer_,
               .policy = args.policy,
               .sequences = static_cast<int>(args.prompts.size()),
               .budget = args.budget,
               .interval = interval_,
               .filled = args.filled,
               .seed = args.seed,
               .sample_numbers = args.sample_numbers,
               .observers = args.observers,
               .count_pairs = args.count_pairs,
               .time_phases = false}),
        active_(args.prompts.size(), 1),
        newest_(args.prompts.size(), -1),
        watch_(args.backend) {
    for (const auto& prompt : args.prompts) lengths_.push_back(static_cast<int32_t>(prompt.size()));
    for (size_t s = 0; s < active_.size(); ++s) active_[s] = goes_on(args, s) ? 1 : 0;
    result_.sequences.resize(args.prompts.size());
  }

  GenerateResult go() {
    if (args_.resumed) {
      loop_.resume(args_.prompts, std::move(*args_.resumed));
    } else {
      loop_.begin(args_.prompts, pages_);
    }
    if (args_.filled > 0) loop_.fill(args_.filled);
    Stopwatch total(args_.backend);
    total.start();
    watch_.start();
    for (const Step& step : prompt_schedule()) loop_.step(step);
    take_new_ids(1);
    result_.prefill_seconds = watch_.lap();
    while (wants_more()) {
      writer_.decode(active_, newest_);
      const int steps_before_cut = std::min(steps_left(), steps_until_cut() - 1);
      if (steps_before_cut > 0) {
        decode(std::min(steps_before_cut, kLongestRun));
      } else {
        cut();
      }
    }
    const double total_seconds = total.seconds();
    result_.costs = loop_.finish();
    if (args_.left) *args_.left = loop_.leave();
    result_.costs.total_seconds = total_seconds;
    result_.peak_bytes = args_.backend.peak_bytes();
    return std::move(result_);
  }

 private:
  bool wants_more() const {
    if (args_.until_first_end && ended_) return false;
    return std::find(active_.begin(), active_.end(), 1) != active_.end();
  }

  // The last new token is never processed.
  int steps_left() const { return args_.max_new_tokens - generated_; }

  Schedule prompt_schedule() const {
    if (args_.filled > 0 || args_.resumed) return unread_prompts();
    if (interval_ > 0) return pruned_prompts();
    if (!args_.keep) return full_schedule(lengths_, args_.prefill_chunk);
    std::vector<int32_t> keep;
    for (const int32_t length : lengths_) {
      keep.push_back(kept_of(args_, length));
      args_.policy.scorer->check_budget(keep.back(), 0);
    }
    return one_shot_schedule(lengths_, lengths_, keep, args_.prefill_chunk);
  }

  Schedule unread_prompts() const {
    KV_CHECK(!args_.keep);
    std::vector<int32_t> unread = lengths_;
    for (size_t s = 0; s < unread.size(); ++s) {
      if (!active_[s]) {
        unread[s] = 0;
        continue;
      }
      KV_CHECK(unread[s] > loop_.tokens_done()[s] && (interval_ == 0 || unread[s] < args_.budget + interval_));
      unread[s] -= loop_.tokens_done()[s];
    }
    return full_schedule(unread, args_.prefill_chunk);
  }

  // There is a cut at the end of a prompt exactly when another token is to be processed.
  Schedule pruned_prompts() const {
    const auto schedule = args_.max_new_tokens > 1 ? prompt_decode_schedule : decode_schedule;
    return schedule(lengths_, args_.budget, interval_, args_.prefill_chunk);
  }

  // The step that brings the first cut of any active sequence: 1 = the next one.
  int steps_until_cut() const {
    int steps = args_.max_new_tokens + 1;
    if (interval_ == 0) return steps;
    for (size_t s = 0; s < active_.size(); ++s) {
      if (!active_[s]) continue;
      const int32_t beyond = loop_.tokens_done()[s] - args_.budget;
      steps = std::min(steps, beyond < 0 ? interval_ - beyond : interval_ - beyond % interval_);
    }
    return steps;
  }

  void decode(int steps) {
    loop_.decode(active_, steps, args_.until_first_end ? 1 : kLookEvery, [&](int since, bool recorded) {
      const bool all_go_on = take_new_ids(since);
      note_steps(since, recorded, watch_.lap());
      return all_go_on;
    });
  }

  void note_steps(int steps, bool recorded, double seconds) {
    result_.stretches.push_back({.steps = steps, .recorded = recorded, .seconds = seconds});
    result_.decode_seconds += seconds;
  }

  // One step with the cuts that are due after it.
  void cut() {
    Step step{active_, std::vector<int32_t>(active_.size(), -1), true};
    for (size_t s = 0; s < active_.size(); ++s) {
      const bool due = active_[s] && cut_is_due(loop_.tokens_done()[s] + 1, args_.budget, interval_);
      if (due && steps_left() > 1) step.keep[s] = args_.budget;
    }
    const double before = loop_.eviction_seconds();
    loop_.step(step);
    take_new_ids(1);
    const double eviction = loop_.eviction_seconds() - before;
    result_.evict_seconds += eviction;
    note_steps(1, false, watch_.lap() - eviction);
  }

  // Takes up the ids of the newest steps; false when a sequence has ended.
  bool take_new_ids(int steps) {
    const std::vector<int32_t> ids = writer_.texts(generated_, steps);
    generated_ += steps;
    bool all_go_on = true;
    for (size_t s = 0; s < active_.size(); ++s) {
      if (!active_[s]) continue;
      for (int i = 0; i < steps && active_[s]; ++i) take(s, ids[static_cast<size_t>(i) * active_.size() + s]);
      all_go_on = all_go_on && active_[s];
    }
    return all_go_on;
  }

  void take(size_t s, int32_t id) {
    GenerateResult::Sequence& text = result_.sequences[s];
    text.ids.push_back(id);
    newest_[s] = id;
    if (std::find(args_.stop_ids.begin(), args_.stop_ids.end(), id) != args_.stop_ids.end()) {
      text.ending = GenerateResult::Ending::kStop;
      active_[s] = 0;
    } else if (std::ssize(text.ids) == args_.max_new_tokens) {
      active_[s] = 0;
    }
    ended_ = ended_ || !active_[s];
  }

  const GenerateArgs& args_;
  int interval_;
  int64_t pages_;  // taken at once
  Writer writer_;
  Loop loop_;
  std::vector<int32_t> lengths_;  // of the prompts
  std::vector<int32_t> active_;   // 1 = goes on
  std::vector<int32_t> newest_;   // ids
  bool ended_ = false;            // at least one sequence
  int generated_ = 0;             // new tokens of every active sequence
  Stopwatch watch_;               // every moment from the prompts' first on is some lap's
  GenerateResult result_;
};

}  // namespace

double GenerateResult::step_seconds() const {
  for (const bool recorded : {true, false}) {
    double seconds = 0;
    int steps = 0;
    for (const Stretch& stretch : stretches) {
      if (stretch.recorded != recorded) continue;
      seconds += stretch.seconds;
      steps += stretch.steps;
    }
    if (steps > 0) return seconds / steps;
  }
  throw UserError("no decode step was timed");
}

GenerateResult generate(const GenerateArgs& args) {
  check_sampling(args.sampling);
  const int interval = check_protocol(args);
  check_prompts(args);
  const RunShape shape = shape_of(args, interval);
  check_memory(args, shape);
  return Generation(args, interval, pages_at_once(args.policy, shape)).go();
}

}  // namespace kv
