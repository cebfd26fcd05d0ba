// Global retention: what entries are worth by gates of every kind, what is kept, and what is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/half.h"
#include "policies/parts/retention_network.h"
#include "sim/learned/learned_file.h"
#include "tests/ref/retention_gate.h"
#include "tests/ref/retention_scores.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/frozen.h"
#include "tests/support/identity.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"retention", {0x92b440ba7f3b00c5, 0x7e890f36c2263add}};

using Kept = std::vector<std::vector<int32_t>>;
using Tying = RetentionShape::Tying;

LearnedFile file_of(const RetentionShape& shape, const SourceInfo& info, const std::vector<float>& parameters) {
  return {.learner = "retention",
          .model = "tiny",
          .fingerprint = "none",
          .settings = shape.settings(),
          .origin = "{}",
          .layers = info.layers,
          .kv_heads = info.kv_heads,
          .parts = RetentionNetwork(shape).parts(info),
          .parameters = parameters};
}

void write(const std::filesystem::path& path, const RetentionShape& shape, const SourceInfo& info,
           const std::vector<float>& parameters) {
  write_learned(path, file_of(shape, info, parameters));
}

// One head whose gate has one unit: a token's input is (20 + z, 0), of which SiLU leaves 20 + z, and the output takes
// the 20 away again, so that β = σ(z).
Kept kept_by_retentions(const std::vector<double>& retentions, Options options, int budget, int interval) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(1, 1, 1, 2);
  const RetentionShape shape{.tying = Tying::kNone, .hidden = 1, .has_second_layer = false};
  TinySample sample = random_sample(info, static_cast<int>(retentions.size()), 1);
  sample.inputs[0].clear();
  for (const double beta : retentions) {
    sample.inputs[0].push_back(static_cast<float>(20 + std::log(beta / (1 - beta))));
    sample.inputs[0].push_back(0);
  }
  TinySource source(*backend, info, {sample});
  const test::TempFolder folder;
  const std::filesystem::path path = folder / "gates.safetensors";
  // By layer W1 = (1, 0) and b1 = 0, by head w = 1 and b = −20.
  write(path, shape, info, {1, 0, 0, 1, -20});
  for (const auto& [key, value] :
       {std::pair("weights", path.string()), {"gate", "rg"}, {"tying", "none"}, {"hidden", "1"}}) {
    options.push_back({key, value, ""});
  }
  Kept kept;
  const auto length = static_cast<int32_t>(retentions.size());
  for (const Event& event :
       run_policy(source, *backend, decode_run("retention", options, {0}, {length}, budget, interval)).events) {
    kept.push_back(event.kept);
  }
  return kept;
}

// β = .9 .5 .99 .8 .6 …, ln β = −.105 −.693 −.010 −.223 −.511; B = 2, L = 1. Scores are (tokens seen − i) · ln β:
//   3 seen, entries 0 1 2: −.316 −1.386 −.010                              keeps 0 2
//   4 seen, entries 0 2 3: −.421 −.020 −.223                               keeps 2 3
//   5 seen, entries 2 3 4: −.030 −.446 −.511, so that the newest leaves    keeps 2 3
const std::vector<double> kRetentions = {.9, .5, .99, .8, .6, .5};

TEST(Retention, KeepsWhatFadesLeast) {
  EXPECT_EQ(kept_by_retentions(kRetentions, {}, 2, 1), (Kept{{0, 2}, {2, 3}, {2, 3}}));
}

// To each is added ln((1 − β^8) / (1 − β)) = 1.740 .689 2.045 1.426 .899:
//   3 seen: 1.424 −.697 2.034                keeps 0 2
//   4 seen: 1.318 2.024, 3 has 1.203         keeps 0 2
//   5 seen: 1.213 2.014, 4 has .389          keeps 0 2
TEST(Retention, OfManyTokensToComeFavoursWhatFadesSlowly) {
  EXPECT_EQ(kept_by_retentions(kRetentions, {{"horizon", "8", ""}}, 2, 1), (Kept{{0, 2}, {0, 2}, {0, 2}}));
}

// An exponent of one less leaves the newest token 0, and entry 3 of event 3 only −.223: 4 stays in its place.
TEST(Retention, WithoutAnExponentTheNewestStays) {
  EXPECT_EQ(kept_by_retentions(kRetentions, {{"age_offset", "0", ""}}, 2, 1), (Kept{{0, 2}, {2, 3}, {2, 4}}));
}

