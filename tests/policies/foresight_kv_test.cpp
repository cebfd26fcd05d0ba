// ForesightKV as a policy: what it keeps, and what it refuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "policies/parts/foresight_scorer.h"
#include "policies/parts/foresight_training.h"
#include "sim/learned/learned_file.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/foresight_weights.h"
#include "tests/support/frozen.h"
#include "tests/support/identity.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"foresight-kv", {0x33f5ea4616daedf3}};

KV_OVER_BACKENDS(Runs, ForesightKvOn);

// Interval 12 cuts the sums over 16 and 32 queries short, 40 does not.
TEST_P(ForesightKvOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  const test::TempFolder folder;
  for (const auto& [reads_entry, sums] : {std::pair(true, "kept"), {false, "kept"}, {true, "recomputed"}}) {
    const ForesightWeights weights({.reads_entry = reads_entry, .hidden = reads_entry ? 16 : 8});
    const std::string path = (folder / "weights.safetensors").string();
    weights.write(path);
    const Options options = {{"weights", path, ""},
                             {"inputs", reads_entry ? "attention+kv" : "attention", ""},
                             {"hidden", reads_entry ? "16" : "8", ""},
                             {"sums", sums, ""},
                             {"sampling", "top", ""}};
    for (const auto& [budget, interval] : {std::pair(24, 12), {48, 40}}) {
      expect_agrees(*backend, "foresight-kv", options,
                    naive_foresight({.budget = budget,
                                     .interval = interval,
                                     .hidden = weights.shape.hidden,
                                     .reads_entry = reads_entry,
                                     .of_heads = weights.of_heads}),
                    {.tokens = 170, .budget = budget, .interval = interval, .tolerance = 2e-5});
    }
  }
}

// Finite weights whose scores are none, of the last head: what is drawn from has been looked at before.
TEST_P(ForesightKvOn, SaysWhereScoresHaveNoOrder) {
  KV_BACKEND_OR_SKIP(backend);
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 90, 1)});
  const std::vector<int32_t> ids(90, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t lengths[] = {90};
  std::vector<float> parameters = ForesightWeights(ForesightShape{}).parameters();
  class Watcher final : public Observer {
  } watcher;
  Observer* const observers[] = {&watcher};
  // Where it cuts, and where it looks on while another one does.
  for (const bool looks_on : {false, true}) {
    for (const float value : {3e38F, NAN}) {
      std::fill_n(parameters.end() - std::ssize(parameters) / 4, std::ssize(parameters) / 4, value);
      for (const EvictionSampling sampling :
           {EvictionSampling::kTop2d, EvictionSampling::kMultinomial, EvictionSampling::kTop}) {
        auto scorer = std::make_unique<ForesightScorer>(ForesightShape{}, sampling);
        scorer->use(info, parameters);
        Policy policy = policy_of("foresight-kv", std::move(scorer)), random = make_policy("random", {});
        Policy* const onlookers[] = {&policy};
        const std::string complaint = test::user_error([&] {
          replay({.backend = *backend,
                  .source = source,
                  .policy = looks_on ? random : policy,
                  .sequences = sequences,
                  .schedule = decode_schedule(lengths, 24, 12),
                  .budget = 24,
                  .interval = 12,
                  .observers = observers,
                  .onlookers = std::span(onlookers).first(looks_on ? 1 : 0)});
        });
        EXPECT_TRUE(complaint.starts_with("foresight-kv: the score of entry ")) << complaint;
        // An infinity, or what comes of two: that depends on the order of a sum.
        EXPECT_NE(complaint.find(" of 36 in layer 1, KV head 1, is "), std::string::npos) << complaint;
        EXPECT_TRUE(complaint.ends_with(" (expected a finite number)")) << complaint;
      }
    }
  }
}

