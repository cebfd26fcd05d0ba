// The gradient of ForesightKV's reinforced stage as a whole: what is drawn, what a draw is worth and how likely it was,
// against a transcription in double. Ops and rewards have tests of their own; these see how they are put together.

#include "policies/parts/foresight_reinforced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "sim/cache/to_host.h"
#include "sim/replay/replay.h"
#include "tests/ref/rate_entries.h"
#include "tests/support/backends.h"
#include "tests/support/told_source.h"

namespace kv::ref {
namespace {

// An event leaves 36 of 48 entries, and may take 24 of the 36 that are not protected.
constexpr int kBudget = 36, kInterval = 12;

// A row that is cut: what its network reads of each entry that is not protected, and what was drawn from them.
struct CutRow {
  int32_t text = 0, copy = 0;
  int layer = 0, head = 0;
  std::vector<std::vector<double>> inputs = {};  // [slot]
  std::vector<float> scores = {};                // y, [slot]
  std::vector<size_t> drawn = {};                // slots in the order of their draws

  // Slots by rank, the worst first.
  std::vector<size_t> ranked() const {
    std::vector<size_t> slots(scores.size());
    std::iota(slots.begin(), slots.end(), size_t{0});
    std::sort(slots.begin(), slots.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
    return slots;
  }
};

class CutLog final : public Observer {
 public:
  CutLog(const ForesightScorer& scorer, int32_t group) : scorer_(scorer), group_(group) {}
  std::vector<CutRow> rows;

  void evicting(const EvictionView& view) override {
    for (int row = 0; row < view.layer.rows(); ++row) {
      const int sequence = row / view.layer.kv_heads;
      if (view.sequences_due[static_cast<size_t>(sequence)]) note(view, row, sequence);
    }
  }

 private:
  void note(const EvictionView& view, int row, int sequence) {
    Backend& backend = view.layer.backend;
    const int32_t count = view.layer.lengths[static_cast<size_t>(row)] - view.protection.recent;
    CutRow& cut = rows.emplace_back(CutRow{.text = sequence / group_,
                                           .copy = sequence % group_,
                                           .layer = view.layer.layer,
                                           .head = row % view.layer.kv_heads});
    cut.inputs.resize(static_cast<size_t>(count));
    add_entries(backend, view.layer.cache, view.layer.cache.keys, row, cut);
    add_entries(backend, view.layer.cache, view.layer.cache.values, row, cut);
    const EntryNetwork network = scorer_.network(view.layer.layer);
    for (int64_t f = 0; f < network.feature_count; ++f) {
      const auto feature = to_host(backend, network.features.row(row * network.feature_count + f), count);
      for (size_t slot = 0; slot < feature.size(); ++slot) cut.inputs[slot].push_back(feature[slot]);
    }
    cut.scores = to_host(backend, view.ties.row(row), count);
    const auto keep = to_host(backend, view.keep.row(row), count);
    for (size_t slot = 0; slot < keep.size(); ++slot) {
      if (!keep[slot]) cut.drawn.push_back(slot);
    }
    const auto order = to_host(backend, view.scores.row(row), count);
    std::sort(cut.drawn.begin(), cut.drawn.end(), [&](size_t a, size_t b) { return order[a] < order[b]; });
  }

  static void add_entries(Backend& backend, const PagedView& cache, ConstRef pool, int64_t row, CutRow& cut) {
    const auto pages = to_host(backend, cache.page_table + row * cache.max_pages, cache.max_pages);
    const auto all = download_activations(backend, pool, cache.pool_pages * kPageTokens * cache.head_dim);
    for (size_t slot = 0; slot < cut.inputs.size(); ++slot) {
      const int64_t place = int64_t{pages[slot / kPageTokens]} * kPageTokens + static_cast<int64_t>(slot % kPageTokens);
      const auto first = all.begin() + place * cache.head_dim;
      cut.inputs[slot].insert(cut.inputs[slot].end(), first, first + cache.head_dim);
    }
  }

