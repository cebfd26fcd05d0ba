#include "sim/replay/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

// Keeps the oldest entries: a scorer whose decisions are known without arithmetic.
class KeepOldest final : public Scorer {
 public:
  Protection protects(int, int) const override { return {}; }
  void score(const LayerView& view, const ScoreOutput& output) override {
    std::vector<float> scores(static_cast<size_t>(output.scores.elements()));
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] = -static_cast<float>(i % static_cast<size_t>(output.scores.pitch));
    view.backend.upload(output.scores.data, scores.data(), scores.size() * sizeof(float));
  }
};

class NeedsTheFuture final : public Scorer {
 public:
  Needs needs() const override { return {.future = BaselineNeeds{}}; }
  Protection protects(int, int) const override { return {}; }
  void score(const LayerView&, const ScoreOutput&) override {}
};

class Losses final : public Observer {
 public:
  void block_done(const Block& block, const TokenLosses& losses) override {
    for (const Segment& segment : block.segments) {
      auto& nll = nll_[static_cast<size_t>(segment.sequence)];
      nll.insert(nll.end(), losses.nll.begin() + segment.first_token,
                 losses.nll.begin() + segment.first_token + segment.count);
    }
  }
  void evicting(const EvictionView& view) override {
    if (view.layer.layer == 0) resident_before_.push_back(view.layer.lengths[0]);
  }
  std::map<size_t, std::vector<float>> nll_;
  std::vector<int32_t> resident_before_;
};

class Replay : public ::testing::Test {
 protected:
  Replay() {
    const auto file = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
    ids_ = file.read_i32(file.require("input_ids"));
    ids_.resize(120);
  }

  ReplayResult run(Policy& policy, const Schedule& schedule, Losses& losses) {
    const std::span<const int32_t> sequences[] = {ids_};
    Observer* const observers[] = {&losses};
    return replay({.backend = *backend_,
                   .source = source_,
                   .policy = policy,
                   .sequences = sequences,
                   .schedule = schedule,
                   .observers = observers});
  }

  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  ModelSource source_{*backend_, load_model(ref::source_path("tests/data/llama"))};
  std::vector<int32_t> ids_;
  const int32_t length_ = 120;
};

TEST_F(Replay, EventsKeepExactlyTheBudgetAndTheRestIsFreed) {
  Policy policy = policy_of("keep-oldest", std::make_unique<KeepOldest>());
  Losses losses;
  const ReplayResult result = run(policy, decode_schedule({&length_, 1}, 48, 16), losses);
  // [0,48) [48,64)* [64,80)* [80,96)* [96,112)* [112,120): 4 events, each from 64 to 48.
  EXPECT_EQ(losses.resident_before_, (std::vector<int32_t>{64, 64, 64, 64}));
  EXPECT_EQ(result.sequences[0].events, 4);
  EXPECT_EQ(result.sequences[0].kept_mean, 48);
  EXPECT_EQ(result.sequences[0].kept_max, 48);
  EXPECT_EQ(result.sequences[0].peak_entries, 64 * 3 * 2);
  EXPECT_EQ(result.sequences[0].end_entries, 56 * 3 * 2);
  EXPECT_EQ(result.peak_kv_bytes, 3u * 2 * (64 / 16) * 16 * (2 * 16 * 4 + 4));
  EXPECT_EQ(result.peak_column_bytes, 0u);
  // Pairs: 48·49/2, then per chunk of 16 over 48 residents: 16·48 + 16·17/2, four times, and 8 tokens at the end.
  EXPECT_EQ(result.sequences[0].attended_pairs, 6 * (48 * 49 / 2 + 4 * (16 * 48 + 136) + 8 * 48 + 36));
  EXPECT_EQ(losses.nll_[0].size(), 120u);
  // Phases are parts of the whole, and there were some of each.
  EXPECT_GT(result.attention_seconds, 0);
  EXPECT_GT(result.score_seconds, 0);
  EXPECT_GT(result.evict_seconds, 0);
  EXPECT_LT(result.attention_seconds + result.observe_seconds + result.score_seconds + result.evict_seconds,
            result.total_seconds);
}

TEST_F(Replay, EvictionChangesLossesOnlyAfterTheFirstEvent) {
  Policy full = policy_of("full", nullptr);
  Policy policy = policy_of("keep-oldest", std::make_unique<KeepOldest>());
  Losses with, without;
  run(policy, decode_schedule({&length_, 1}, 32, 16), with);
  run(full, decode_schedule({&length_, 1}, 32, 16), without);
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(with.nll_[0][i], without.nll_[0][i]);
  double change = 0;
  for (size_t i = 48; i < 120; ++i) change += std::abs(with.nll_[0][i] - without.nll_[0][i]);
  EXPECT_GT(change, 1e-3);
}

