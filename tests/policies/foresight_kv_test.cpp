#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/half.h"
#include "policies/parts/foresight_scorer.h"
#include "policies/parts/foresight_training.h"
#include "sim/io/safetensors.h"
#include "sim/learned/learned_file.h"
#include "sim/model/model_files.h"
#include "sim/replay/generate.h"
#include "tests/support/close.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/frozen.h"
#include "tests/support/identity.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

const Frozen frozen{"foresight-kv", {0x33f5ea4616daedf3}};

// The source of expect_agrees, and weights of which each head has its own, the same in both layers: large enough for
// the hidden units to bend.
struct Weights {
  SourceInfo info = tiny_info(2, 4, 2, 8);
  ForesightShape shape;
  std::vector<std::vector<float>> of_heads;

  explicit Weights(ForesightShape its_shape) : shape(its_shape) {
    const int64_t elements = elements_of(shape.parts(info));
    for (uint32_t head = 0; head < 2; ++head) {
      of_heads.push_back(random_values(elements, 31 + head));
      for (float& weight : of_heads.back()) weight = bf16_to_f32(f32_to_bf16(0.5F * weight));  // as a file holds them
    }
  }
  std::vector<float> parameters() const {
    std::vector<float> all;
    for (int layer = 0; layer < info.layers; ++layer) {
      for (const std::vector<float>& head : of_heads) all.insert(all.end(), head.begin(), head.end());
    }
    return all;
  }
  void write(const std::filesystem::path& path) const {
    write_learned(path, {.learner = "foresight-kv",
                         .model = "tiny",
                         .fingerprint = "none",
                         .settings = shape.settings(),
                         .origin = "{}",
                         .layers = info.layers,
                         .kv_heads = info.kv_heads,
                         .parts = shape.parts(info),
                         .parameters = parameters()});
  }
};

KV_OVER_BACKENDS(Runs, ForesightKvOn);