  const ForesightScorer& scorer_;
  int32_t group_;
};

// The transcription: of one row, with the parameters of its head, log π of each draw.
using Parameters = std::vector<double>;

std::vector<double> log_chances(const CutRow& row, const Parameters& of_head, int hidden, bool without_replacement) {
  std::vector<double> evict;  // e^φ = e^−y
  for (const auto& x : row.inputs) evict.push_back(std::exp(-rate_entry(of_head, x, hidden)));
  std::vector<size_t> among = row.ranked();
  if (without_replacement) among.resize(2 * row.drawn.size());
  std::vector<double> result;
  for (const size_t slot : row.drawn) {
    double sum = 0;
    for (const size_t other : among) sum += evict[other];
    result.push_back(std::log(evict[slot] / sum));
    if (without_replacement) std::erase(among, slot);
  }
  return result;
}

double k3(double of_reference, double of_learning) {
  return std::exp(of_reference - of_learning) - (of_reference - of_learning) - 1;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  double square = 0;
  for (const double value : values) square += (value - mean_of(values)) * (value - mean_of(values));
  return std::sqrt(square / static_cast<double>(values.size()));
}

// Options of a training as they are given.
struct Given {
  std::string law = "plackett-luce", reward = "all", kl = "0", group = "3", together = "4";
};

// Learns by itself from what it is given.
class NobodyElse final : public StepParts {
 public:
  void add_up(std::span<double>) override { FAIL() << "the other parts would wait"; }
};

class ForesightReinforcedLearns : public testing::Test {
 protected:
  ForesightReinforcedLearns() {
    read_texts({75, 49, 90});
    parameters_ = random_parameters(0.3F, 11);
    reference_ = parameters_;
  }

  // Random texts; of the events of each, the first is after 48 tokens.
  void read_texts(const std::vector<int32_t>& lengths) {
    std::vector<TinySample> samples;
    for (const int32_t tokens : lengths) {
      samples.push_back(random_sample(info_, tokens, static_cast<uint32_t>(samples.size() + 1)));
    }
    read_texts(lengths, std::move(samples));
  }
  void read_texts(const std::vector<int32_t>& lengths, std::vector<TinySample> samples) {
    source_ = std::make_unique<ToldSource>(*backend_, info_, std::move(samples));
    ids_.clear();
    for (const int32_t tokens : lengths) {
      ids_.emplace_back(static_cast<size_t>(tokens), static_cast<int32_t>(ids_.size()));
    }
  }
  std::vector<float> random_parameters(float size, uint32_t seed) const {
    std::vector<float> parameters = random_values(size_t{2} * 2 * per_head(), seed);
    for (float& parameter : parameters) parameter *= size;
    return parameters;
  }
  void move_reference() {
    const std::vector<float> aside = random_parameters(0.15F, 12);
    for (size_t i = 0; i < aside.size(); ++i) reference_[i] += aside[i];
  }
  size_t per_head() const { return static_cast<size_t>(elements_of(shape_.parts(info_))); }

  std::vector<double> learn(const Given& given, int64_t step = kStep) { return learn(given, step, 0, ids_.size()); }
  // From those texts of the step alone, where others learn from the others.
  std::vector<double> learn(const Given& given, int64_t step, size_t first, size_t count) {
    Params params("learn", {{"log_prob", given.law, ""},
                            {"reward", given.reward, ""},
                            {"kl", given.kl, ""},
                            {"group", given.group, ""},
                            {"together", given.together, ""}});
    ForesightReinforced training(shape_);
    training.read(params);
    training.set_reference(reference_);
    source_->outputs.clear();
    const auto begin = ids_.begin() + static_cast<int64_t>(first);
    const std::vector<std::span<const int32_t>> sequences(begin, begin + static_cast<int64_t>(count));
    NobodyElse nobody;
    const StepPart part{
        .all = nobody, .first_text = static_cast<int64_t>(first), .step_texts = std::ssize(ids_), .step_tokens = 0};
    const std::vector<int32_t> samples(count, 9);  // draws are by place: a text may come twice in a step
    std::vector<double> gradient(parameters_.size(), 0);
    measured_ = training.learn({.backend = *backend_,
                                .source = *source_,
                                .sequences = sequences,
                                .sample_numbers = samples,
                                .seed = kSeed,
                                .step = step,
                                .part = count < ids_.size() ? &part : nullptr},
                               kBudget, kInterval, parameters_, gradient);
    return gradient;
  }
  double measured(std::string_view metric) const {
    for (const LearnedMean& one : measured_) {
      if (one.metric == metric) return one.value;
    }
    ADD_FAILURE() << metric << " was not measured";
    return NAN;
  }

