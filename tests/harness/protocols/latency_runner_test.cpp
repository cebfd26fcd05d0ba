#include "harness/protocols/latency_runner.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/rows_file.h"
#include "sim/budget/profile_file.h"
#include "tests/support/run_fixture.h"

namespace kv {
namespace {

class Latency : public RunFixture {
 protected:
  // Values by metric of the policy's rows, in order.
  std::map<std::string, std::vector<double>> measured(const std::string& policy) const {
    std::map<std::string, std::vector<double>> values;
    for (const Row& row : read_rows(folder_ / "out" / "rows.csv").rows) {
      if (row.policy != policy) continue;
      if (row.value) values[row.metric].push_back(*row.value);
    }
    return values;
  }

  RunSummary run(const std::string& text) const {
    write_atomically(
        spec_file(),
        "# How fast?\nmodel: {random: tiny}\nprotocol: latency\nsamples: 3\nprefill_chunk: 64\ntables: []\n" + text);
    return run_experiment(spec(), options("out"));
  }
};

// Up to the nine digits of rows.csv.
void expect_same(double a, double b) { EXPECT_NEAR(a, b, 2e-8 * std::abs(b)); }

TEST_F(Latency, WorksOutAGenerationFromItsPieces) {
  const RunSummary summary =
      run("policies: [full, streaming]\naxes: {batch: 2, new_tokens: 200, budget: 64, interval: 32}\n");
  EXPECT_EQ(summary.skipped, 0);
  for (const char* policy : {"full", "streaming"}) {
    const auto values = measured(policy);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_GT(values.at("decode_time")[r], 0);
      expect_same(values.at("decode_step_time")[r], values.at("decode_time")[r] / 200);
      expect_same(values.at("generation_time")[r], values.at("decode_time")[r] + values.at("eviction_time")[r]);
      expect_same(values.at("decode_throughput")[r], 2 * 200 / values.at("generation_time")[r]);
    }
    EXPECT_FALSE(values.contains("prefill_time"));  // there is no prompt
    EXPECT_EQ(values.at("batch_size"), std::vector<double>{2});
  }
  EXPECT_EQ(measured("full").at("evictions"), std::vector<double>{0});
  EXPECT_EQ(measured("full").at("eviction_time"), (std::vector<double>(3, 0)));
  // From 1 entry on: events at 96 residents, then every 32 steps; 201 entries were made, the last event at 192.
  const auto pruned = measured("streaming");
  EXPECT_EQ(pruned.at("evictions"), std::vector<double>{4});
  for (size_t r = 0; r < 3; ++r) {
    expect_same(pruned.at("eviction_time")[r], 4 * pruned.at("eviction_event_time")[r]);
    EXPECT_GT(pruned.at("eviction_score_time")[r], 0);
    EXPECT_GT(pruned.at("eviction_cut_time")[r], 0);
  }
}

TEST_F(Latency, MemoryIsWhatTheShapesSay) {
  run("policies: [full, streaming]\naxes: {batch: 2, new_tokens: 200, budget: 64, interval: 32}\n");
  // A page: 16 entries of 16 floats each in K and V, and a position; 2 sequences, 2 layers, 2 heads.
  const double page = 16 * (2 * 16 * 4 + 4);
  EXPECT_EQ(measured("full").at("peak_kv_bytes"), std::vector<double>{8 * 13 * page});      // 201 entries
  EXPECT_EQ(measured("streaming").at("peak_kv_bytes"), std::vector<double>{8 * 6 * page});  // 64 + 32
  EXPECT_EQ(measured("full").at("weight_bytes"), std::vector<double>{4 * 205120});
  EXPECT_GT(measured("full").at("peak_bytes")[0], measured("streaming").at("peak_bytes")[0]);
}

TEST_F(Latency, AOneShotCutIsPartOfTheTimeToFirstToken) {
  run("policies: [full, {policy: snapkv, mode: kvpress, window: 8}]\naxes: {batch: 2, context: 160, keep: 0.25}\n");
  const double page = 16 * (2 * 16 * 4 + 4);
  EXPECT_EQ(measured("full").at("kept_kv_bytes"), std::vector<double>{8 * 10 * page});   // 160 entries
  EXPECT_EQ(measured("snapkv").at("kept_kv_bytes"), std::vector<double>{8 * 3 * page});  // 40
  for (const char* policy : {"full", "snapkv"}) {
    EXPECT_EQ(measured(policy).at("prefill_time").size(), 3u);
    EXPECT_EQ(measured(policy).at("decode_step_time").size(), 3u);
    EXPECT_FALSE(measured(policy).contains("generation_time"));
  }
  EXPECT_FALSE(measured("full").contains("compress_time"));
  const auto cut = measured("snapkv");
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_GT(cut.at("compress_time")[r], 0);
    EXPECT_LT(cut.at("compress_time")[r], cut.at("prefill_time")[r]);
  }
}

