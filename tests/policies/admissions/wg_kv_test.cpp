// WG-KV: gates decide by the threshold, a draw in their place, and what is refused.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/error.h"
#include "policies/parts/write_gate_network.h"
#include "sim/learned/learned_file.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/replay/replay.h"
#include "tests/ref/write_gate.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/identity.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {
namespace {

constexpr int kTokens = 60, kWindow = 8, kHeads = 2, kLayers = 2, kDim = 8;

class WgKv : public testing::Test {
 protected:
  // The positions that each (layer, KV head) holds behind the last sweep.
  std::vector<std::vector<int32_t>> left(std::vector<GivenParam> options, int chunk = kTokens) {
    options.push_back({"window", std::to_string(kWindow), ""});
    TinySource source(*backend_, info_, {sample_});
    Policy policy = make_policy("full", {}, {.admission = {"wg-kv", options}});
    policy.load(policy.check(identity_of(info_)));
    const std::vector<int32_t> ids(kTokens, 0);
    const std::span<const int32_t> sequences[] = {ids};
    const int32_t length = kTokens;
    std::optional<LoopState> state;
    replay({.backend = *backend_,
            .source = source,
            .policy = policy,
            .sequences = sequences,
            .schedule = full_schedule({&length, 1}, chunk),
            .seed = kSeed,
            .left = &state});
    std::vector<std::vector<int32_t>> positions;
    for (int layer = 0; layer < kLayers; ++layer) {
      const PagedView view = state->cache.view(layer);
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int32_t>& of_row = positions.emplace_back();
        for (int32_t slot = 0; slot < state->cache.lengths(layer)[head]; ++slot) {
          const int64_t page = view.page_table[head * view.max_pages + slot / kPageTokens];
          of_row.push_back(view.positions[page * kPageTokens + slot % kPageTokens]);
        }
      }
    }
    return positions;
  }

  // What a naive gate over the parameters of a training's beginning says of (layer, head) at a position.
  double gate(int layer, int head, int position) const {
    const std::vector<float> all = network_.initial(info_, kSeed);  // norms are 1
    const NamedParts named(network_.parts(info_), kLayers, kHeads);
    const auto of_head = [&](const char* part) {
      const std::vector<float> of_all = named.read(part, all);
      const auto count = std::ssize(of_all) / (kLayers * kHeads);
      const auto first = of_all.begin() + (layer * kHeads + head) * count;
      return std::vector<double>(first, first + count);
    };
    const auto doubles = [](const float* from, int64_t count) { return std::vector<double>(from, from + count); };
    const auto key = [&](const std::vector<std::vector<float>>& layers) {
      return doubles(layers[static_cast<size_t>(layer)].data() + (position * kHeads + head) * kDim, kDim);
    };
    const std::vector<double> before = key(sample_.pre_rope_keys), after = key(sample_.keys);
    const std::vector<double> weights = of_head("hidden.weight"), bias = of_head("hidden.bias"),
                              output_weights = of_head("output.weight");
    return write_gate({.pre_rope_key = before,
                       .key = after,
                       .weights = weights,
                       .bias = bias,
                       .output_weights = output_weights,
                       .output_bias = of_head("output.bias").front()});
  }

  static constexpr uint64_t kSeed = 5;
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = tiny_info(kLayers, 2, kHeads, kDim);
  TinySample sample_ = random_sample(info_, kTokens, 1);
  WriteGateNetwork network_{1.5};
  test::TempFolder folder_;
};

std::string median_of(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return fmt::format("{}", values[values.size() / 2] + 1e-6);
}

// The newest token saw the window, and every older token whose gate lies above τ.
TEST_F(WgKv, WhatIsAboveTheThresholdStays) {
  std::vector<double> gates;
  for (int position = 0; position < kTokens; ++position) gates.push_back(gate(1, 0, position));
  const std::string tau = median_of(gates);
  for (const int chunk : {1, 7, kTokens}) {
    const auto kept = left({{"weights", "initial", ""}, {"tau", tau, ""}}, chunk);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        std::vector<int32_t> want;
        for (int32_t position = 0; position < kTokens; ++position) {
          if (position >= kTokens - kWindow || gate(layer, head, position) > std::stod(tau)) want.push_back(position);
        }
        EXPECT_EQ(kept[static_cast<size_t>(layer * kHeads + head)], want) << layer << ", " << head << ", " << chunk;
      }
    }
    const auto expected = static_cast<size_t>(kTokens / 2);
    EXPECT_GE(kept[2].size(), expected - kWindow);
    EXPECT_LE(kept[2].size(), expected + kWindow);
  }
}