  // What rollouts draw that are replayed at once: by seed, place of the text and copy alone.
  std::vector<CutRow> draw(uint64_t seed, int32_t group) {
    auto scorer = std::make_unique<ForesightScorer>(shape_, EvictionSampling::kTop2d);
    scorer->keep_features();
    scorer->use(info_, parameters_);
    CutLog log(*scorer, group);
    Policy policy = policy_of("foresight-kv", std::move(scorer));
    std::vector<std::span<const int32_t>> copies;
    std::vector<int32_t> lengths, numbers;
    for (const auto& ids : ids_) {
      for (int32_t copy = 0; copy < group; ++copy) {
        copies.emplace_back(ids);
        lengths.push_back(static_cast<int32_t>(ids.size()));
        numbers.push_back(static_cast<int32_t>(numbers.size()));
      }
    }
    Observer* const observers[] = {&log};
    replay({.backend = *backend_,
            .source = *source_,
            .policy = policy,
            .sequences = copies,
            .schedule = decode_schedule(lengths, kBudget, kInterval),
            .budget = kBudget,
            .interval = kInterval,
            .seed = seed,
            .sample_numbers = numbers,
            .observers = observers});
    return std::move(log.rows);
  }

  // What learn() has just drawn, from an equal replay. That it was equal is seen by what attention gave.
  std::vector<CutRow> redraw(int32_t group) {
    ToldSource::Outputs drawn = std::exchange(source_->outputs, {});
    std::vector<CutRow> rows = draw(kSeed + 0x9E3779B97F4A7C15ull * (kStep + 1), group);
    std::erase_if(drawn, [](const auto& of) { return of.first.second < 0; });
    EXPECT_TRUE(drawn == source_->outputs) << "the rollouts are not those of learn(): other seed, numbers or law?";
    return rows;
  }

  // Of rows of (layer, head) = index, Σ shares · [−A · log π + weight · k3], a share being that of an evicted entry in
  // the mean over rollouts and over a rollout's events, KV heads and evicted entries.
  double loss_of(size_t index, const std::vector<CutRow>& rows, const Parameters& of_head, const Given& given) const {
    const Parameters reference = head_of(reference_, index);
    double loss = 0;
    for (const CutRow& row : rows) {
      if (index_of(row) != index) continue;
      const auto events = (ids_[static_cast<size_t>(row.text)].size() - 1 - kBudget) / kInterval;
      const auto group = std::stoul(given.group);
      const auto share = 1 / static_cast<double>(ids_.size() * group * events * 2 * row.drawn.size());
      const bool is_exact = given.law == "plackett-luce";
      const std::vector<double> chances = log_chances(row, of_head, shape_.hidden, is_exact);
      const std::vector<double> before = log_chances(row, reference, shape_.hidden, is_exact);
      for (size_t i = 0; i < chances.size(); ++i) {
        loss += share * (std::stod(given.kl) * k3(before[i], chances[i]) - advantage(row, given) * chances[i]);
      }
    }
    return loss;
  }
  static size_t index_of(const CutRow& row) { return static_cast<size_t>(row.layer * 2 + row.head); }
  Parameters head_of(const std::vector<float>& all, size_t index) const {
    const auto first = all.begin() + static_cast<int64_t>(index * per_head());
    return {first, first + static_cast<int64_t>(per_head())};
  }