// Interval 12 cuts the sums over 16 and 32 queries short, 40 does not.
TEST_P(ForesightKvOn, AgreesWithItsTranscription) {
  KV_BACKEND_OR_SKIP(backend);
  const test::TempFolder folder;
  for (const auto& [reads_entry, sums] : {std::pair(true, "kept"), {false, "kept"}, {true, "recomputed"}}) {
    const Weights weights({.reads_entry = reads_entry, .hidden = reads_entry ? 16 : 8});
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
  std::vector<float> parameters = Weights(ForesightShape{}).parameters();
  std::fill_n(parameters.end() - std::ssize(parameters) / 4, std::ssize(parameters) / 4, 3e38F);
  for (const EvictionSampling sampling :
       {EvictionSampling::kTop2d, EvictionSampling::kMultinomial, EvictionSampling::kTop}) {
    auto scorer = std::make_unique<ForesightScorer>(ForesightShape{}, sampling);
    scorer->use(info, parameters);
    Policy policy = policy_of("foresight-kv", std::move(scorer));
    const std::string complaint = test::user_error([&] {
      replay({.backend = *backend,
              .source = source,
              .policy = policy,
              .sequences = sequences,
              .schedule = decode_schedule(lengths, 24, 12),
              .budget = 24,
              .interval = 12});
    });
    EXPECT_TRUE(complaint.starts_with("foresight-kv: the score of entry ")) << complaint;
    // An infinity, or what comes of two: that depends on the order of a sum.
    EXPECT_NE(complaint.find(" of 36 in layer 1, KV head 1, is "), std::string::npos) << complaint;
    EXPECT_TRUE(complaint.ends_with(" (expected a finite number)")) << complaint;
  }
}

// Of other units than their tensors have, or of a model whose keys are wider.
TEST(ForesightKvFiles, HoldWhatTheySay) {
  const test::TempFolder folder;
  const std::string path = (folder / "weights.safetensors").string();
  Weights weights(ForesightShape{});
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

// Cuts what it is told, [event, KV head, dropped slots].
class Scripted final : public Scorer {
 public:
  Scorer& drops(std::vector<std::vector<int32_t>> rows) {
    rows_ = std::move(rows);
    return *this;
  }
  Protection protects(int, int interval) const override { return {.recent = interval}; }
  void score(const LayerView& view, const ScoreOutput& out) override {
    for (int head = 0; head < view.kv_heads; ++head) {
      std::vector<float> scores(static_cast<size_t>(view.lengths[static_cast<size_t>(head)]), 1.0F);
      for (const int32_t slot : rows_.at(next_++)) scores[static_cast<size_t>(slot)] = 0;
      view.backend.upload(out.scores.row(head), scores.data(), scores.size() * sizeof(float));
    }
  }

 private:
  std::vector<std::vector<int32_t>> rows_;
  size_t next_ = 0;
};

// Takes down the features that an onlooker has made, [event, head, feature, slot].
class FeatureLog final : public Observer {
 public:
  explicit FeatureLog(const ForesightScorer& scorer) : scorer_(scorer) {}
  std::vector<std::vector<float>> rows;  // [event · heads + head]

  void evicting(const EvictionView& view) override {
    const EntryNetwork network = scorer_.network(0);
    const int candidates = view.layer.lengths[0] - view.protection.recent;
    for (int head = 0; head < view.layer.kv_heads; ++head) {
      std::vector<float>& row = rows.emplace_back();
      for (int f = 0; f < network.feature_count; ++f) {
        std::vector<float> of_slots(static_cast<size_t>(candidates));
        view.layer.backend.download(of_slots.data(), network.features.row(head * network.feature_count + f),
                                    of_slots.size() * sizeof(float));
        row.insert(row.end(), of_slots.begin(), of_slots.end());
      }
    }
  }

 private:
  const ForesightScorer& scorer_;
};

// tests/data/foresight: what a cache looks like while what stands in `drop` is cut from it, and its features.
struct RecordedCuts {
  ForesightShape shape;
  int budget, interval, dim;
  std::string prefix, drop, features;  // names of tensors; those of a layer's `of_layers`
  int layer = 0, of_layers = 1;
  static constexpr int kEvents = 3, kHeads = 2, kGroup = 2;
};

void expect_features(const RecordedCuts& recorded) {
  constexpr int kEvents = RecordedCuts::kEvents, kHeads = RecordedCuts::kHeads, kGroup = RecordedCuts::kGroup;
  const int dim = recorded.dim;
  const SafetensorsFile file = open_packed("tests/data/foresight/expected.safetensors");
  const auto of_layer = [&](auto all) {
    const int64_t size = std::ssize(all) / recorded.of_layers;
    return slice(all, recorded.layer * size, size);
  };
  const auto backend = make_backend("cpu");
  const SourceInfo info = tiny_info(1, kHeads * kGroup, kHeads, dim);
  const auto by_token = [&](const std::string& name, int heads) {  // [heads, tokens, dim] there
    const std::vector<float> from = of_layer(file.read_f32(file.require(recorded.prefix + name)));
    const int64_t tokens = std::ssize(from) / heads / dim;
    std::vector<float> to;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        to.insert(to.end(), from.begin() + (h * tokens + t) * dim, from.begin() + (h * tokens + t + 1) * dim);
      }
    }
    return to;
  };
  std::vector<float> keys = by_token("k", kHeads), queries = by_token("q", kHeads * kGroup);
  // As far as the third event, and one token more, so that it does not end the text.
  const int32_t tokens = recorded.budget + kEvents * recorded.interval + 1;
  keys.resize(static_cast<size_t>(tokens) * kHeads * dim, 0);
  queries.resize(static_cast<size_t>(tokens) * kHeads * kGroup * dim, 0);
  TinySource source(*backend, info,
                    {{.queries = {queries}, .keys = {keys}, .values = {keys}, .pre_rope_queries = {queries}}});

  const std::vector<int32_t> drop = of_layer(file.read_i32(file.require(recorded.drop)));
  std::vector<std::vector<int32_t>> rows;
  for (int64_t row = 0; row < kEvents * kHeads; ++row) {
    rows.push_back(slice(drop, row * recorded.interval, recorded.interval));
  }
  auto script = std::make_unique<Scripted>();
  script->drops(rows);
  Policy policy = policy_of("scripted", std::move(script));
  auto scorer = std::make_unique<ForesightScorer>(recorded.shape);
  scorer->keep_features();
  FeatureLog log(*scorer);
  scorer->use(info, std::vector<float>(static_cast<size_t>(kHeads * elements_of(scorer->shape().parts(info))), 0.1F));
  Policy onlooker = policy_of("foresight-kv", std::move(scorer));
  const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
  const std::span<const int32_t> sequences[] = {ids};
  Observer* const observers[] = {&log};
  Policy* const onlookers[] = {&onlooker};
  const int32_t lengths[] = {tokens};
  replay({.backend = *backend,
          .source = source,
          .policy = policy,
          .sequences = sequences,
          .schedule = decode_schedule(lengths, recorded.budget, recorded.interval),
          .budget = recorded.budget,
          .interval = recorded.interval,
          .observers = observers,
          .onlookers = onlookers});

  const int64_t features = recorded.shape.network(info).feature_count;
  const std::vector<float> want = of_layer(file.read_f32(file.require(recorded.features)));
  ASSERT_EQ(std::ssize(want), kEvents * kHeads * recorded.budget * features);  // [event, head, slot, feature]
  ASSERT_EQ(log.rows.size(), static_cast<size_t>(kEvents * kHeads));
  for (int64_t row = 0; row < kEvents * kHeads; ++row) {
    for (int64_t f = 0; f < features; ++f) {
      std::vector<double> of_feature;
      for (int64_t slot = 0; slot < recorded.budget; ++slot) {
        of_feature.push_back(want[(row * recorded.budget + slot) * features + f]);
      }
      // Sums of up to a hundred probabilities, each of an exponential of f32 logits, in both.
      const double largest = *std::max_element(of_feature.begin(), of_feature.end());
      expect_close(slice(log.rows[static_cast<size_t>(row)], f * recorded.budget, recorded.budget), of_feature,
                   {.roundings = 200, .magnitude = largest});
    }
  }
}

