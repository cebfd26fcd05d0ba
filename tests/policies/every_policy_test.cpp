// What holds of every registered policy: a new one joins by being registered.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/error.h"
#include "tests/support/backends.h"
#include "tests/support/frozen.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

constexpr int kBudget = 24;
constexpr int kInterval = 12;

const std::vector<int32_t> kLengths = {90, 61, 37};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const PolicyEntry* entry : policies()) all.push_back(entry->name);
  return all;
}

class EveryPolicy : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = try_backend(std::get<0>(GetParam()));
    if (!backend_) GTEST_SKIP() << std::get<0>(GetParam()) << " is not here";
    std::vector<TinySample> samples;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      samples.push_back(random_sample(info_, kLengths[s], static_cast<uint32_t>(s) + 1));
    }
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
  }

  static const std::string& policy_name() { return std::get<1>(GetParam()); }

  // Both protocols over all samples, as far as check() allows.
  std::vector<RunArgs> runs(const std::vector<int32_t>& samples = {0, 1, 2}) const {
    std::vector<int32_t> lengths, keep;
    for (const int32_t sample : samples) {
      lengths.push_back(kLengths[static_cast<size_t>(sample)]);
      keep.push_back(kKeep[static_cast<size_t>(sample)]);
    }
    std::vector<RunArgs> all = {decode_run(policy_name(), {}, samples, lengths, kBudget, kInterval)};
    try {
      all.push_back(one_shot_run(policy_name(), {}, samples, lengths, keep));
    } catch (const UserError&) {  // decode-time only
    }
    return all;
  }

  PolicyRun run(const RunArgs& args) { return run_policy(*source_, *backend_, args); }
  bool evicts() const { return make_policy(policy_name(), {}).scorer != nullptr; }

  // Kept entries of each sample in one-shot compression.
  static constexpr int32_t kKeep[] = {30, 20, 11};

  std::unique_ptr<Backend> backend_;
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<TinySource> source_;
};

TEST_P(EveryPolicy, KeepsExactlyTheBudget) {
  for (const RunArgs& args : runs()) {
    const PolicyRun outcome = run(args);
    EXPECT_EQ(outcome.events.empty(), !evicts());
    for (const Event& event : outcome.events) {
      const int32_t expected = args.interval > 0 ? kBudget : kKeep[event.sequence];
      EXPECT_EQ(event.kept.size(), static_cast<size_t>(expected));
    }
  }
}

TEST_P(EveryPolicy, KeepsOnlyResidentEntriesAndFreesTheOthers) {
  for (const RunArgs& args : runs()) {
    std::map<std::tuple<int, int, int>, Event> before;
    for (const Event& event : run(args).events) {
      EXPECT_TRUE(std::includes(event.resident.begin(), event.resident.end(), event.kept.begin(), event.kept.end()));
      const auto row = std::tuple(event.sequence, event.layer, event.head);
      std::vector<int32_t> expected;
      int32_t next = 0;
      if (const auto found = before.find(row); found != before.end()) {
        expected = found->second.kept;
        next = found->second.tokens_seen;
      }
      for (; next < event.tokens_seen; ++next) expected.push_back(next);
      EXPECT_EQ(event.resident, expected);
      before.insert_or_assign(row, event);
    }
  }
}

TEST_P(EveryPolicy, KeepsProtectedEntries) {
  const Policy policy = make_policy(policy_name(), {});
  for (const RunArgs& args : runs()) {
    for (const Event& event : run(args).events) {
      const int kept = static_cast<int>(event.kept.size());
      const Protection protection = policy.scorer->protects(kept, args.interval);
      for (size_t slot = 0; slot < event.resident.size(); ++slot) {
        const bool recent = static_cast<int>(event.resident.size() - slot) <= protection.recent;
        if (!recent && event.resident[slot] >= protection.sinks) continue;
        EXPECT_TRUE(std::binary_search(event.kept.begin(), event.kept.end(), event.resident[slot]));
      }
    }
  }
}

void expect_equal(const std::vector<Event>& a, const std::vector<Event>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "layer " << a[i].layer << ", head " << a[i].head << " after " << a[i].tokens_seen
                                    << " tokens");
    EXPECT_EQ(a[i].tokens_seen, b[i].tokens_seen);
    EXPECT_EQ(a[i].resident, b[i].resident);
    EXPECT_EQ(a[i].kept, b[i].kept);
  }
}

TEST_P(EveryPolicy, SameSeedKeepsTheSame) {
  for (const RunArgs& args : runs()) expect_equal(run(args).events, run(args).events);
}

TEST_P(EveryPolicy, RaggedBatchEqualsSingleSequences) {
  const std::vector<RunArgs> batched = runs();
  for (size_t protocol = 0; protocol < batched.size(); ++protocol) {
    const std::vector<Event> all = run(batched[protocol]).events;
    for (int32_t sample = 0; sample < 3; ++sample) {
      SCOPED_TRACE(testing::Message() << (protocol == 0 ? "decode" : "one-shot") << ", sample " << sample);
      std::vector<Event> of_sample;
      std::copy_if(all.begin(), all.end(), std::back_inserter(of_sample),
                   [&](const Event& e) { return e.sequence == sample; });
      expect_equal(of_sample, run(runs({sample})[protocol]).events);
    }
  }
}

TEST_P(EveryPolicy, ABudgetOfTheWholeSequenceIsFull) {
  const RunArgs roomy = decode_run(policy_name(), {}, {0, 1, 2}, kLengths, 96, kInterval);
  const RunArgs full = decode_run("full", {}, {0, 1, 2}, kLengths, kBudget, kInterval);
  const PolicyRun outcome = run(roomy), reference = run(full);
  EXPECT_TRUE(outcome.events.empty());
  for (size_t s = 0; s < kLengths.size(); ++s) {
    EXPECT_EQ(outcome.result.sequences[s].end_entries, reference.result.sequences[s].end_entries);
    EXPECT_EQ(outcome.result.sequences[s].attended_pairs, reference.result.sequences[s].attended_pairs);
  }
}

// FNV-1a over everything kept.
uint64_t hash_of(const std::vector<Event>& events) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const Event& event : events) {
    for (const int32_t position : event.kept) hash = (hash ^ static_cast<uint64_t>(position)) * 0x100000001b3;
  }
  return hash;
}

// To the last bit, which differs from backend to backend: on the CPU.
class EveryPolicyFrozen : public EveryPolicy {};

TEST_P(EveryPolicyFrozen, KeepsWhatItKept) {
  std::vector<uint64_t> hashes;
  for (const RunArgs& args : runs({0})) hashes.push_back(hash_of(run(args).events));
  const std::string line =
      fmt::format("const Frozen frozen{{\"{}\", {{{:#018x}}}}};", policy_name(), fmt::join(hashes, ", "));
  const std::vector<uint64_t>* frozen = frozen_hashes(policy_name());
  ASSERT_TRUE(frozen) << "to freeze what it keeps, add to its test (tests/support/frozen.h)\n    " << line;
  EXPECT_EQ(hashes, *frozen) << "to accept, in its test\n    " << line;
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Registered, EveryPolicy,
                         testing::Combine(testing::ValuesIn(backend_names()), testing::ValuesIn(names())), name_of);
INSTANTIATE_TEST_SUITE_P(Registered, EveryPolicyFrozen,
                         testing::Combine(testing::Values("cpu"), testing::ValuesIn(names())), name_of);

}  // namespace
}  // namespace kv::ref