  // Of reward `all`.
  double reward(int32_t text, int32_t copy) const {
    std::vector<double> losses;
    const auto tokens = static_cast<int32_t>(ids_[static_cast<size_t>(text)].size());
    for (int32_t predicted = kBudget + kInterval; predicted < tokens; ++predicted) {
      losses.push_back(source_->loss({.text = text, .copy = copy, .position = predicted - 1}));
    }
    return -mean_of(losses);
  }
  std::vector<double> rewards(int32_t text, size_t group) const {
    std::vector<double> all;
    for (size_t copy = 0; copy < group; ++copy) all.push_back(reward(text, static_cast<int32_t>(copy)));
    return all;
  }
  double advantage(const CutRow& row, const Given& given) const {
    if (given.reward == "none") return 0;
    const std::vector<double> all = rewards(row.text, std::stoul(given.group));
    return (all[static_cast<size_t>(row.copy)] - mean_of(all)) / deviation_of(all);
  }

  void expect_gradient(const Given& given);
  void step_against(const std::vector<double>& gradient, double length);
  // Mean over the copy's draws of log π.
  double likelihood(const std::vector<CutRow>& rows, int32_t copy, const Given& given) const;

  static constexpr uint64_t kSeed = 5;
  static constexpr int64_t kStep = 3;
  const std::unique_ptr<Backend> backend_ = make_backend("cpu");
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  ForesightShape shape_{.hidden = 8};
  std::unique_ptr<ToldSource> source_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<float> parameters_, reference_;
  std::vector<LearnedMean> measured_;
};

// Along directions of one head alone, in which all of its parameters move: heads have losses of their own.
void ForesightReinforcedLearns::expect_gradient(const Given& given) {
  constexpr double kAside = 1e-5;
  const std::vector<double> gradient = learn(given);
  const std::vector<CutRow> rows = redraw(std::stoi(given.group));
  ASSERT_EQ(rows.size(), size_t{3} * (3 + 1 + 4) * 4);  // copies, events of the texts, layers · KV heads
  for (size_t index = 0; index < 4; ++index) {
    const auto first = gradient.begin() + static_cast<int64_t>(index * per_head());
    const double length = std::sqrt(std::inner_product(first, first + static_cast<int64_t>(per_head()), first, 0.0));
    ASSERT_GT(length, 1e-3);
    for (uint32_t seed = 0; seed < 4; ++seed) {
      const std::vector<float> direction = random_values(per_head(), 100 + seed);
      const auto at = [&](double side) {
        Parameters moved = head_of(parameters_, index);
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += side * direction[i];
        return loss_of(index, rows, moved, given);
      };
      const double slope = (at(kAside) - at(-kAside)) / (2 * kAside);
      EXPECT_NEAR(std::inner_product(direction.begin(), direction.end(), first, 0.0), slope, 1e-5 * length)
          << "layer · 2 + head " << index << ", direction " << seed;
    }
  }
}

void ForesightReinforcedLearns::step_against(const std::vector<double>& gradient, double length) {
  const double square = std::inner_product(gradient.begin(), gradient.end(), gradient.begin(), 0.0);
  if (square == 0) return;
  for (size_t i = 0; i < gradient.size(); ++i) {
    parameters_[i] -= static_cast<float>(length * gradient[i] / std::sqrt(square));
  }
}

double ForesightReinforcedLearns::likelihood(const std::vector<CutRow>& rows, int32_t copy, const Given& given) const {
  std::vector<double> means;
  for (const CutRow& row : rows) {
    if (row.copy != copy) continue;
    const Parameters of_head = head_of(parameters_, index_of(row));
    means.push_back(mean_of(log_chances(row, of_head, shape_.hidden, given.law == "plackett-luce")));
  }
  return mean_of(means);
}

// Losses of which each rollout has its own.
float uneven(const Token& token) {
  const auto angle = static_cast<float>(token.text * 7 + token.copy * 11 + token.position * token.copy);
  return 1 + std::sin(angle);
}

// The texts differ in their events, and are rolled out two at once and then one. The KL is from other weights.
TEST_F(ForesightReinforcedLearns, ByTheSlopeOfItsLossUnderEitherLaw) {
  source_->loss = uneven;
  move_reference();
  for (const char* const law : {"plackett-luce", "code"}) {
    SCOPED_TRACE(law);
    expect_gradient({.law = law, .kl = "0.5", .together = "2"});
  }
}

// The same where each part is alone, so that neither hides behind the other.
TEST_F(ForesightReinforcedLearns, FromRewardsAndFromTheKlEachByItself) {
  source_->loss = uneven;
  move_reference();
  for (const char* const law : {"plackett-luce", "code"}) {
    SCOPED_TRACE(law);
    expect_gradient({.law = law, .kl = "0"});
    expect_gradient({.law = law, .reward = "none", .kl = "1"});
  }
}

TEST_F(ForesightReinforcedLearns, AndMeasuresItsRewards) {
  source_->loss = uneven;
  learn({.together = "2"});
  std::vector<double> means, spreads;
  for (int32_t text = 0; text < 3; ++text) {
    means.push_back(mean_of(rewards(text, 3)));
    spreads.push_back(deviation_of(rewards(text, 3)));
  }
  EXPECT_NEAR(measured("reward"), mean_of(means), 1e-6);
  EXPECT_NEAR(measured("reward_spread"), mean_of(spreads), 1e-6);
}

// Draws go by a text's place in its step, whoever learns from it.
TEST_F(ForesightReinforcedLearns, InPartsWhatItLearnsInOneGo) {
  source_->loss = uneven;
  move_reference();
  std::vector<double> whole = learn({});
  const std::vector<LearnedMean> means = measured_;
  std::vector<double> weighted(means.size(), 0), weights(means.size(), 0);
  double largest = 0;
  for (const double slope : whole) largest = std::max(largest, std::abs(slope));
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {1, 2}}) {
    const std::vector<double> part = learn({}, kStep, first, count);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] -= part[i];
    for (size_t i = 0; i < means.size(); ++i) {
      weighted[i] += measured_[i].value * measured_[i].weight;
      weights[i] += measured_[i].weight;
    }
  }
  EXPECT_GT(largest, 0);
  for (const double left : whole) ASSERT_NEAR(left, 0, 1e-6 * largest);
  for (size_t i = 0; i < means.size(); ++i) {
    EXPECT_NEAR(weighted[i] / weights[i], means[i].value, 1e-6) << means[i].metric;
  }
}