// Of a cut that was drawn at random; the sums that the authors' training has, too, have been compared with it there.
TEST(ForesightScorerFeatures, AreThePapers) {
  for (const bool recomputes : {false, true}) {
    expect_features({.shape = {.recomputes_sums = recomputes},
                     .budget = 36,
                     .interval = 33,
                     .dim = 4,
                     .prefix = "paper.",
                     .drop = "paper.drop",
                     .features = "paper.features"});
  }
}

TEST(ForesightScorerFeatures, AreThoseOfTheAuthorsTraining) {
  for (const int layer : {0, 1}) {
    expect_features({.shape = {.features = ForesightShape::Features::kCode},
                     .budget = 24,
                     .interval = 8,
                     .dim = 8,
                     .drop = "labels.drop",
                     .features = "code.features",
                     .layer = layer,
                     .of_layers = 2});
  }
}

// Takes down the features of the rows that an event scores, [event, layer, sequence, head, feature, slot].
class FeaturesOfEvents final : public ForesightScorer {
 public:
  explicit FeaturesOfEvents(bool recomputes) : ForesightScorer({.recomputes_sums = recomputes}) {}
  std::vector<std::vector<float>> rows;  // [event, layer, sequence, head, feature]

  void score(const LayerView& view, const ScoreOutput& out) override {
    ForesightScorer::score(view, out);
    const EntryNetwork of_layer = network(view.layer);
    for (int row = 0; row < view.rows(); ++row) {
      if (out.sequences_due[static_cast<size_t>(row / view.kv_heads)] == 0) continue;
      for (int f = 0; f < of_layer.feature_count; ++f) {
        rows.emplace_back(static_cast<size_t>(view.lengths[static_cast<size_t>(row)]));
        view.backend.download(rows.back().data(), of_layer.features.row(row * of_layer.feature_count + f),
                              rows.back().size() * sizeof(float));
      }
    }
  }
};