TEST_F(WgKv, ADrawTurnsTheSameShareAwayWhateverTheGatesSay) {
  const auto kept = left({{"drop", "0.75", ""}, {"tau", "0.9999", ""}});
  size_t older = 0;
  for (const auto& row : kept) older += row.size() - kWindow;
  const double drawn = kLayers * kHeads * (kTokens - kWindow), expected = 0.25 * drawn;
  EXPECT_NEAR(static_cast<double>(older), expected, 4 * std::sqrt(0.75 * expected));
  EXPECT_NE(kept[0], kept[1]) << "heads draw for themselves";
  EXPECT_EQ(left({{"drop", "0.75", ""}, {"tau", "0.0001", ""}}), kept);
  EXPECT_EQ(left({{"drop", "0.75", ""}}, 7), kept);
}

// Of 10000 tokens 9992 are drawn, and each stays by 1 in 4: 2498 in the mean, with a deviation of √(2498 · 3/4)
// = 43.28. Of a gate nobody knows whether it lets in anything, or everything.
TEST(WgKvForetells, ADrawWithinSixDeviationsAndOfGatesTheWindowAlone) {
  const auto admission = [](std::vector<GivenParam> options) {
    options.push_back({"window", "8", ""});
    return make_policy("full", {}, {.admission = {"wg-kv", options}}).admission;
  };
  const auto drawn = admission({{"drop", "0.75", ""}}), learned = admission({});
  EXPECT_EQ(drawn->least_seen(10000, 4).longest, 8 + 2498 - 260);
  EXPECT_EQ(drawn->most_seen(10000, 4).longest, 8 + 2498 + 260);
  EXPECT_EQ(drawn->most_seen(10000, 4).total, 4 * (8 + 2498 + 260));
  for (const int64_t few : {1, 8, 9}) EXPECT_LE(drawn->most_seen(few, 1).longest, few);
  EXPECT_EQ(learned->least_seen(10000, 4).longest, 8);
  EXPECT_EQ(learned->most_seen(10000, 4).longest, 10000);
}

TEST_F(WgKv, GatesOfAFileDecideHoweverWideTheyAre) {
  const std::filesystem::path path = folder_ / "gates.safetensors";
  for (const char* expand : {"0.5", "1.5"}) {
    const WriteGateNetwork network(std::stod(expand));
    write_learned(path, {.learner = "wg-kv",
                         .model = "none",
                         .fingerprint = std::string(64, '0'),
                         .settings = {{"expand", expand}, {"window", std::to_string(kWindow)}},
                         .origin = "{}",
                         .layers = kLayers,
                         .kv_heads = kHeads,
                         .parts = network.parts(info_),
                         .parameters = network.initial(info_, kSeed)});
    const auto by_file = left({{"weights", path.string(), ""}, {"tau", "0.5", ""}});
    const auto by_hand = left({{"weights", "initial", ""}, {"expand", expand, ""}, {"tau", "0.5", ""}});
    // A file rounds weights, so a gate may come to lie on the other side of τ.
    ASSERT_EQ(by_file.size(), by_hand.size());
    size_t others = 0;
    for (size_t row = 0; row < by_file.size(); ++row) {
      std::vector<int32_t> either;
      std::ranges::set_symmetric_difference(by_file[row], by_hand[row], std::back_inserter(either));
      others += either.size();
    }
    EXPECT_LE(others, 2U) << expand;
  }

  const auto refusal = [&](std::vector<GivenParam> options) {
    options.push_back({"weights", path.string(), ""});
    return test::user_error([&] {
      const Policy policy = make_policy("full", {}, {.admission = {"wg-kv", options}});
      policy.check(identity_of(info_));
    });
  };
  EXPECT_NE(refusal({}).find("window"), std::string::npos) << refusal({});
  EXPECT_NE(refusal({{"window", "8", ""}, {"expand", "2", ""}}).find("expand"), std::string::npos);
}