// Whatever its weight is: a training without it is watched by it, too.
TEST_F(ForesightReinforcedLearns, AndMeasuresTheKl) {
  move_reference();
  learn({.kl = "0"});
  std::vector<double> of_draws;
  for (const CutRow& row : redraw(3)) {
    const auto chances = log_chances(row, head_of(parameters_, index_of(row)), shape_.hidden, true);
    const auto before = log_chances(row, head_of(reference_, index_of(row)), shape_.hidden, true);
    for (size_t i = 0; i < chances.size(); ++i) of_draws.push_back(k3(before[i], chances[i]));
  }
  EXPECT_GT(mean_of(of_draws), 1e-3);
  EXPECT_NEAR(measured("kl") / mean_of(of_draws), 1, 1e-4);
}

// Copy 2 alone loses nothing by its evictions.
TEST_F(ForesightReinforcedLearns, ToDrawWhatTheBetterRolloutDrew) {
  read_texts({75});
  source_->loss = [](const Token& token) { return token.copy < 0 || token.copy == 2 ? 1.0F : 4.0F; };
  const std::vector<float> begun = parameters_;
  for (const char* const law : {"plackett-luce", "code"}) {
    SCOPED_TRACE(law);
    const Given given{.law = law, .reward = "ours", .group = "4"};
    const std::vector<double> gradient = learn(given);
    EXPECT_NEAR(measured("reward"), -9 * 0.75, 1e-6);
    const std::vector<CutRow> rows = redraw(4);
    const auto likelihoods = [&] {
      std::vector<double> of_copies;
      for (int32_t copy = 0; copy < 4; ++copy) of_copies.push_back(likelihood(rows, copy, given));
      return of_copies;
    };
    const std::vector<double> before = likelihoods();
    step_against(gradient, 0.01);
    const std::vector<double> after = likelihoods();
    EXPECT_GT(after[2], before[2]);
    EXPECT_LT(after[0] + after[1] + after[3], before[0] + before[1] + before[3]);
    parameters_ = begun;
  }
}

