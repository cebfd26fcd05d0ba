// What holds of every allocation over scorers of different kinds: a new one joins by being registered.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "kernels/error.h"
#include "sim/replay/resident_bound.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/policy_runs.h"
#include "tests/support/replayed.h"
#include "tests/support/uneven_profile.h"

namespace kv::ref {
namespace {

const std::vector<int32_t> kLengths = {90, 61, 75};
const std::vector<int32_t> kKeep = {30, 20, 16};  // one-shot
constexpr int kBudget = 24;
constexpr int kInterval = 12;
constexpr int kShortInterval = 4;  // below r-kv's window

using Combination = std::tuple<std::string, std::string, std::string>;  // backend, allocation, scorer

std::vector<std::string> divided() {
  std::vector<std::string> names;
  for (const AllocationEntry* entry : allocations()) names.push_back(entry->name);
  return names;
}

class EveryAllocation : public testing::TestWithParam<Combination> {
 protected:
  void SetUp() override {
    backend_ = try_backend(std::get<0>(GetParam()));
    if (!backend_) GTEST_SKIP() << std::get<0>(GetParam()) << " is not here";
    std::vector<TinySample> samples;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      samples.push_back(random_sample(info_, kLengths[s], static_cast<uint32_t>(s) + 1));
    }
    source_ = std::make_unique<test::WithOutput>(*backend_, info_, std::move(samples));
  }

  // Both protocols, and shorter intervals where check_decode() allows them.
  std::vector<RunArgs> runs(const std::vector<int32_t>& samples = {0, 1, 2}) const {
    std::vector<int32_t> lengths, keep;
    for (const int32_t sample : samples) {
      lengths.push_back(kLengths[static_cast<size_t>(sample)]);
      keep.push_back(kKeep[static_cast<size_t>(sample)]);
    }
    const auto& [backend, allocation, scorer] = GetParam();
    Options options;
    if (allocation == "pyramid") options = {{"beta", "3", ""}, {"window", "4", ""}};  // small budgets
    if (allocation == "lu-kv") options = {{"profile", write_profile(scorer), ""}};
    std::vector<RunArgs> all = {decode_run(scorer, {}, samples, lengths, kBudget, kInterval),
                                one_shot_run(scorer, {}, samples, lengths, keep)};
    const Policy policy = make_policy(scorer, {}, {.allocation = {allocation, options}});
    if (policy.allocation->keeps_protected() || policy.scorer->needs().window_queries <= kShortInterval) {
      EXPECT_EQ(check_decode(policy, kBudget, kShortInterval), kShortInterval);
      all.push_back(decode_run(scorer, {}, samples, lengths, kBudget, kShortInterval));
    }
    for (RunArgs& args : all) args.allocation = {allocation, options};
    return all;
  }

  std::string write_profile(const std::string& scorer) const {
    const std::filesystem::path file = folder_.path() / (scorer + ".json");
    test::write_file(file, test::uneven_profile(scorer, info_));
    return file.string();
  }

  PolicyRun run(const RunArgs& args) { return run_policy(*source_, *backend_, args); }

  test::TempFolder folder_;
  std::unique_ptr<Backend> backend_;
  SourceInfo info_ = tiny_info(3, 4, 2, 8);
  std::unique_ptr<Source> source_;
};

// Events of one cut, by sequence and tokens seen.
std::map<std::pair<int, int>, std::vector<Event>> cuts_of(const PolicyRun& run) {
  std::map<std::pair<int, int>, std::vector<Event>> cuts;
  for (const Event& event : run.events) cuts[{event.sequence, event.tokens_seen}].push_back(event);
  return cuts;
}

// Those that say so: the others may thin a head below what its scorer protects.
class ProtectingAllocation : public EveryAllocation {};

std::vector<std::string> protecting() {
  std::vector<std::string> names = divided();
  std::erase_if(names, [](const std::string& name) { return !make_allocation(name, {})->keeps_protected(); });
  return names;
}

TEST_P(EveryAllocation, KeepsExactlyTheTotal) {
  for (const RunArgs& args : runs()) {
    const auto cuts = cuts_of(run(args));
    ASSERT_FALSE(cuts.empty());
    for (const auto& [key, heads] : cuts) {
      const int32_t mean = args.interval > 0 ? kBudget : kKeep[static_cast<size_t>(key.first)];
      ASSERT_EQ(heads.size(), 6U);
      size_t total = 0;
      for (const Event& head : heads) total += head.kept.size();
      EXPECT_EQ(total, 6U * static_cast<size_t>(mean));
    }
  }
}

TEST_P(ProtectingAllocation, KeepsTheProtected) {
  for (const RunArgs& args : runs()) {
    for (const Event& event : run(args).events) {
      const int n = static_cast<int>(event.resident.size());
      for (int slot = 0; slot < n; ++slot) {
        const int32_t position = event.resident[static_cast<size_t>(slot)];
        if (position >= event.protection.sinks && n - slot > event.protection.recent) continue;
        EXPECT_TRUE(std::binary_search(event.kept.begin(), event.kept.end(), position)) << position;
      }
    }
  }
}

// The scores of those of `positions` that the event could have taken, in ascending order.
std::vector<float> ranked_scores(const Event& event, const std::vector<int32_t>& positions) {
  std::vector<float> scores;
  for (size_t slot = 0; slot < event.resident.size(); ++slot) {
    if (is_protected(event.protection, event.resident, slot)) continue;
    if (std::binary_search(positions.begin(), positions.end(), event.resident[slot])) {
      scores.push_back(event.scores[slot]);
    }
  }
  std::sort(scores.begin(), scores.end());
  return scores;
}

// Sinks, then the newest recent ones, then the best scores, equal ones newer first: as many as the head was given.
// Where second keys decide among equal scores, the scores that stay are compared.
TEST_P(EveryAllocation, OfEachHeadTheScorersBestStay) {
  for (const RunArgs& args : runs()) {
    const bool has_ties = make_policy(args.policy, {}, {args.allocation}).scorer->has_ties();
    for (const Event& event : run(args).events) {
      const int n = static_cast<int>(event.resident.size());
      const auto rank = [&](int slot) {
        const bool sink = event.resident[static_cast<size_t>(slot)] < event.protection.sinks;
        const bool recent = n - slot <= event.protection.recent;
        const double score = sink || recent ? 0 : -event.scores[static_cast<size_t>(slot)];
        return std::tuple(sink ? 0 : recent ? 1 : 2, score, sink ? slot : -slot);
      };
      std::vector<int> order(event.resident.size());
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) < rank(b); });
      std::vector<int32_t> best;
      for (size_t i = 0; i < event.kept.size(); ++i) best.push_back(event.resident[static_cast<size_t>(order[i])]);
      std::sort(best.begin(), best.end());
      if (has_ties) {
        EXPECT_EQ(ranked_scores(event, event.kept), ranked_scores(event, best));
      } else {
        EXPECT_EQ(event.kept, best);
      }
    }
  }
}

