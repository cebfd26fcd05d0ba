// What holds of any scorer, allocation, admission and selection together, whatever says when events fall: combinations
// are drawn from all that is registered.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kernels/error.h"
#include "sim/policy/capacity.h"
#include "sim/replay/resident_bound.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/sights.h"

namespace kv::ref {
namespace {

constexpr int kWindow = 16, kBudget = 24, kInterval = 8, kDraws = 300;
const std::vector<int32_t> kLengths = {90, 61, 47}, kPrompts = {40, 61, 30}, kSamples = {0, 1, 2};

class EveryCombination : public testing::Test {
 protected:
  EveryCombination() {
    backend_->check_every_op(true);  // no page that is free, or another row's, is read
    std::vector<TinySample> samples;
    for (const int32_t sample : kSamples) {
      samples.push_back(random_sample(info_, kLengths[sample], static_cast<uint32_t>(sample) + 1));
    }
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
    test::write_file(folder_ / "alphas.tsv", "0.8\t0.9\n0.1\t0.2\n");
    const SlotChoice by_position{"local", {{"sinks", "2", ""}, {"window", std::to_string(kWindow), ""}}};
    SlotChoice by_head = by_position, by_gate = by_position;
    by_head.name = "duo";
    by_head.options.push_back({"alphas", (folder_ / "alphas.tsv").string(), ""});
    by_gate.name = "wg-kv";
    by_gate.options.push_back({"weights", "initial", ""});
    by_gate.options.push_back({"tau", "0.5", ""});
    admissions_ = {{"none"}, by_position, by_head, by_gate};
    selections_ = {{"all"}, {"quest", {{"pages", "2", ""}}}, {"quest", {{"pages", "2", ""}, {"mode", "official", ""}}}};
    for (const SlotChoice& admission : admissions_) {
      seen_.push_back(sights(*source_, *backend_, admission, kLengths));
    }
  }

  template <class Choices>
  const typename Choices::value_type& draw(const Choices& choices) {
    return choices[generator_() % choices.size()];
  }

  // A policy with its slots, and when its events fall; UserError where they do not go together.
  RunArgs draw_run(size_t& admission) {
    admission = generator_() % admissions_.size();
    const int when = static_cast<int>(generator_() % 3);
    const std::string scorer = draw(policies())->name;
    RunArgs args = when == 0   ? decode_run(scorer, {}, kSamples, kLengths, kBudget, kInterval)
                   : when == 1 ? one_shot_run(scorer, {}, kSamples, kLengths, {20, 18, 16})
                               : RunArgs{.policy = scorer,
                                         .options = {},
                                         .samples = kSamples,
                                         .lengths = kLengths,
                                         .schedule = full_schedule(kLengths, 32),
                                         .capacity = Capacity{.entries = 16, .drop = 0.25}};
    if (args.capacity) {
      const Policy alone = make_policy(scorer, {});
      const int judging = scorer_needs(alone).window(args.capacity->interval());
      args.capacity->window = admission > 0 ? kWindow : judging;
      if (alone.scorer) args.capacity->sinks = alone.scorer->protects(args.capacity->kept(), 3).sinks;
      if (!args.capacity->holds()) throw UserError("takes too little");
      if (scorer_needs(alone).even_intervals) throw UserError("knows events after whole intervals only");
      args.budget = args.capacity->kept();
      args.interval = args.capacity->interval();
    }
    args.allocation = draw(allocations_);
    args.admission = admissions_[admission];
    args.selection = draw(selections_);
    if (!make_policy(scorer, {}).scorer) args.schedule = full_schedule(kLengths, 32);  // it has no events
    if (args.selection.name != "all") args.schedule = token_by_token(args.schedule, kPrompts);
    const Policy policy = make_policy(scorer, {}, {args.allocation, args.admission, args.selection});
    if (policy.oracle() && args.capacity) throw UserError("knows events by their places");
    if (policy.scorer) check_admission(policy, args.interval);
    return args;
  }