// An entry without which every later token is lost, known by its value: none other has a first number.
TEST_F(ForesightReinforcedLearns, ToKeepWhatHurtsWhenItIsEvicted) {
  constexpr int32_t kNeeded = 5;
  info_ = tiny_info(1, 1, 1, 8);
  TinySample sample = random_sample(info_, 75, 1);
  for (size_t t = 0; t < 75; ++t) sample.values[0][t * 8] = t == kNeeded ? 2.0F : 0.0F;
  read_texts({75}, {sample});
  source_->loss = [](const Token& token) { return token.position > kNeeded && token.output == 0 ? 3.0F : 0.0F; };
  parameters_ = random_values(per_head(), 14);
  for (float& parameter : parameters_) parameter *= 0.1F;
  reference_ = parameters_;
  const auto reward_now = [&] {
    learn({.reward = "ours", .group = "32"}, 1000);
    return measured("reward");
  };
  const double before = reward_now();
  for (int64_t step = 0; step < 20; ++step) step_against(learn({.reward = "ours", .group = "16"}, step), 0.3);
  EXPECT_LT(before, -1);
  EXPECT_GT(reward_now(), 0.2 * before);
}

// What is predicted at position t is token t + 1. Tokens of the first 48 stand before the first event, whatever they
// lose, and the last one predicts nothing.
TEST_F(ForesightReinforcedLearns, FromTokensBehindTheFirstEvent) {
  read_texts({75});
  int32_t hurt = 0;
  source_->loss = [&](const Token& token) { return token.copy >= 0 && token.position == hurt ? 54.0F : 0.0F; };
  const auto reward_where = [&](int32_t predicted) {
    hurt = predicted - 1;
    learn({});
    return measured("reward");
  };
  EXPECT_EQ(reward_where(kBudget + kInterval - 1), 0);
  EXPECT_EQ(measured("loss_increase"), 0);
  EXPECT_NEAR(reward_where(kBudget + kInterval), -54.0 / 27, 1e-6);
  EXPECT_NEAR(measured("loss_increase"), 54.0 / 27, 1e-6);
  EXPECT_NEAR(reward_where(74), -54.0 / 27, 1e-6);
}

// Of 27 tokens the five of the highest entropy count, and here a token behind the first event is one of them or not.
TEST_F(ForesightReinforcedLearns, WithTheEntropiesOfTheSameTokens) {
  read_texts({75});
  int32_t uncertain = 0;
  source_->loss = [](const Token& token) { return token.copy >= 0 && token.position == 60 ? 54.0F : 0.0F; };
  source_->entropy = [&](const Token& token) {
    if (token.copy >= 0) return 100 - static_cast<float>(std::abs(token.position - uncertain));  // none of its business
    return token.position == uncertain ? 2.0F : token.position < 55 ? 1.0F : 0.0F;
  };
  const auto reward_where = [&](int32_t position) {
    uncertain = position;
    learn({.reward = "high"});
    return measured("reward");
  };
  EXPECT_NEAR(reward_where(60), -54.0 / 5, 1e-6);
  EXPECT_EQ(reward_where(59), 0);
  EXPECT_EQ(reward_where(61), 0);
}

// Weights are small, so that each of the 24 worst is drawn about as often.
TEST_F(ForesightReinforcedLearns, FromDrawsAmongTwiceAsManyOfTheWorst) {
  parameters_ = random_parameters(0.02F, 15);
  std::vector<int> left(kBudget, 0);  // by rank, the worst first
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const CutRow& row : draw(seed, 2)) {
      ASSERT_EQ(row.scores.size(), static_cast<size_t>(kBudget));
      ASSERT_EQ(row.drawn.size(), static_cast<size_t>(kInterval));
      const std::vector<size_t> ranked = row.ranked();
      for (const size_t slot : row.drawn) ++left[static_cast<size_t>(std::ranges::find(ranked, slot) - ranked.begin())];
    }
  }
  const int rows = 8 * 2 * (3 + 1 + 4) * 4;
  for (int rank = 0; rank < kBudget; ++rank) {
    const double share = static_cast<double>(left[static_cast<size_t>(rank)]) / rows;
    EXPECT_NEAR(share, rank < 2 * kInterval ? 0.5 : 0.0, rank < 2 * kInterval ? 0.15 : 0.0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace kv::ref