TEST_P(EveryAllocation, RaggedBatchEqualsSingleSequences) {
  const std::vector<RunArgs> batched = runs();
  for (size_t protocol = 0; protocol < batched.size(); ++protocol) {
    const auto all = cuts_of(run(batched[protocol]));
    for (int32_t sample = 0; sample < 3; ++sample) {
      for (const auto& [key, heads] : cuts_of(run(runs({sample})[protocol]))) {
        const std::vector<Event>& other = all.at({sample, key.second});
        ASSERT_EQ(heads.size(), other.size());
        for (size_t i = 0; i < heads.size(); ++i) EXPECT_EQ(heads[i].kept, other[i].kept);
      }
    }
  }
}

TEST_P(EveryAllocation, HoldsNoMoreThanIsForeseen) {
  for (const RunArgs& args : runs()) {
    const Policy policy = make_policy(args.policy, args.options, {args.allocation});
    const auto bounds = resident_bounds(args.schedule, policy, info_);
    const PolicyRun result = run(args);
    int64_t pages = 0;
    for (const ResidentBound& bound : bounds) pages += bound.pages();
    const CacheShape shape{.kv_heads = info_.kv_heads, .head_dim = info_.head_dim};
    const size_t most = static_cast<size_t>(pages) * page_bytes(shape, backend_->activation_type());
    EXPECT_LE(result.result.peak_kv_bytes, most);
    EXPECT_TRUE(args.allocation.name != "uniform" || result.result.peak_kv_bytes == most);
    for (const Event& event : result.events) {
      const ResidentBound& bound = bounds[static_cast<size_t>(event.sequence)];
      EXPECT_LE(static_cast<int64_t>(event.resident.size()), bound.longest());
      EXPECT_LE(static_cast<int64_t>(event.kept.size()),
                policy.allocation->most_kept(args.interval > 0 ? kBudget : kKeep[static_cast<size_t>(event.sequence)],
                                             info_.layers, info_.kv_heads));
    }
  }
}

// random and keydiff have scores without second keys, snapkv and r-kv have them; streaming and h2o protect by the
// budget, snapkv, r-kv and tova the newest, expected-attention the first; tova ranks all heads of a layer alike; h2o
// and observed-attention keep sums of their own. golden has no one-shot form.
const auto scorers = testing::Values("random", "keydiff", "streaming", "h2o", "r-kv", "expected-attention", "tova",
                                     "snapkv", "observed-attention");

std::string name_of(const testing::TestParamInfo<Combination>& test) {
  const auto& [backend, allocation, scorer] = test.param;
  std::string name = backend + "_" + allocation + "_" + scorer;
  std::erase(name, '-');
  return name;
}

auto combined(const std::vector<std::string>& allocations) {
  return testing::Combine(testing::ValuesIn(backend_names()), testing::ValuesIn(allocations), scorers);
}

INSTANTIATE_TEST_SUITE_P(Registered, EveryAllocation, combined(divided()), name_of);
INSTANTIATE_TEST_SUITE_P(Registered, ProtectingAllocation, combined(protecting()), name_of);

// A head that keeps one entry has five at the next event, too few for the eight queries that judge it.
TEST(Allocation, ThatMayThinAHeadRefusesIntervalsBelowTheWindow) {
  for (const char* allocation : {"pyramid", "lu-kv", "optimal"}) {
    const Policy policy = make_policy("r-kv", {}, {.allocation = {allocation}});
    EXPECT_EQ(check_decode(policy, 24, 8), 8);
    EXPECT_EQ(test::user_error([&] { check_decode(policy, 24, 4); }),
              fmt::format("r-kv: interval 4 must be at least the window 8 with allocation {}, which may leave a head "
                          "fewer entries",
                          allocation));
  }
  for (const char* allocation : {"uniform", "ada"}) {
    EXPECT_EQ(check_decode(make_policy("r-kv", {}, {.allocation = {allocation}}), 24, 4), 4);
  }
}

TEST(Allocation, RefusesAnUnknownOneAndOneForFull) {
  const auto message = [](const std::string& policy, const std::string& allocation) -> std::string {
    try {
      make_policy(policy, {}, {.allocation = {allocation}});
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(
      message("h2o", "adaa").starts_with("unknown allocation 'adaa', did you mean 'ada'? (expected one of: ada, "))
      << message("h2o", "adaa");
  EXPECT_EQ(message("full", "ada"), "full: never evicts, so there is nothing to allocate (allocation: ada)");
}

}  // namespace
}  // namespace kv::ref