// Of another width than their tensors have, of none, or of a model whose heads have another dimension.
TEST_F(WgKv, GatesOfAFileAreAsItsSettingsAndTheModelSay) {
  const WriteGateNetwork network(1.5);
  const std::filesystem::path path = folder_ / "gates.safetensors";
  const auto check = [&](const char* expand, const SourceInfo& info) {
    write_learned(path, {.learner = "wg-kv",
                         .model = "none",
                         .fingerprint = std::string(64, '0'),
                         .settings = {{"expand", expand}, {"window", std::to_string(kWindow)}},
                         .origin = "{}",
                         .layers = kLayers,
                         .kv_heads = kHeads,
                         .parts = network.parts(info_),
                         .parameters = network.initial(info_, kSeed)});
    const Policy policy = make_policy(
        "full", {},
        {.admission = {"wg-kv", {{"weights", path.string(), ""}, {"window", std::to_string(kWindow), ""}}}});
    policy.check(identity_of(info));
  };
  const auto refusal = [&](const char* expand, const SourceInfo& info) {
    return test::user_error([&] { check(expand, info); });
  };
  SourceInfo wider = info_;
  wider.head_dim = 2 * kDim;
  EXPECT_NO_THROW(check("1.5", info_));
  EXPECT_NE(refusal("2", info_).find("'hidden.weight' is [12, 16] a KV head, expected [16, 16]"), std::string::npos);
  EXPECT_NE(refusal("nan", info_).find("says expand: 'nan', expected a number from"), std::string::npos);
  EXPECT_NE(refusal("1.5", wider).find("'pre_rope_norm.weight' is [8] a layer, expected [16]"), std::string::npos);
}

TEST_F(WgKv, WhatIsNoThresholdOrShareIsRefused) {
  const auto refuses = [](const char* key, const char* value) {
    const std::string message = test::user_error([&] {
      make_policy("full", {}, {.admission = {"wg-kv", {{key, value, ""}}}});
    });
    return message.find(key) != std::string::npos && message.find("expected") != std::string::npos;
  };
  for (const char* tau : {"0", "1", "-0.5", "nan"}) EXPECT_TRUE(refuses("tau", tau)) << tau;
  for (const char* drop : {"1", "-0.1", "nan"}) EXPECT_TRUE(refuses("drop", drop)) << drop;
  for (const char* expand : {"-1", "17", "nan"}) EXPECT_TRUE(refuses("expand", expand)) << expand;
  EXPECT_TRUE(refuses("window", "0"));
}

// Found out with the model's shape, by whoever would read gates and by whoever would train them.
TEST_F(WgKv, ANetworkHasAUnitAtLeast) {
  const Policy policy =
      make_policy("full", {}, {.admission = {"wg-kv", {{"weights", "initial", ""}, {"expand", "0.1", ""}}}});
  const std::string expected = "wg-kv: expand = 0.1: no hidden unit at a head dimension of 8, expected at least 0.125";
  EXPECT_EQ(test::user_error([&] { policy.check(identity_of(info_)); }), expected);
  EXPECT_EQ(test::user_error([&] { policy.admission->learner()->check(identity_of(info_)); }), expected);
  left({{"weights", "initial", ""}, {"expand", "0.125", ""}});
}

// Also where a draw decides: the network runs for its cost.
TEST_F(WgKv, KeysBeforeRopeMustBeThere) {
  SourceInfo lacking = info_;
  lacking.has_pre_rope_keys = false;
  info_ = lacking;
  for (const GivenParam& option : {GivenParam{"weights", "initial", ""}, GivenParam{"drop", "0.5", ""}}) {
    EXPECT_NE(test::user_error([&] { left({option}); }).find("needs pre-RoPE keys"), std::string::npos) << option.key;
  }
}

}  // namespace
}  // namespace kv::ref