// B = 2 of 3, β = .999 .95 .9, ln β = −.001 −.051 −.105. Entries 1 and 2 have 2 · −.051 = −.103 and 1 · −.105, so that
// entry 2 leaves; with an exponent of one less, −.051 and 0.
TEST(Retention, AnOffsetWeighsRetentionMoreThanAge) {
  const std::vector<double> retentions = {.999, .95, .9, .5};
  EXPECT_EQ(kept_by_retentions(retentions, {}, 2, 1), (Kept{{0, 1}}));
  EXPECT_EQ(kept_by_retentions(retentions, {{"age_offset", "0", ""}}, 2, 1), (Kept{{0, 2}}));
}

// Random parameters of a size that spreads β over (0, 1), as a file holds them.
std::vector<float> drawn_parameters(const RetentionShape& shape, const SourceInfo& info) {
  const RetentionNetwork network(shape);
  const std::vector<LearnedPart> parts = network.parts(info);
  const LearnedLayout layout(parts, info.layers, info.kv_heads);
  std::vector<float> parameters = random_values(static_cast<size_t>(layout.elements()), 3);
  for (float& value : parameters) value = bf16_to_f32(f32_to_bf16(0.5F * value));
  return parameters;
}

// The gate of a layer, its parts found by their names: those of heads one behind the other.
RetentionGate gate_of(const Backend& backend, const RetentionShape& shape, const SourceInfo& info,
                      const std::vector<float>& parameters, int layer) {
  const RetentionNetwork network(shape);
  const std::vector<LearnedPart> parts = network.parts(info);
  const LearnedLayout layout(parts, info.layers, info.kv_heads);
  const auto part = [&](const char* name, int times = 1) {
    std::vector<double> all;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].name != name) continue;
      const bool of_head = parts[i].scope == LearnedScope::kHead;
      for (int head = 0; head < (of_head ? info.kv_heads : times); ++head) {
        const int64_t owner = of_head                                  ? layer * info.kv_heads + head
                              : parts[i].scope == LearnedScope::kLayer ? layer
                                                                       : 0;
        const auto first = parameters.begin() + layout.first(i, owner);
        all.insert(all.end(), first, first + parts[i].elements());
      }
    }
    return all;
  };
  const auto stored = [&](const char* name) {  // as activations are
    std::vector<float> values;
    for (const double value : part(name)) values.push_back(static_cast<float>(value));
    values = rounded(backend, values);
    return std::vector<double>(values.begin(), values.end());
  };
  const int copies = shape.tying == Tying::kShared ? info.kv_heads : 1;
  return {.kv_heads = info.kv_heads,
          .embeddings = shape.embeddings(info),
          .input_weights = stored("input.weight"),
          .input_bias = part("input.bias"),
          .hidden_weights = stored("hidden.weight"),
          .hidden_bias = part("hidden.bias"),
          .output_weights = part("output.weight", copies),
          .output_bias = part("output.bias", copies),
          .stored = [&](double x) -> double { return rounded(backend, {static_cast<float>(x)})[0]; }};
}

KV_OVER_BACKENDS(Runs, RetentionOn);