using Features = std::vector<std::vector<float>>;

void expect_same_features(const Features& kept, const Features& recomputed) {
  ASSERT_EQ(kept.size(), recomputed.size());
  ASSERT_FALSE(kept.empty());
  for (size_t row = 0; row < kept.size(); ++row) {
    // Sums of up to a hundred probabilities, each of an exponential of f32 logits, in both.
    const float largest = *std::max_element(recomputed[row].begin(), recomputed[row].end());
    ASSERT_NO_FATAL_FAILURE(
        expect_close(kept[row], recomputed[row], {.roundings = 200, .magnitude = std::max(1.0F, largest)}))
        << "row " << row;
  }
}

// Each step in up to four, of as many tokens of each sequence as it comes; the last one has some of every sequence.
Schedule in_pieces(const Schedule& schedule, uint32_t seed) {
  std::mt19937 generator(seed);
  Schedule pieces;
  for (const Step& step : schedule) {
    std::vector<int32_t> left = step.counts;
    for (auto n = generator() % 4; n > 0; --n) {
      Step piece{left, std::vector<int32_t>(left.size(), -1)};
      for (size_t s = 0; s < left.size(); ++s) {
        piece.counts[s] = left[s] > 1 ? static_cast<int32_t>(generator() % static_cast<uint32_t>(left[s])) : 0;
        left[s] -= piece.counts[s];
      }
      if (std::ranges::any_of(piece.counts, [](int32_t count) { return count > 0; })) pieces.push_back(piece);
    }
    pieces.push_back({left, step.keep});
  }
  return pieces;
}

// However the tokens come: an interval at once, in ragged pieces, one by one behind prompts that end anywhere.
TEST_P(ForesightKvOn, KeepsTheSumsThatItRecomputes) {
  KV_BACKEND_OR_SKIP(backend);
  const SourceInfo info = tiny_info(2, 4, 2, 8);
  const std::vector<int32_t> lengths = {170, 131, 97}, prompts = {60, 131, 41};
  std::vector<TinySample> samples;
  for (uint32_t s = 0; s < 3; ++s) samples.push_back(random_sample(info, lengths[s], s + 1));
  TinySource source(*backend, info, std::move(samples));
  std::vector<std::vector<int32_t>> ids;
  for (int32_t s = 0; s < 3; ++s) ids.emplace_back(static_cast<size_t>(lengths[s]), s);
  const std::vector<std::span<const int32_t>> sequences(ids.begin(), ids.end());
  for (const auto& [budget, interval] : {std::pair(24, 12), {48, 40}, {40, 32}, {31, 1}, {40, 17}}) {
    const Schedule whole = decode_schedule(lengths, budget, interval);
    for (const Schedule& schedule : {whole, token_by_token(whole, prompts), in_pieces(whole, 1), in_pieces(whole, 2)}) {
      std::vector<Policy> onlookers;
      std::vector<FeaturesOfEvents*> scorers;
      for (const bool recomputes : {false, true}) {
        auto scorer = std::make_unique<FeaturesOfEvents>(recomputes);
        scorer->use(info, std::vector<float>(static_cast<size_t>(4 * elements_of(scorer->shape().parts(info))), 0.1F));
        scorers.push_back(scorer.get());
        onlookers.push_back(policy_of("foresight-kv", std::move(scorer)));
      }
      Policy policy = make_policy("random", {});
      Policy* const looking_on[] = {&onlookers[0], &onlookers[1]};
      replay({.backend = *backend,
              .source = source,
              .policy = policy,
              .sequences = sequences,
              .schedule = schedule,
              .budget = budget,
              .interval = interval,
              .onlookers = looking_on});
      ASSERT_NO_FATAL_FAILURE(expect_same_features(scorers[0]->rows, scorers[1]->rows)) << budget << "/" << interval;
    }
  }
}