// An interval's queries, each with its log sum: of who evicts, not of who looks on.
TEST_P(ForesightKvOn, KeepsItsQueriesBesideTheEntries) {
  KV_BACKEND_OR_SKIP(backend);
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 90, 1)});
  const std::vector<int32_t> ids(90, 0);
  const std::span<const int32_t> sequences[] = {ids, ids};
  const int32_t lengths[] = {90, 90}, numbers[] = {0, 0};
  const auto query_bytes = [&](int interval, bool looks_on) {
    auto scorer = std::make_unique<ForesightScorer>(ForesightShape{}, EvictionSampling::kTop);
    scorer->use(info, ForesightWeights(ForesightShape{}).parameters());
    Policy policy = policy_of("foresight-kv", std::move(scorer)), random = make_policy("random", {});
    Policy* const onlookers[] = {&policy};
    Observer watcher;
    Observer* const observers[] = {&watcher};
    return replay({.backend = *backend,
                   .source = source,
                   .policy = looks_on ? random : policy,
                   .sequences = sequences,
                   .schedule = decode_schedule(lengths, 48, interval),
                   .budget = 48,
                   .interval = interval,
                   .sample_numbers = numbers,
                   .observers = std::span(observers).first(looks_on ? 1 : 0),
                   .onlookers = std::span(onlookers).first(looks_on ? 1 : 0)})
        .query_bytes;
  };
  const size_t of_query = 8 * bytes_of(backend->activation_type()) + sizeof(float);
  for (const int interval : {40, 12}) {
    EXPECT_EQ(query_bytes(interval, false), size_t{2} * static_cast<size_t>(interval) * 4 * of_query);  // layers, heads
  }
  EXPECT_EQ(query_bytes(40, true), 0U);
}

// Of other units than their tensors have, or of a model whose keys are wider.
TEST(ForesightKvFiles, HoldWhatTheySay) {
  const test::TempFolder folder;
  const std::string path = (folder / "weights.safetensors").string();
  ForesightWeights weights(ForesightShape{});
  const auto refusal = [&](const char* units, const SourceInfo& info) {
    const Policy policy = make_policy("foresight-kv", {{"weights", path, ""}, {"hidden", units, ""}});
    return test::user_error([&] { policy.check(identity_of(info)); });
  };
  weights.write(path);
  EXPECT_NO_THROW(make_policy("foresight-kv", {{"weights", path, ""}}).check(identity_of(weights.info)));
  EXPECT_NE(refusal("16", tiny_info(2, 4, 2, 16)).find("'hidden.weight' is [28, 16] a KV head, expected [44, 16]"),
            std::string::npos);
  LearnedFile learned = read_learned(path, "foresight-kv");
  learned.settings["hidden"] = "32";
  write_learned(path, learned);
  EXPECT_NE(refusal("32", weights.info).find("'hidden.weight' is [28, 16] a KV head, expected [28, 32]"),
            std::string::npos);
}

TEST(ForesightKv, RefusesWhatItCannotKeep) {
  expect_refused("foresight-kv", {}, 24, 0,
                 "foresight-kv: one-shot compression is not covered (expected decode-time pruning with an interval)");
  expect_refused("foresight-kv", {}, 24, 24, "foresight-kv: budget 24 must exceed the interval 24");
  expect_refused("foresight-kv", {}, 20, 10,
                 "foresight-kv: budget 20 and interval 10 are less than the 32 newest queries, which judge");
  expect_bad_option("foresight-kv", {{"hidden", "12", ""}}, "foresight-kv: hidden = 12: expected 8, 16, 32 or 64");
}

TEST(ForesightKv, RefusesSettingsThatAreNone) {
  ForesightScorer scorer{ForesightShape{}};
  ForesightTraining training(scorer, "foresight-kv");
  const auto refusal = [&](std::vector<GivenParam> given) {
    return test::user_error([&] {
      Params params("learn", std::move(given));
      training.read(params);
    });
  };
  EXPECT_EQ(refusal({{"settings", "1024/256 512", ""}}),
            "learn: settings = 1024/256 512: '512': expected BUDGET/INTERVAL");
  EXPECT_EQ(refusal({{"settings", "1024/256 100/64", ""}}),
            "learn: settings = 1024/256 100/64: 100/64: expected a multiple of the interval 64 that is above it");
  EXPECT_EQ(refusal({{"settings", "64/0", ""}}),
            "learn: settings = 64/0: 64/0: expected a multiple of the interval 0 that is above it");
  EXPECT_EQ(refusal({{"budget", "20", ""}, {"interval", "10", ""}}),
            "learn: budget = 20: expected at least 32 with the interval, the newest queries, which judge");
  EXPECT_EQ(refusal({{"settings", "64/32", ""}, {"interval", "32", ""}}),
            "learn: settings = 64/32: expected these or budget and interval, not both");
}

}  // namespace
}  // namespace kv::ref