TEST_P(RetentionOn, ScoresAreTheGatesOfTheEntries) {
  KV_BACKEND_OR_SKIP(backend);
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  TinySource source(*backend, info, {random_sample(info, 70, 7), random_sample(info, 51, 8)});
  const test::TempFolder folder;
  const std::string path = (folder / "gates.safetensors").string();
  constexpr int kHorizon = 5;
  for (const RetentionShape& shape : {RetentionShape{.tying = Tying::kLayer, .hidden = 24},
                                      {.tying = Tying::kShared, .hidden = 16},
                                      {.tying = Tying::kNone, .hidden = 16},
                                      {.tying = Tying::kLayer, .hidden = 16, .has_second_layer = false},
                                      {.tying = Tying::kNone, .hidden = 9, .has_second_layer = false}}) {
    const std::map<std::string, std::string> settings = shape.settings();
    SCOPED_TRACE(settings.at("gate") + ", " + settings.at("tying"));
    const std::vector<float> parameters = drawn_parameters(shape, info);
    write(path, shape, info, parameters);
    Options options = {{"weights", path, ""}, {"horizon", std::to_string(kHorizon), ""}};
    for (const auto& [key, value] : settings) {
      if (key != "hidden") options.push_back({key, value, ""});  // which the file says
    }
    const PolicyRun run = run_policy(source, *backend, decode_run("retention", options, {0, 1}, {70, 51}, 24, 12));
    ASSERT_GT(run.events.size(), 8U);
    for (const Event& event : run.events) {
      const RetentionGate gate = gate_of(*backend, shape, info, parameters, event.layer);
      for (size_t slot = 0; slot < event.resident.size(); ++slot) {
        const int32_t position = event.resident[slot];
        const std::vector<float>& all = source.sample(event.sequence).inputs[static_cast<size_t>(event.layer)];
        const auto first = all.begin() + int64_t{position} * info.width;
        const Bounded z = gate.logits(std::vector<double>(first, first + info.width))[static_cast<size_t>(event.head)];
        const double log_beta = log_sigmoid(z.value), age = event.tokens_seen - position;
        // A logit is off as in the op's test, log β by 1 − β of that, and a score by as much a token of its age and of
        // the horizon; its own roundings are of its terms and of the sum over the horizon.
        const double stored = backend->activation_type() == DType::kF32 ? 0 : activation_epsilon(*backend) / 16;
        const double epsilon = std::numeric_limits<float>::epsilon();
        const double of_log_beta =
            -std::expm1(log_beta) * z.magnitude * (4 * epsilon + stored) - 3 * epsilon * log_beta;
        const double allowed = (age + kHorizon) * of_log_beta + 5 * epsilon * (2 - 2 * age * log_beta + std::log(5.0));
        ASSERT_NEAR(event.scores[slot], retention_score(log_beta, age, kHorizon), allowed)
            << "sequence " << event.sequence << ", layer " << event.layer << ", head " << event.head << ", position "
            << position << " of " << event.tokens_seen;
      }
    }
  }
}

TEST(RetentionNetwork, BeginsOpenAndTakesTheMemoryThatItSays) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  for (const RetentionShape& shape :
       {RetentionShape{}, {.tying = Tying::kShared}, {.tying = Tying::kNone}, {.has_second_layer = false}}) {
    RetentionNetwork network(shape);
    const std::vector<float> parameters = network.initial(info, 5);
    const size_t before = backend->bytes_in_use();
    network.use(*backend, info, parameters);
    EXPECT_EQ(backend->bytes_in_use() - before, network.bytes(info, backend->activation_type()));
    EXPECT_EQ(network.initial(info, 5), parameters);
    EXPECT_NE(network.initial(info, 6), parameters);
    const RetentionGate gate = gate_of(*backend, shape, info, parameters, 1);
    for (const double bias : gate.input_bias) EXPECT_EQ(bias, 0);
    for (const double bias : gate.hidden_bias) EXPECT_EQ(bias, 0);
    for (const double bias : gate.output_bias) EXPECT_EQ(bias, 10);
    double squares = 0;
    for (const double weight : gate.input_weights) squares += weight * weight;
    // The variance of 2048 draws is off by √(2 / 2048) of itself; four times that is seldom met.
    EXPECT_NEAR(squares / static_cast<double>(gate.input_weights.size()), 0.02 * 0.02, 0.02 * 0.02 / 8);
  }
}

TEST(RetentionNetwork, SharesWhatItsTyingSays) {
  const SourceInfo info = tiny_info(3, 4, 2, 8);  // of width 32
  const auto elements = [&](const RetentionShape& shape) {
    return LearnedLayout(RetentionNetwork(shape).parts(info), info.layers, info.kv_heads).elements();
  };
  const int64_t first = 3 * (16 * 32 + 16), second = 16 * 16 + 16;
  EXPECT_EQ(elements({.tying = Tying::kLayer, .hidden = 16}), first + 3 * second + 2 * (16 + 1));
  EXPECT_EQ(elements({.tying = Tying::kShared, .hidden = 16}), first + 3 * 2 * second + 16 + 1);
  EXPECT_EQ(elements({.tying = Tying::kNone, .hidden = 16}), first + 3 * second + 3 * 2 * (16 + 1));
  EXPECT_EQ(elements({.tying = Tying::kLayer, .hidden = 16, .has_second_layer = false}), first + 2 * (16 + 1));
}

// A policy of the registry, on a model of the shape that tiny sources have.
std::string refusal(const Options& options) {
  return test::user_error([&] { make_policy("retention", options).check(identity_of(tiny_info(2, 4, 2, 8))); });
}