// Recorded steps find their place in the interval on the backend, each sequence its own.
TEST(ForesightKv, KeepsTheSameSumsInRecordedSteps) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(source_path("tests/data/llama")));
  const SourceInfo& info = source.info();
  std::vector<int32_t> longer(70), shorter(45);
  std::iota(longer.begin(), longer.end(), 100);
  std::iota(shorter.begin(), shorter.end(), 300);
  const std::vector<std::span<const int32_t>> prompts = {longer, shorter};
  class Watcher final : public Observer {
  } watcher;
  for (const std::pair<int, int>& setting : {std::pair(24, 12), {48, 40}}) {
    const auto features = [&](bool recomputes, bool recorded) {
      auto scorer = std::make_unique<FeaturesOfEvents>(recomputes);
      FeaturesOfEvents* log = scorer.get();
      const int64_t elements = elements_of(scorer->shape().parts(info)) * info.layers * info.kv_heads;
      scorer->use(info, random_values(static_cast<size_t>(elements), 5));
      Policy policy = policy_of("foresight-kv", std::move(scorer));
      Observer* const observers[] = {&watcher};
      const GenerateResult result = generate({.backend = *backend,
                                              .source = source,
                                              .policy = policy,
                                              .prompts = prompts,
                                              .budget = setting.first,
                                              .interval = setting.second,
                                              .max_new_tokens = 90,
                                              .observers = std::span(observers).first(recorded ? 0 : 1)});
      EXPECT_EQ(std::ranges::any_of(result.stretches, [](const auto& stretch) { return stretch.recorded; }), recorded);
      return std::pair(result.sequences, log->rows);
    };
    const auto [recorded_texts, recorded] = features(false, true);
    const auto [eager_texts, eager] = features(false, false);
    const auto [recomputed_texts, recomputed] = features(true, true);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(recorded_texts[s].ids, eager_texts[s].ids);
      EXPECT_EQ(recorded_texts[s].ids, recomputed_texts[s].ids);
    }
    EXPECT_EQ(recorded, eager);
    ASSERT_NO_FATAL_FAILURE(expect_same_features(recorded, recomputed)) << setting.first << "/" << setting.second;
  }
}

class ForesightLearns : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<TinySample> samples;
    for (uint32_t s = 0; s < 3; ++s) samples.push_back(random_sample(info_, kLengths[s], s + 1));
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
    for (int32_t s = 0; s < 3; ++s) ids_.emplace_back(static_cast<size_t>(kLengths[s]), s);
    sequences_.assign(ids_.begin(), ids_.end());
    Params params("learn", {{"budget", "24", ""}, {"interval", "12", ""}, {"margin", "0.5", ""}});
    training_.read(params);
  }
  // Σ over texts and layers.
  double loss(const std::vector<float>& parameters, std::vector<double>& gradient) {
    gradient.assign(parameters.size(), 0);
    const auto measured =
        training_.learn({.backend = *backend_, .source = *source_, .sequences = sequences_, .sample_numbers = numbers_},
                        parameters, gradient);
    EXPECT_EQ(measured[0].metric, "hinge_loss");
    overlap_ = measured[1].value;
    return measured[0].value * static_cast<double>(sequences_.size());
  }

  static constexpr int32_t kLengths[] = {90, 61, 37};  // of which the last has one event, at its last token but one
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<TinySource> source_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<std::span<const int32_t>> sequences_;
  const std::vector<int32_t> numbers_ = {0, 1, 2};
  ForesightScorer scorer_{ForesightShape{}};
  ForesightTraining training_{scorer_, "foresight-kv"};
  double overlap_ = 0;
};

