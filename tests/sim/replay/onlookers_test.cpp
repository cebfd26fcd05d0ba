// Policies that rank along while another one cuts.

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/slices.h"
#include "tests/support/tiny_source.h"

namespace kv {
namespace {

constexpr int kBudget = 24, kInterval = 12;
const std::vector<int32_t> kLengths = {90, 61};

// One layer of one event: its keep mask and the scores of the policy that cuts, then of each onlooker; one number for
// every resident entry of every due row.
struct Seen {
  std::vector<uint8_t> keep;
  std::vector<std::vector<float>> scores;

  bool operator==(const Seen&) const = default;
};

template <class T>
std::vector<T> resident(const EvictionView& view, Slots<const T> slots) {
  std::vector<T> all;
  for (int row = 0; row < view.layer.rows(); ++row) {
    if (!view.sequences_due[static_cast<size_t>(row / view.layer.kv_heads)]) continue;
    std::vector<T> values(static_cast<size_t>(view.layer.lengths[static_cast<size_t>(row)]));
    view.layer.backend.download(values.data(), slots.row(row), values.size() * sizeof(T));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class Eyes final : public Observer {
 public:
  void evicting(const EvictionView& view) override {
    Seen seen{resident(view, view.keep), {resident(view, view.scores)}};
    for (const ScoredLayer& onlooker : view.onlookers) seen.scores.push_back(resident(view, onlooker.scores));
    events_.push_back(std::move(seen));
  }
  std::vector<Seen> events_;  // a layer each
};

struct Outcome {
  std::vector<Seen> events;
  ReplayResult result;
};

class Onlookers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = ref::try_backend(GetParam());
    if (!backend_) GTEST_SKIP() << GetParam() << " is not here";
    source_ = std::make_unique<ref::TinySource>(
        *backend_, info_, std::vector{ref::random_sample(info_, 90, 1), ref::random_sample(info_, 61, 2)});
    for (size_t s = 0; s < kLengths.size(); ++s) {
      ids_.emplace_back(static_cast<size_t>(kLengths[s]), 0);
      ids_.back()[0] = static_cast<int32_t>(s);
      sequences_.emplace_back(ids_.back());
    }
    baseline_ = compute_baseline(*backend_, *source_, sequences_, {.statistics_block = kInterval, .block_sums = true});
  }

  Outcome run(const std::string& name, const std::vector<std::string>& others = {}) {
    Policy policy = make_policy(name, {});
    std::vector<Policy> looking;
    for (const std::string& other : others) looking.push_back(make_policy(other, {}));
    std::vector<Policy*> onlookers;
    for (Policy& onlooker : looking) onlookers.push_back(&onlooker);
    Eyes eyes;
    Observer* const observers[] = {&eyes};
    ReplayResult result = replay({.backend = *backend_,
                                  .source = *source_,
                                  .policy = policy,
                                  .sequences = sequences_,
                                  .schedule = decode_schedule(kLengths, kBudget, kInterval),
                                  .budget = kBudget,
                                  .interval = kInterval,
                                  .seed = 3,
                                  .baseline = &baseline_,
                                  .observers = observers,
                                  .onlookers = onlookers});
    return {std::move(eyes.events_), std::move(result)};
  }

  SourceInfo info_ = ref::tiny_info(2, 4, 2, 8);
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ref::TinySource> source_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<std::span<const int32_t>> sequences_;
  Baseline baseline_;
};

INSTANTIATE_TEST_SUITE_P(Runs, Onlookers, testing::ValuesIn(ref::backend_names()), ref::backend_case);

// With entry columns, column sums, windows and a future that the policy itself has not.
TEST_P(Onlookers, ChangeNoRowOfThePolicyThatCuts) {
  for (const std::string name : {"keydiff", "golden"}) {
    SCOPED_TRACE(name);
    const Outcome alone = run(name);
    Outcome watched = run(name, {"h2o", "snapkv", "golden", "observed-attention"});
    ASSERT_GE(alone.events.size(), 2u * 4);
    for (Seen& seen : watched.events) {
      ASSERT_EQ(seen.scores.size(), 5u);
      seen.scores.resize(1);
    }
    EXPECT_EQ(alone.events, watched.events);
    EXPECT_EQ(alone.result.peak_kv_bytes, watched.result.peak_kv_bytes);
    EXPECT_EQ(alone.result.end_kv_bytes, watched.result.end_kv_bytes);
    EXPECT_EQ(alone.result.peak_column_bytes, 0u);
    EXPECT_EQ(watched.result.peak_column_bytes, 0u);
    for (size_t s = 0; s < kLengths.size(); ++s) {
      const auto &a = alone.result.sequences[s], &b = watched.result.sequences[s];
      EXPECT_EQ(a.events, b.events);
      EXPECT_EQ(a.kept_mean, b.kept_mean);
      EXPECT_EQ(a.kept_max, b.kept_max);
      EXPECT_EQ(a.peak_entries, b.peak_entries);
      EXPECT_EQ(a.end_entries, b.end_entries);
      EXPECT_EQ(a.attended_pairs, b.attended_pairs);
    }
  }
}

// Nothing has been evicted before the first event, so it finds what each would have found alone.
TEST_P(Onlookers, ScoreTheFirstEventAsInTheirOwnRun) {
  const std::vector<std::string> names = {"h2o", "golden", "random"};
  const Outcome watched = run("keydiff", names);
  for (size_t i = 0; i < names.size(); ++i) {
    SCOPED_TRACE(names[i]);
    const Outcome alone = run(names[i]);
    for (size_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(watched.events[layer].scores[i + 1], alone.events[layer].scores[0]);
    }
  }
}

TEST_P(Onlookers, AnOracleThatLooksOnNeedsTheFutureToo) {
  Policy policy = make_policy("keydiff", {}), golden = make_policy("golden", {});
  Policy* const onlookers[] = {&golden};
  EXPECT_THROW(replay({.backend = *backend_,
                       .source = *source_,
                       .policy = policy,
                       .sequences = sequences_,
                       .schedule = decode_schedule(kLengths, kBudget, kInterval),
                       .budget = kBudget,
                       .interval = kInterval,
                       .observers = {},
                       .onlookers = onlookers}),
               UserError);
}

}  // namespace
}  // namespace kv
