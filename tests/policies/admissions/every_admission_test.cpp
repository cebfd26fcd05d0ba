// What holds of every registered admission with every policy: a new one joins by being registered.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "kernels/error.h"
#include "tests/support/backends.h"
#include "tests/support/policy_runs.h"
#include "tests/support/sights.h"
#include "tests/support/small_slots.h"

namespace kv::ref {
namespace {

constexpr int kBudget = 14, kInterval = 7;
const std::vector<int32_t> kLengths = {90, 61, 37};
const std::vector<int32_t> kSamples = {0, 1, 2};

class EveryAdmission : public testing::TestWithParam<std::string> {
 protected:
  EveryAdmission() {
    backend_->check_every_op(true);  // no page that is free, or another row's, is read
    std::vector<TinySample> samples;
    for (const int32_t sample : kSamples) {
      samples.push_back(random_sample(info_, kLengths[sample], static_cast<uint32_t>(sample) + 1));
    }
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
  }

  SlotChoice admission() const { return small_admission(GetParam()); }

  int window() const { return make_policy("full", {}, {.admission = admission()}).admission->window(); }

  PolicyRun run(RunArgs args) {
    args.admission = admission();
    return run_policy(*source_, *backend_, args);
  }

  const std::vector<SlotChoice> allocations_ = {{"uniform"},
                                                {"ada"},
                                                {"global"},
                                                {"global", {{"floor", "0.5", ""}}},
                                                {"global", {{"scope", "layer", ""}, {"floor", "0.5", ""}}}};
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  std::unique_ptr<TinySource> source_;
};

TEST_P(EveryAdmission, ShowsAWindowToEveryQuery) {
  const int window = this->window();
  EXPECT_LT(window, kLengths.back())
      << "these texts never leave it: let the option that says how long be called window";
  for (const auto& [row, by_position] : sights(*source_, *backend_, admission(), kLengths)) {
    const auto length = static_cast<size_t>(kLengths[std::get<0>(row)]);
    ASSERT_EQ(by_position.size(), length);
    for (const auto& [position, seen] : by_position) {
      for (int32_t j = std::max(0, position - window + 1); j <= position; ++j) ASSERT_TRUE(seen.contains(j));
      EXPECT_EQ(*seen.rbegin(), position);
    }
  }
}

// After every token, over the heads of a sequence: memory is planned by what an admission says of them beforehand.
TEST_P(EveryAdmission, SeesNoLessAndNoMoreThanItForetells) {
  std::map<std::pair<int, int>, SeenEntries> seen;  // by sequence and position
  for (const auto& [row, by_position] : sights(*source_, *backend_, admission(), kLengths)) {
    for (const auto& [position, entries] : by_position) {
      SeenEntries& of_heads = seen[{std::get<0>(row), position}];
      of_heads.total += std::ssize(entries);
      of_heads.longest = std::max<int64_t>(of_heads.longest, std::ssize(entries));
    }
  }
  const Policy policy = make_policy("full", {}, {.admission = admission()});
  const int64_t heads = int64_t{info_.layers} * info_.kv_heads;
  for (const auto& [at, of_heads] : seen) {
    const int64_t tokens = at.second + 1;
    const SeenEntries least = policy.admission->least_seen(tokens, heads);
    const SeenEntries most = policy.admission->most_seen(tokens, heads);
    EXPECT_GE(of_heads.total, least.total) << tokens << " tokens";
    EXPECT_GE(of_heads.longest, least.longest) << tokens << " tokens";
    EXPECT_LE(of_heads.total, most.total) << tokens << " tokens";
    EXPECT_LE(of_heads.longest, most.longest) << tokens << " tokens";
  }
}

// With every policy and allocations that pool layers, which duo leaves uneven: at an event there is nothing but what
// was admitted or is in the window, what stays was there, a budget is never exceeded, and memory is that of the
// entries.
TEST_P(EveryAdmission, LeavesEvictionsToWhatItAdmitted) {
  const auto seen = sights(*source_, *backend_, admission(), kLengths);
  int64_t events = 0;
  for (const PolicyEntry* entry : policies()) {
    for (const SlotChoice& allocation : allocations_) {
      const Policy policy = make_policy(entry->name, {});
      if (!policy.scorer) continue;
      SCOPED_TRACE(entry->name + "+" + allocation.name);
      RunArgs args;
      try {
        args = decode_run(entry->name, {}, kSamples, kLengths, kBudget, kInterval);
      } catch (const UserError&) {
        continue;  // wants longer texts
      }
      args.allocation = allocation;
      if (policy.scorer->needs().window(args.interval) > window()) {
        EXPECT_THROW(run(args), UserError);
        continue;
      }
      const PolicyRun ran = run(args);
      std::map<std::tuple<int, int>, int64_t> left;  // of a sequence's event, over layers and heads
      for (const Event& event : ran.events) {
        const std::set<int32_t>& last = seen.at({event.sequence, event.layer, event.head}).at(event.tokens_seen - 1);
        for (const int32_t position : event.resident) ASSERT_TRUE(last.contains(position)) << position;
        for (const int32_t position : event.kept) {
          ASSERT_TRUE(std::binary_search(event.resident.begin(), event.resident.end(), position));
        }
        left[{event.sequence, event.tokens_seen}] += std::ssize(event.kept);
      }
      events += std::ssize(left);
      for (const auto& [at, entries] : left) EXPECT_EQ(entries, kBudget * 4);
      const int64_t page = 16 * (2 * 8 * 4 + 2 * 4), rows = 3 * 2 * 2;
      int64_t entries = 0;
      for (const auto& sequence : ran.result.sequences) entries += sequence.end_entries;
      EXPECT_LE(static_cast<int64_t>(ran.result.end_kv_bytes), page * (entries / 16 + rows));
    }
  }
  EXPECT_GT(events, 0);
}

// Blocks of a prefill and tokens of a decode leave the same entries, at the next event.
TEST_P(EveryAdmission, DecidesByPositionNotByBlock) {
  const auto kept = [&](int chunk) {
    const std::vector<int32_t> contexts = {89, 60, 36}, keep = {12, 11, 10};
    RunArgs args = one_shot_run("random", {}, kSamples, kLengths, keep);
    args.schedule = one_shot_schedule(kLengths, contexts, keep, chunk);
    std::vector<std::vector<int32_t>> all;
    for (const Event& event : run(args).events) all.push_back(event.resident);
    return all;
  };
  const auto whole = kept(1024);
  EXPECT_FALSE(whole.empty());
  for (const int chunk : {1, 7, 33}) EXPECT_EQ(kept(chunk), whole) << chunk;
}

INSTANTIATE_TEST_SUITE_P(Admissions, EveryAdmission, testing::ValuesIn(filling_admissions()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace kv::ref