// Along the gradient and along directions of one head alone, against differences of the loss. The hinge is piecewise
// linear in scores that bend, so a step is small and both sides of it are taken.
TEST_F(ForesightLearns, ByTheSlopeOfItsLoss) {
  std::vector<float> parameters = Weights(ForesightShape{}).parameters();
  std::vector<double> gradient, ignored;
  loss(parameters, gradient);
  const auto per_head = static_cast<size_t>(std::ssize(parameters) / 4);
  for (int head = -1; head < 4; ++head) {
    double square = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (head < 0 || i / per_head == static_cast<size_t>(head)) square += gradient[i] * gradient[i];
    }
    ASSERT_GT(square, 0);
    const double length = 2e-3 / std::sqrt(square);
    const auto at = [&](double sign) {
      std::vector<float> moved = parameters;
      for (size_t i = 0; i < moved.size(); ++i) {
        if (head < 0 || i / per_head == static_cast<size_t>(head)) {
          moved[i] = static_cast<float>(moved[i] + sign * length * gradient[i]);
        }
      }
      return loss(moved, ignored);
    };
    EXPECT_NEAR((at(1) - at(-1)) / (2 * length) / square, 1, 0.02) << "head " << head;
  }
}

TEST_F(ForesightLearns, ToEvictWhatGoldenEvicts) {
  std::vector<float> parameters = training_.initial(info_, 1);
  std::vector<double> gradient;
  const double before = loss(parameters, gradient), overlap = overlap_;
  for (int step = 0; step < 60; ++step) {
    double square = 0;
    for (const double g : gradient) square += g * g;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i] -= static_cast<float>(0.1 * gradient[i] / std::sqrt(square));
    }
    loss(parameters, gradient);
  }
  EXPECT_LT(loss(parameters, gradient), 0.8 * before);
  EXPECT_GT(overlap_, overlap + 0.1);
}

// A text alone or between others has the same part in the gradient; texts add up.
TEST_F(ForesightLearns, OfEachTextByItself) {
  const std::vector<float> parameters = Weights(ForesightShape{}).parameters();
  std::vector<double> together, alone, sum(parameters.size(), 0.0);
  loss(parameters, together);
  const std::vector<std::span<const int32_t>> all = sequences_;
  for (const auto& ids : all) {
    sequences_ = {ids};
    loss(parameters, alone);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += alone[i];
  }
  double largest = 0;
  for (const double g : together) largest = std::max(largest, std::abs(g));
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(together[i], sum[i], 1e-5 * largest) << i;
}

// A step of several settings learns what it would by its own alone.
TEST_F(ForesightLearns, SettingsInTurn) {
  const std::vector<float> parameters = Weights(ForesightShape{}).parameters();
  const auto gradient_of = [&](std::vector<GivenParam> given, int64_t step) {
    Params params("learn", std::move(given));
    training_.read(params);
    std::vector<double> gradient(parameters.size(), 0);
    training_.learn(
        {.backend = *backend_, .source = *source_, .sequences = sequences_, .sample_numbers = numbers_, .step = step},
        parameters, gradient);
    return gradient;
  };
  const std::vector<GivenParam> both = {{"settings", "24/12 28/14", ""}};
  const std::vector<double> wide = gradient_of({{"budget", "24", ""}, {"interval", "12", ""}}, 0);
  const std::vector<double> narrow = gradient_of({{"budget", "28", ""}, {"interval", "14", ""}}, 0);
  EXPECT_NE(wide, narrow);
  EXPECT_EQ(gradient_of(both, 0), wide);
  EXPECT_EQ(gradient_of(both, 1), narrow);
  EXPECT_EQ(gradient_of(both, 2), wide);
  EXPECT_EQ(training_.least_tokens(), 28 + 14 + 1);
}