  // At an event there is nothing but what was let in or is in the window; what stays was there; totals are as asked.
  void check_events(const PolicyRun& ran, const RunArgs& args, const Sights& seen) {
    std::map<std::pair<int, int>, int64_t> left, asked;  // of a sequence's event, over layers and heads
    for (const Event& event : ran.events) {
      const std::set<int32_t>& last = seen.at({event.sequence, event.layer, event.head}).at(event.tokens_seen - 1);
      for (const int32_t position : event.resident) ASSERT_TRUE(last.contains(position)) << position;
      ASSERT_TRUE(std::includes(event.resident.begin(), event.resident.end(), event.kept.begin(), event.kept.end()));
      if (args.capacity) check_window(event, args.capacity->window);
      left[{event.sequence, event.tokens_seen}] += std::ssize(event.kept);
      asked[{event.sequence, event.tokens_seen}] += asked_of(event, args);
    }
    EXPECT_EQ(left, asked);
  }

  // What is in the window stays.
  static void check_window(const Event& event, int window) {
    const auto newest = std::min<std::ptrdiff_t>(window, std::ssize(event.resident));
    ASSERT_TRUE(
        std::includes(event.kept.begin(), event.kept.end(), event.resident.end() - newest, event.resident.end()));
  }

  static int64_t asked_of(const Event& event, const RunArgs& args) {
    if (args.capacity) {
      const auto length = static_cast<int32_t>(event.resident.size());
      const int32_t older = std::max(0, length - args.capacity->window);
      return length - std::min(older / 4, std::max(0, older - args.capacity->sinks));
    }
    return args.interval > 0 ? kBudget : std::vector{20, 18, 16}[event.sequence];
  }

  // At the end memory is that of the entries, lengths are those that the backend knows, and nothing was more than was
  // known before.
  void check_memory(const PolicyRun& ran, const RunArgs& args) {
    const Cache& cache = ran.left->cache;
    const Policy policy = make_policy(args.policy, {}, {args.allocation, args.admission, args.selection});
    int64_t bound = 0;
    for (const ResidentBound& of_sequence :
         resident_bounds(args.schedule, policy, info_, args.capacity && policy.scorer ? &*args.capacity : nullptr)) {
      bound += of_sequence.pages();
    }
    EXPECT_LE(cache.peak_pages(), bound);
    int64_t pages = 0;
    for (int layer = 0; layer < info_.layers; ++layer) {
      const PagedView view = cache.view(layer);
      for (size_t row = 0; row < static_cast<size_t>(cache.rows()); ++row) {
        const int32_t length = cache.lengths(layer)[row];
        EXPECT_EQ(view.lengths[row], length);
        pages += (length + kPageTokens - 1) / kPageTokens;
      }
    }
    EXPECT_EQ(cache.used_pages(), pages);
    int64_t entries = 0;
    for (const auto& sequence : ran.result.sequences) entries += sequence.end_entries;
    EXPECT_EQ(cache.entries(), entries);
  }

  const std::vector<SlotChoice> allocations_ = {
      {"uniform"}, {"share"}, {"ada"}, {"global"}, {"global", {{"scope", "layer", ""}, {"floor", "0.5", ""}}}};
  std::vector<SlotChoice> admissions_, selections_;
  std::vector<Sights> seen_;  // by admission
  std::mt19937 generator_{7};
  test::TempFolder folder_;
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  std::unique_ptr<TinySource> source_;
};

TEST_F(EveryCombination, KeepsWhatWasLetInAndAsManyAsAsked) {
  int ran = 0, events = 0;
  for (int i = 0; i < kDraws; ++i) {
    size_t admission = 0;
    RunArgs args;
    try {
      args = draw_run(admission);
    } catch (const UserError&) {
      continue;
    }
    SCOPED_TRACE(args.policy + ", " + args.allocation.name + ", " + args.admission.name + ", " + args.selection.name +
                 (args.capacity ? ", by capacity" : ""));
    const PolicyRun run = run_policy(*source_, *backend_, args);
    check_events(run, args, seen_[admission]);
    check_memory(run, args);
    ++ran;
    events += static_cast<int>(run.events.size());
  }
  EXPECT_GE(ran, kDraws / 3) << "most combinations go together";
  EXPECT_GE(events, 10 * ran);
}

}  // namespace
}  // namespace kv::ref