// The bound: a replayed `full` equals the plain pass within 1e-5 a token.
TEST_F(Replay, FullEqualsThePlainPass) {
  Policy full = policy_of("full", nullptr);
  Losses chunked, plain;
  const ReplayResult result = run(full, decode_schedule({&length_, 1}, 32, 16), chunked);
  run(full, full_schedule({&length_, 1}, 1024), plain);
  for (size_t i = 0; i < 120; ++i) EXPECT_LE(std::abs(chunked.nll_[0][i] - plain.nll_[0][i]), 1e-5f);
  EXPECT_EQ(result.sequences[0].events, 0);
  EXPECT_EQ(result.sequences[0].kept_mean, 120);
}

// The same on the model that the experiments run: several chunks, the last of them short.
TEST(ReplayOfTheReferenceModel, FullEqualsThePlainPass) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const auto file = ref::open_packed("tests/data/reference/expected.safetensors");
  std::vector<int32_t> ids = file.read_i32(file.require("book0.input_ids"));
  ids.resize(200);
  const int32_t length = 200;
  const auto losses_of = [&](const Schedule& schedule) {
    Policy full = policy_of("full", nullptr);
    Losses losses;
    const std::span<const int32_t> sequences[] = {ids};
    Observer* const observers[] = {&losses};
    replay({.backend = *backend,
            .source = source,
            .policy = full,
            .sequences = sequences,
            .schedule = schedule,
            .observers = observers});
    return losses.nll_[0];
  };
  const std::vector<float> chunked = losses_of(decode_schedule({&length, 1}, 64, 48));
  const std::vector<float> plain = losses_of(full_schedule({&length, 1}, 1024));
  for (size_t i = 0; i < 200; ++i) EXPECT_LE(std::abs(chunked[i] - plain[i]), 1e-5f) << "token " << i;
}

TEST_F(Replay, BudgetBeyondTheTextIsFullToTheBit) {
  Policy full = policy_of("full", nullptr);
  Policy policy = policy_of("keep-oldest", std::make_unique<KeepOldest>());
  Losses with, without;
  const Schedule schedule = decode_schedule({&length_, 1}, 200, 16);
  EXPECT_EQ(run(policy, schedule, with).sequences[0].events, 0);
  run(full, schedule, without);
  EXPECT_EQ(with.nll_, without.nll_);
}

// The rest of a text over what a pruned beginning left is as in one replay of the whole text by the same steps.
TEST_F(Replay, OthersGoOnFromWhatItLeaves) {
  Policy policy = make_policy("h2o", {}), again = make_policy("h2o", {}), full = policy_of("full", nullptr);
  const int32_t beginning = 96, end = 24;
  const Schedule pruned = prompt_decode_schedule({&beginning, 1}, 48, 16);
  Schedule whole = pruned;
  const Schedule rest = full_schedule({&end, 1}, 10);
  whole.insert(whole.end(), rest.begin(), rest.end());
  Losses one, two;
  const ReplayResult expected = run(policy, whole, one);

  const std::span<const int32_t> text[] = {ids_}, read[] = {std::span(ids_).first(96)};
  std::optional<LoopState> left;
  Observer* const observers[] = {&two};
  replay({.backend = *backend_,
          .source = source_,
          .policy = again,
          .sequences = read,
          .schedule = pruned,
          .observers = observers,
          .left = &left});
  EXPECT_EQ(left->done, std::vector<int32_t>{96});
  EXPECT_EQ(left->events, std::vector<int64_t>{3}) << "at 64, 80 and, because others go on, 96";
  EXPECT_EQ(left->cache.entries(), 48 * 3 * 2);
  Loop loop({.backend = *backend_, .source = source_, .policy = full, .sequences = 1, .observers = observers});
  loop.resume(text, std::move(*left));
  for (const Step& step : rest) loop.step(step);
  const ReplayResult result = loop.finish();
  ASSERT_EQ(one.nll_[0].size(), 120U);
  ASSERT_EQ(two.nll_[0].size(), 120U);
  // What follows the beginning's last token, its replay does not know.
  for (size_t i = 0; i < 120; ++i) {
    if (i != 95) {
      EXPECT_EQ(two.nll_[0][i], one.nll_[0][i]) << "token " << i;
    }
  }
  EXPECT_EQ(result.sequences[0].events, expected.sequences[0].events);
  EXPECT_EQ(result.sequences[0].end_entries, expected.sequences[0].end_entries);
}

TEST_F(Replay, AnOracleWithoutAFutureIsRefused) {
  Policy policy = policy_of("clairvoyant", std::make_unique<NeedsTheFuture>());
  Losses losses;
  try {
    run(policy, decode_schedule({&length_, 1}, 32, 16), losses);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "clairvoyant: needs the full-cache pass (it is an oracle), which llama model does not offer here");
  }
}

}  // namespace
}  // namespace kv