TEST_F(ForesightLearns, NothingFromALossThatIsNotANumber) {
  std::vector<float> parameters = Weights(ForesightShape{}).parameters();
  std::fill_n(parameters.end() - 20, 20, 3e38F);  // the last head's
  std::vector<double> gradient;
  EXPECT_EQ(test::user_error([&] { loss(parameters, gradient); }), "layer 1, KV head 1: the loss is nan");
}

TEST(ForesightKv, RefusesWhatItCannotKeep) {
  expect_refused("foresight-kv", {}, 24, 0,
                 "foresight-kv: one-shot compression is not covered (expected decode-time pruning with an interval)");
  expect_refused("foresight-kv", {}, 24, 24, "foresight-kv: budget 24 must exceed the interval 24");
  expect_refused("foresight-kv", {}, 20, 10,
                 "foresight-kv: budget 20 and interval 10 are less than the 32 newest queries, which judge");
  expect_bad_option("foresight-kv", {{"hidden", "12", ""}}, "foresight-kv: hidden = 12: expected 8, 16, 32 or 64");
}

TEST(ForesightKv, RefusesToLearnWhereGoldenCannotJudge) {
  ForesightScorer scorer{ForesightShape{}};
  ForesightTraining training(scorer, "foresight-kv");
  EXPECT_EQ(test::user_error([&] {
              Params params("learn", {{"budget", "100", ""}, {"interval", "64", ""}});
              training.read(params);
            }),
            "learn: budget = 100: expected a multiple of the interval 64 that is above it");
}

// An option of the other stage would be ignored, so it is refused.
TEST(ForesightKv, RefusesToLearnByWhatItsStageDoesNotHave) {
  const auto refusal = [&](std::vector<GivenParam> given, const std::string& weights = "w") {
    ForesightScorer scorer{ForesightShape{}};
    ForesightTraining training(scorer, weights);
    return test::user_error([&] {
      Params params("learn", std::move(given));
      training.read(params);
    });
  };
  EXPECT_EQ(refusal({{"reward", "low", ""}}), "learn: reward = low: only stage reinforced has it");
  EXPECT_EQ(refusal({{"stage", "reinforced", ""}, {"start", "s", ""}, {"margin", "0.1", ""}}),
            "learn: margin = 0.1: only stage supervised has it");
  EXPECT_EQ(refusal({{"stage", "reinforced", ""}}),
            "learn: start: stage reinforced goes on from weights, expected a name");
  EXPECT_EQ(
      refusal({{"stage", "reinforced", ""}, {"start", "s", ""}, {"budget", "8194", ""}, {"interval", "4097", ""}}),
      "learn: stage = reinforced: an interval of 4097: expected at most 4096 in this stage");
  EXPECT_EQ(refusal({{"budget", "131072", ""}}), "learn: budget = 131072: expected at most 65536");
  EXPECT_EQ(refusal({}, "initial"), "foresight-kv: weights = initial are no file, expected another name to train");
}

TEST(ForesightKv, LearnsByThePublishedSettingsOfEachStage) {
  ForesightScorer scorer{ForesightShape{}};
  ForesightTraining training(scorer, "w");
  const auto read = [&](std::vector<GivenParam> given) {
    Params params("learn", std::move(given));
    training.read(params);
    return training.defaults();
  };
  const TrainingOptions supervised = read({});
  EXPECT_EQ(supervised.steps, 1000);
  EXPECT_EQ(supervised.batch, 8);
  EXPECT_EQ(supervised.rate, 0.01);
  EXPECT_EQ(training.least_tokens(), 1024 + 256 + 1);
  const TrainingOptions reinforced = read({{"stage", "reinforced", ""}, {"start", "s", ""}});
  EXPECT_EQ(reinforced.steps, 200);
  EXPECT_EQ(reinforced.batch, 32);
  EXPECT_EQ(reinforced.rate, 3e-4);
  EXPECT_EQ(reinforced.schedule, TrainingOptions::Schedule::kConstant);
  EXPECT_EQ(training.least_tokens(), 1024 + 256 + 2);
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