// Of 160 tokens the newest 31 and a quarter of the others; all there is at every length that steps are timed at.
TEST_F(Latency, AnAdmissionLetsInItsShare) {
  const RunSummary summary =
      run("policies: [full, {policy: full, admission: {wg-kv: {drop: 0.75, window: 31}}, label: gated}, {policy: full, "
          "admission: {local: {sinks: 1, window: 31}}, label: local}]\naxes: {batch: 2, context: 160}\n");
  EXPECT_EQ(summary.skipped, 0);
  const double page = 16 * (2 * 16 * 4 + 2 * 4);                                        // and when entries expire
  EXPECT_EQ(measured("local").at("kept_kv_bytes"), std::vector<double>{8 * 2 * page});  // 1 + 31 entries
  const double gated = measured("gated").at("kept_kv_bytes")[0] / page;
  EXPECT_GE(gated, 8 * 3);  // 31 and some of 129
  EXPECT_LE(gated, 8 * 6);
  // 4 gates of [24, 2 · 16] weights, 24 biases, 24 more weights and a bias.
  const double gates = 4 * (4 * 24 * 32 + 4 * (24 + 24 + 1)), model = 4 * 205120;
  EXPECT_EQ(measured("gated").at("learned_bytes"), std::vector<double>{gates});
  EXPECT_EQ(measured("gated").at("held_bytes"), std::vector<double>{model + gates + gated * page});
  EXPECT_EQ(measured("local").at("held_bytes"), std::vector<double>{model + 8 * 2 * page});
  EXPECT_FALSE(measured("local").contains("learned_bytes"));
  for (const char* policy : {"gated", "local"}) {
    EXPECT_EQ(measured(policy).at("prefill_time").size(), 3u);
    EXPECT_EQ(measured(policy).at("decode_step_time").size(), 3u);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_GT(measured(policy).at("admission_time")[r], 0) << policy;
      EXPECT_LT(measured(policy).at("admission_time")[r], measured(policy).at("prefill_time")[r]) << policy;
    }
  }
  EXPECT_FALSE(measured("full").contains("admission_time"));
}

// Whose cached queries attended to nothing before the timed steps.
TEST_F(Latency, EventsOverAFilledCacheHaveScores) {
  EXPECT_EQ(run("policies: [{policy: foresight-kv, weights: initial, sums: kept, label: kept}, {policy: foresight-kv, "
                "weights: initial, label: recomputed}, {policy: foresight-kv, weights: initial, features: "
                "code, label: code}]\naxes: {batch: 2, new_tokens: 200, budget: 64, interval: 32}\n")
                .skipped,
            0);
  for (const char* policy : {"kept", "recomputed", "code"}) {
    EXPECT_EQ(measured(policy).at("evictions"), std::vector<double>{4}) << policy;
  }
}