TEST(Retention, FilesAreThoseOfItsShape) {
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  const test::TempFolder folder;
  const std::string path = (folder / "gates.safetensors").string();
  const RetentionShape shape{.hidden = 16};
  write(path, shape, info, drawn_parameters(shape, info));
  EXPECT_EQ(
      refusal({{"weights", path, ""}, {"hidden", "32", ""}}),
      "retention: " + path +
          " was learned with hidden: 16, expected 32; `kvlab train SPEC` makes one, weights: initial does without");
  EXPECT_NE(refusal({{"weights", path, ""}, {"hidden", "16", ""}, {"tying", "none", ""}}).find("tying: layer"),
            std::string::npos);
  EXPECT_NE(refusal({{"weights", path, ""}, {"hidden", "16", ""}, {"gate", "rg", ""}}).find("gate: rg10"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("there are no learned weights learned/retention.safetensors"), std::string::npos);
  for (const char* hidden : {"16", "0"}) {  // 0: whatever it has
    const Options good = {{"weights", path, ""}, {"hidden", hidden, ""}, {"bias", "18", ""}, {"horizon", "128", ""}};
    EXPECT_EQ(make_policy("retention", good).check(identity_of(info)).size(), 1U) << hidden;
  }
}

// Settings that its tensors are not of, or a model of another width: found out before anything runs.
TEST(Retention, FilesHoldWhatTheySay) {
  const SourceInfo info = tiny_info(2, 4, 2, 8);  // of width 32
  const test::TempFolder folder;
  const std::string path = (folder / "gates.safetensors").string();
  const RetentionShape shape{.hidden = 16};
  const LearnedFile learned = file_of(shape, info, drawn_parameters(shape, info));
  write_learned(path, learned);
  const auto of_wider = [&] {
    make_policy("retention", {{"weights", path, ""}}).check(identity_of(tiny_info(2, 8, 2, 8)));
  };
  EXPECT_NE(test::user_error(of_wider).find("'input.weight' is [16, 32] a layer, expected [16, 64] a layer"),
            std::string::npos);

  const auto says = [&](const std::string& setting, const std::string& value, Options options) {
    LearnedFile other = learned;
    other.settings[setting] = value;
    write_learned(path, other);
    options.push_back({"weights", path, ""});
    return refusal(options);
  };
  EXPECT_EQ(says("hidden", "32", {}),
            "retention: " + path +
                ": 'input.weight' is [16, 32] a layer, expected [32, 32] a layer: of another shape " +
                "of model, or of other settings than it says");
  EXPECT_NE(says("hidden", "nan", {}).find("says hidden: 'nan', expected a number from 1"), std::string::npos);
  EXPECT_NE(says("tying", "none", {{"tying", "none", ""}}).find("'output.weight' is [2, 16] a model, expected [16]"),
            std::string::npos);
  EXPECT_NE(says("gate", "rg", {{"gate", "rg", ""}}).find("'hidden.bias' is [16] a layer, expected nothing"),
            std::string::npos);
}

TEST(Retention, InputsMustBeThere) {
  const auto backend = make_backend("cpu");
  SourceInfo info = tiny_info(2, 4, 2, 8);
  info.has_inputs = false;
  TinySource source(*backend, info, {random_sample(info, 40, 1)});
  EXPECT_EQ(test::user_error([&] { run_policy(source, *backend, decode_run("retention", {}, {0}, {40}, 24, 12)); }),
            "retention: needs layer inputs, which tiny lacks");
}

TEST(Retention, WhatIsNoGateIsRefused) {
  expect_bad_option("retention", {{"gate", "rg", ""}, {"tying", "shared", ""}},
                    "retention: tying = shared: expected layer or none with gate: rg, whose heads read the same hidden "
                    "layer");
  expect_bad_option("retention", {{"hidden", "-1", ""}}, "retention: hidden = -1: expected a number from 0 to 4096");
  expect_bad_option("retention", {{"age_offset", "3", ""}}, "retention: age_offset = 3: expected 0, 1 or 2");
  expect_bad_option("retention", {{"bias", "51", ""}}, "retention: bias = 51: expected a number from -50 to 50");
  expect_bad_option("retention", {{"horizon", "0", ""}}, "retention: horizon = 0: expected at least 1");
}

}  // namespace
}  // namespace kv::ref
