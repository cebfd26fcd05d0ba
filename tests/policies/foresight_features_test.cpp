// What ForesightKV sees of an entry: the attention that it received, kept or recomputed.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "policies/parts/foresight_scorer.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/replay/generate.h"
#include "tests/support/backends.h"
#include "tests/support/close.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/policy_runs.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

KV_OVER_BACKENDS(Runs, ForesightFeaturesOn);

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

// What scorers that look on see of three texts while `policy` cuts them.
class ThreeTexts {
 public:
  explicit ThreeTexts(Backend& backend) : backend_(backend), source_(backend, info_, samples_of(info_)) {
    for (int32_t s = 0; s < 3; ++s) ids_.emplace_back(static_cast<size_t>(lengths[static_cast<size_t>(s)]), s);
  }

  void replay_with(Policy& policy, std::span<Policy* const> onlookers, const Schedule& schedule, int budget,
                   int interval) {
    replay({.backend = backend_,
            .source = source_,
            .policy = policy,
            .sequences = std::vector<std::span<const int32_t>>(ids_.begin(), ids_.end()),
            .schedule = schedule,
            .budget = budget,
            .interval = interval,
            .onlookers = onlookers});
  }
  // For every batch anew, whatever batches were before.
  Policy scorer(bool recomputes, FeaturesOfEvents*& log) const {
    auto scorer = std::make_unique<FeaturesOfEvents>(recomputes);
    scorer->use(info_, std::vector<float>(static_cast<size_t>(4 * elements_of(scorer->shape().parts(info_))), 0.1F));
    log = scorer.get();
    return policy_of("foresight-kv", std::move(scorer));
  }

  const std::vector<int32_t> lengths = {170, 131, 97}, prompts = {60, 131, 41};

 private:
  static std::vector<TinySample> samples_of(const SourceInfo& info) {
    std::vector<TinySample> samples;
    for (uint32_t s = 0; s < 3; ++s) samples.push_back(random_sample(info, std::array{170, 131, 97}[s], s + 1));
    return samples;
  }

  Backend& backend_;
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  TinySource source_;
  std::vector<std::vector<int32_t>> ids_;
};

// However the tokens come: an interval at once, in ragged pieces, one by one behind prompts that end anywhere.
TEST_P(ForesightFeaturesOn, AreSumsThatWouldBeRecomputed) {
  KV_BACKEND_OR_SKIP(backend);
  ThreeTexts texts(*backend);
  FeaturesOfEvents *kept = nullptr, *recomputed = nullptr;
  Policy keeps = texts.scorer(false, kept), recomputes = texts.scorer(true, recomputed);
  Policy* const onlookers[] = {&keeps, &recomputes};
  for (const auto& [budget, interval] : {std::pair(24, 12), {48, 40}, {40, 32}, {31, 1}, {40, 17}}) {
    const Schedule whole = decode_schedule(texts.lengths, budget, interval);
    for (const Schedule& schedule :
         {whole, token_by_token(whole, texts.prompts), in_pieces(whole, 1), in_pieces(whole, 2)}) {
      kept->rows.clear(), recomputed->rows.clear();
      Policy policy = make_policy("random", {});
      texts.replay_with(policy, onlookers, schedule, budget, interval);
      ASSERT_NO_FATAL_FAILURE(expect_same_features(kept->rows, recomputed->rows)) << budget << "/" << interval;
    }
  }
}

// Entries that expire between two queries of a block are seen by the older one alone.
TEST_P(ForesightFeaturesOn, AreTheSameOfBlocksWhereEntriesExpire) {
  KV_BACKEND_OR_SKIP(backend);
  ThreeTexts texts(*backend);
  for (const auto& [budget, interval] : {std::pair(24, 12), {48, 40}, {40, 17}}) {
    const Schedule whole = decode_schedule(texts.lengths, budget, interval);
    std::vector<Features> seen;
    for (const Schedule& schedule :
         {token_by_token(whole, std::vector<int32_t>(3, budget)), whole, in_pieces(whole, 1)}) {
      FeaturesOfEvents* log = nullptr;
      Policy keeps = texts.scorer(false, log);
      Policy* const onlookers[] = {&keeps};
      Policy policy = make_policy(
          "random", {}, {.admission = {"local", {{"sinks", "2", ""}, {"window", std::to_string(budget + 3), ""}}}});
      texts.replay_with(policy, onlookers, schedule, budget, interval);
      seen.push_back(log->rows);
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_features(seen[1], seen[0])) << budget << "/" << interval;
    ASSERT_NO_FATAL_FAILURE(expect_same_features(seen[2], seen[0])) << budget << "/" << interval;
  }
}

// Recorded steps find their place in the interval on the backend, each sequence its own.
TEST(ForesightScorerFeatures, KeepTheSameSumsInRecordedSteps) {
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

}  // namespace
}  // namespace kv::ref