// A scorer's events come when they come beside an admission; a selection goes with any that it may stand beside.
TEST_F(Latency, SelectionsAreTimedAndAdmissionsBesideScorersAreNot) {
  EXPECT_EQ(run("policies: [{policy: full, selection: {quest: {pages: 2}}, label: few}, {policy: streaming, selection: "
                "{quest: {pages: 2}}, label: pruned}]\naxes: {batch: 2, new_tokens: 200, budget: 64, interval: 32}\n")
                .skipped,
            0);
  EXPECT_EQ(measured("few").at("decode_step_time").size(), 3u);
  EXPECT_EQ(measured("pruned").at("evictions"), std::vector<double>{4});
  EXPECT_NE(
      test::user_error([&] {
        run("policies: [{policy: streaming, admission: local}]\naxes: {new_tokens: 200, budget: 64, interval: 32}\n");
      }).find("expected one that never evicts"),
      std::string::npos);
}

// A profile of 8 layers of one KV head: the first four lose nothing, the others half, whatever is asked.
std::string half_a_profile() {
  const ProfileLosses::Curve none(kProfileRatios, 0);
  BudgetProfile profile{.model = "calibrated",
                        .fingerprint = std::string(64, 'a'),
                        .scorer = "keydiff",
                        .calibration = {{"kv"}, 1, 1, 100, 0},
                        .losses = {none, none, none, none},
                        .layers = 8,
                        .kv_heads = 1};
  for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) {
    profile.removed.insert(profile.removed.end(), {0.0F, 0.0F, 0.0F, 0.0F, 0.5F, 0.5F, 0.5F, 0.5F});
  }
  return format_profile(profile);
}

// Random weights have no profile of their own. Over their 2 layers lie layers 0 and 4 of the 8.
TEST_F(Latency, LuKvGivesHeadsTheLengthsOfAProfileLaidOverThem) {
  write_atomically(folder_ / "half.json", half_a_profile());
  const std::string policies =
      "policies: [keydiff, {policy: keydiff, allocation: {lu-kv: {profile: half.json, spread: yes}}}]\n";
  run(policies + "axes: {batch: 2, new_tokens: [100, 200], budget: 56, interval: 8}\n");
  // 2 sequences of 4 heads fill 4 pages each up to the event at 64 entries, which leaves 224 of the 256: 56 a head, or
  // 64, 64, 48 and 48 in shares of 1, 1, 0.5 and 0.5. One token later these are 65 and 49: 5, 5, 4 and 4 pages.
  const double page = 16 * (2 * 16 * 4 + 4);
  EXPECT_EQ(measured("keydiff").at("peak_kv_bytes"), std::vector<double>(2, 2 * 16 * page));
  // The longer generation repeats the interval of the shorter one, which is not measured again.
  EXPECT_EQ(measured("keydiff+lu-kv").at("peak_kv_bytes"), std::vector<double>(2, 2 * 18 * page));
  run(policies + "axes: {batch: 2, context: 160, keep: 0.25}\n");
  EXPECT_EQ(measured("keydiff+lu-kv").at("compress_time").size(), 3u);
  // 40 entries a head, or about 53, 53, 27 and 27: 3 pages each, or 4, 4, 2 and 2.
  EXPECT_EQ(measured("keydiff").at("kept_kv_bytes"), std::vector<double>{2 * 12 * page});
  EXPECT_EQ(measured("keydiff+lu-kv").at("kept_kv_bytes"), std::vector<double>{2 * 12 * page});
}

