#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/policy/capacity.h"
#include "sim/policy/policy.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"
#include "tests/ref/naive_policies.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {

using Options = std::vector<GivenParam>;

// What one event did to one (sequence, layer, KV head).
struct Event {
  int sequence = 0;
  int layer = 0;
  int head = 0;
  int tokens_seen = 0;
  Protection protection;
  std::vector<int32_t> resident;   // positions before the cut
  std::vector<float> scores;       // one for each of `resident`; protected ones may hold anything
  std::vector<int32_t> kept = {};  // positions after it
};

struct PolicyRun {
  std::vector<Event> events;
  ReplayResult result;
  std::optional<LoopState> left = {};
};

struct RunArgs {
  std::string policy;
  Options options;
  std::vector<int32_t> samples = {0};  // numbers in the source, one a sequence
  std::vector<int32_t> lengths;        // tokens of each
  Schedule schedule;
  int budget = 0;
  int interval = 0;
  uint64_t seed = 1;
  SlotChoice allocation{"uniform"};
  SlotChoice admission{"none"};
  SlotChoice selection{"all"};
  std::optional<Capacity> capacity = {};
};

// Decode-time pruning as the harness runs it: the policy's own interval, its check().
RunArgs decode_run(const std::string& policy, const Options& options, std::vector<int32_t> samples,
                   std::vector<int32_t> lengths, int budget, int interval);
// One-shot compression of everything but the last token to keep[s] entries.
RunArgs one_shot_run(const std::string& policy, const Options& options, std::vector<int32_t> samples,
                     std::vector<int32_t> lengths, std::vector<int32_t> keep);

// Slots that learn decide by what their training would begin with, but for those whose options (the scorer's, or those
// of `slots`) name weights; others read their files.
void prepare(Policy& policy, const SourceInfo& info, const Options& options, const SlotChoices& slots);

// An oracle's full-cache pass has statistics of every interval, in one-shot compression of every token.
PolicyRun run_policy(Source& source, Backend& backend, const RunArgs& args);

// A single head (weighted_sample) with decode-time pruning; positions kept at each event. The value of a token has this
// length (empty: all values are (1, 1)).
std::vector<std::vector<int32_t>> kept_by(const std::string& policy, const Options& options,
                                          const std::vector<std::vector<float>>& weights, int budget, int interval,
                                          const std::vector<float>& value_lengths = {});
// The same, compressed once: positions kept.
std::vector<int32_t> kept_once(const std::string& policy, const Options& options,
                               const std::vector<std::vector<float>>& weights, int keep,
                               const std::vector<float>& value_lengths = {});

// The policy on a backend against its naive transcription on random tensors (2 layers, 2 KV heads, group 2), event by
// event: the same sets, and scores within `tolerance` of the row's largest. Fails when there was no event.
struct Agreement {
  int tokens = 70;
  int budget = 24;
  int interval = 12;  // 0 = one-shot compression to `budget` entries
  double tolerance = 1e-5;
};
void expect_agrees(Backend& backend, const std::string& policy, const Options& options, const NaivePolicy& naive,
                   const Agreement& agreement = {});

// check() throws exactly this line.
void expect_refused(const std::string& policy, const Options& options, int kept, int interval,
                    const std::string& message);
// make_policy() throws exactly this line.
void expect_bad_option(const std::string& policy, const Options& options, const std::string& message);

}  // namespace kv::ref