// A batch is chosen by what may come, and refused for what surely comes alone. 1000 tokens in chunks of 64 and 16
// steps: 64 entries are seen, up to 15 + 64 lie there unswept; a dense cache has 64 pages a head.
TEST(LatencyFootprint, OfAnAdmissionIsWhatItForetells) {
  SourceInfo info;
  info.layers = 3;
  info.kv_heads = 2;
  const TimedRun prompt{.context = 1000};
  const auto pages = [&](const char* admission, Foreseen foreseen) {
    const Policy policy =
        make_policy("full", {}, {.admission = {admission, {{"sinks", "4", ""}, {"window", "60", ""}}}});
    return whole_generation(prompt, *policy.allocation, info, {policy.admission.get(), 64, foreseen}).pages();
  };
  EXPECT_EQ(pages("local", Foreseen::kAtMost), 6 * 9);
  EXPECT_EQ(pages("wg-kv", Foreseen::kSurely), 6 * 9);
  EXPECT_EQ(pages("wg-kv", Foreseen::kAtMost), 6 * 64);
}

// A clock does not show three times what it showed three times before, so what was measured once has as many values as
// repetitions: an interval and its event are measured for each floor, and not again for the longer generation.
TEST_F(Latency, AnIntervalIsMeasuredOnceForEachPolicyThatAnAxisMakes) {
  run("policies: [{policy: keydiff, allocation: global}]\n"
      "axes: {batch: 1, new_tokens: [100, 200], budget: 56, interval: 8, global.floor: [0, 1]}\n");
  const std::vector<double> times = measured("keydiff+global").at("eviction_event_time");
  EXPECT_EQ(times.size(), 4u * 3);
  EXPECT_EQ(std::set<double>(times.begin(), times.end()).size(), 2u * 3);
}

// What stands while a chunk is read is larger for a larger one.
TEST_F(Latency, TheChunkOfAPromptCanBeAnAxis) {
  run("policies: [full]\naxes: {batch: 1, context: 128, prefill_chunk: [16, 128]}\n");
  const std::vector<double> peaks = measured("full").at("peak_bytes");
  ASSERT_EQ(peaks.size(), 2u);
  EXPECT_LT(peaks[0], peaks[1]);
}

// tests/sim/replay/footprint_test.cpp has these numbers by hand.
TEST(LatencyFootprint, IsOfTheWholeGenerationThoughOneEventIsRun) {
  SourceInfo info;
  info.layers = 3;
  info.kv_heads = 2;
  const auto uniform = make_allocation("uniform", {}), ada = make_allocation("ada", {});
  const TimedRun pruned{.new_tokens = 100, .budget = 8, .interval = 8};
  EXPECT_EQ(whole_generation(pruned, *uniform, info).pages(), 6);
  EXPECT_EQ(whole_generation(pruned, *ada, info).longest(), 24);
  EXPECT_EQ(whole_generation(pruned, *ada, info).pages(), 11);
  // A prompt of 64 cut to a quarter, then 100 steps: a head may have kept its whole prompt.
  const TimedRun cut{.context = 64, .new_tokens = 100, .keep = 0.25};
  EXPECT_EQ(whole_generation(cut, *uniform, info).longest(), 116);
  EXPECT_EQ(whole_generation(cut, *ada, info).longest(), 32 + 100);
}

// What is timed reads chunks of a size that was read before.
TEST(LatencyWarmUp, ReadsAChunkWholeWhereTheContextHasOne) {
  EXPECT_EQ(warm_up_tokens(65536, 2048), 8192);
  EXPECT_EQ(warm_up_tokens(65536, 8192), 8192);
  EXPECT_EQ(warm_up_tokens(65536, 16384), 16384);
  EXPECT_EQ(warm_up_tokens(5000, 8192), 5000);
  EXPECT_EQ(warm_up_tokens(160, 64), 160);
}

TEST_F(Latency, TimingRowsAloneDependOnTheClock) {
  const char* text = "policies: [full, streaming]\naxes: {batch: 2, new_tokens: 120, budget: 64, interval: 32}\n";
  run(text);
  const std::string first = rows_of("out");
  RunOptions again = options("again");
  run_experiment(spec(), again);
  EXPECT_EQ(first, rows_of("again"));
  EXPECT_NE(first.find("peak_kv_bytes"), std::string::npos);
}

}  // namespace
}  // namespace kv
