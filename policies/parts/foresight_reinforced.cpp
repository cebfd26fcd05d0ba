#include "policies/parts/foresight_reinforced.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/error.h"
#include "kernels/rate_entries.h"
#include "policies/parts/options.h"
#include "policies/parts/row_gradients.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

RewardKind reward_kind(Params& params) {
  const std::string name = params.get(
      "reward", "ours", {"ours", "none", "all", "low", "high", "low-large"},
      "stage reinforced: what a rollout is worth (001 Eq. 7 and Table 4): minus squared large increases of "
      "low-entropy tokens' losses; nothing; minus the mean loss of all, low-entropy, high-entropy tokens, or "
      "of low-entropy ones that grew much");
  if (name == "all") return RewardKind::kAll;
  if (name == "low") return RewardKind::kLow;
  if (name == "high") return RewardKind::kHigh;
  if (name == "low-large") return RewardKind::kLowLarge;
  return name == "none" ? RewardKind::kNone : RewardKind::kOurs;
}

// The stream of a step: its draws are those of no other.
uint64_t seed_of_step(uint64_t seed, int64_t step) {
  return seed + 0x9E3779B97F4A7C15ull * (static_cast<uint64_t>(step) + 1);
}

}  // namespace

// Copies of some texts, each drawing for itself: sequence = text · group + copy.
class ForesightReinforced::Rollouts final : public Observer {
 public:
  Rollouts(const LearnBatch& batch, const ForesightScorer& scorer, std::span<const float> reference, DrawLaw law,
           double kl_weight, int64_t sequences, int64_t longest)
      : batch_(batch),
        info_(batch.source.info()),
        scorer_(scorer),
        law_(law),
        kl_weight_(kl_weight),
        rows_(sequences * info_.kv_heads),
        for_reward_(batch.backend, info_, scorer, sequences),
        for_kl_(batch.backend, info_, scorer, sequences),
        due_(batch.backend, rows_, info_.kv_heads),
        reference_(batch.backend, DType::kF32, std::ssize(reference)),
        ones_(batch.backend, DType::kF32, sequences),
        zeros_(batch.backend, DType::kF32, sequences),
        loss_(batch.backend, DType::kF32, rows_),
        kl_(batch.backend, DType::kF32, rows_),
        clipped_(batch.backend, DType::kF32, rows_),
        events_(static_cast<size_t>(sequences), 0),
        nll_(static_cast<size_t>(sequences), std::vector<float>(static_cast<size_t>(longest), 0.0F)) {
    reference_.upload(reference.data(), reference.size_bytes());
    const std::vector<float> ones(static_cast<size_t>(sequences), 1.0F);
    ones_.upload(ones.data(), ones.size() * sizeof(float));
    zeros_.fill_zero();
  }

  void block_done(const Block& block, const TokenLosses& losses) override {
    for (const Segment& segment : block.segments) {
      std::copy_n(losses.nll.begin() + segment.first_token, segment.count,
                  nll_[static_cast<size_t>(segment.sequence)].begin() + segment.first_position);
    }
  }

  void evicting(const EvictionView& view) override {
    due_.set(view.sequences_due);
    if (view.layer.layer == 0) {
      for (size_t s = 0; s < events_.size(); ++s) events_[s] += view.sequences_due[s];
    }
    const Slots<float> rated = rate_by_reference(view);
    // Linear in the advantage: what an advantage of 1 and what the KL by itself would teach.
    learn_from(view, rated, ones_, 0, for_reward_);
    if (kl_weight_ > 0) learn_from(view, rated, zeros_, 1, for_kl_);
    note_kl(view.layer.layer);
  }

  std::span<const float> nll(int64_t sequence) const { return nll_[static_cast<size_t>(sequence)]; }
  // Over the rows of all events.
  double kl_sum() const { return kl_sum_; }
  int64_t kl_rows() const { return kl_rows_; }

  void add_gradient(std::span<const double> advantages, double rollouts, std::span<double> gradient) const {
    const auto share = [&](int64_t sequence) {
      const int64_t events = events_[static_cast<size_t>(sequence)];
      return events > 0 ? 1 / (static_cast<double>(events * info_.kv_heads) * rollouts) : 0.0;
    };
    for_reward_.add_to(
        gradient, [&](int, int64_t sequence) { return advantages[static_cast<size_t>(sequence)] * share(sequence); });
    for_kl_.add_to(gradient, [&](int, int64_t sequence) { return kl_weight_ * share(sequence); });
  }

 private:
  Slots<float> rate_by_reference(const EvictionView& view) {
    const Slots<float> rated = rated_.reserve_slots<float>(batch_.backend, rows_, view.layer.pitch);
    EntryNetwork network = scorer_.network(view.layer.layer);
    network.parameters = reference_.ref().as<float>() + view.layer.layer * info_.kv_heads * network.parameter_count();
    batch_.backend.rate_entries({.cache = view.layer.cache,
                                 .network = network,
                                 .rows_due = due_.on_device(),
                                 .drop_newest = view.protection.recent,
                                 .output = rated});
    return rated;
  }

  void learn_from(const EvictionView& view, Slots<const float> rated, const Tensor& advantages, float kl_weight,
                  RowGradients& gradients) {
    const Slots<float> slope = slope_.reserve_slots<float>(batch_.backend, rows_, view.layer.pitch);
    batch_.backend.eviction_surrogate({.cache = view.layer.cache,
                                       .scores = view.ties,
                                       .old_scores = view.ties,
                                       .reference_scores = rated,
                                       .keep = view.keep,
                                       .law = law_,
                                       .order = view.scores,
                                       .stays = scorer_.eviction_draw().stays(view.layer.layer),
                                       .advantages = advantages.ref().as<float>(),
                                       .kl_weight = kl_weight,
                                       .rows_due = due_.on_device(),
                                       .drop_newest = view.protection.recent,
                                       .loss = loss_.ref().as<float>(),
                                       .kl = kl_.ref().as<float>(),
                                       .clipped = clipped_.ref().as<float>(),
                                       .gradient = slope});
    gradients.add(view.layer, slope, due_.on_device(), view.protection.recent);
  }

  void note_kl(int layer) {
    std::vector<float> kl(static_cast<size_t>(rows_));
    kl_.download(kl.data(), kl.size() * sizeof(float));
    for (int64_t row = 0; row < rows_; ++row) {
      if (!due_.is_due(row)) continue;
      const float of_row = kl[static_cast<size_t>(row)];
      if (!std::isfinite(of_row)) {
        throw NotFiniteError(fmt::format("layer {}, KV head {}: the KL is {}",
                                         info_.layer_numbers[static_cast<size_t>(layer)], row % info_.kv_heads,
                                         of_row));
      }
      kl_sum_ += of_row;
      ++kl_rows_;
    }
  }

  const LearnBatch& batch_;
  const SourceInfo& info_;
  const ForesightScorer& scorer_;
  DrawLaw law_;
  double kl_weight_;
  int64_t rows_;
  RowGradients for_reward_, for_kl_;
  DueRows due_;
  Tensor reference_;             // parameters
  Tensor ones_, zeros_;          // [sequences] advantages
  Tensor loss_, kl_, clipped_;   // [rows]
  Tensor rated_, slope_;         // [rows, pitch]
  std::vector<int64_t> events_;  // [sequences]
  std::vector<std::vector<float>> nll_;
  double kl_sum_ = 0;
  int64_t kl_rows_ = 0;
};

ForesightReinforced::ForesightReinforced(const ForesightShape& shape) {
  auto scorer = std::make_unique<ForesightScorer>(shape, EvictionSampling::kTop2d);
  scorer_ = scorer.get();
  scorer_->keep_features();
  drawing_ = policy_of("foresight-kv", std::move(scorer));
}

std::vector<LearnedMeasure> ForesightReinforced::measures() {
  return {{.name = "reward", .title = "Mean reward of the rollouts", .better = "higher"},
          {.name = "reward_spread", .title = "Deviation of the rewards within a text's rollouts"},
          {.name = "kl", .title = "KL of the draws to those of the weights that it began with"},
          {.name = "loss_increase",
           .title = "What the rollouts lose more than the full cache, nats a token",
           .better = "lower"}};
}

void ForesightReinforced::read(Params& params) {
  group_ = option_at_least(params, 2, "group", group_, "stage reinforced: rollouts of a text");
  together_ = option_at_least(params, 1, "together", together_, "stage reinforced: texts that are rolled out at once");
  reward_.kind = reward_kind(params);
  reward_.threshold =
      params.get("threshold", reward_.threshold, "stage reinforced: an increase of a loss above it is large, in nats");
  law_ = params.get("log_prob", "plackett-luce", {"plackett-luce", "code"},
                    "stage reinforced: how likely a draw was: as it is drawn, or each entry for itself among all, as "
                    "in the released code") == "code"
             ? DrawLaw::kMarginal
             : DrawLaw::kPlackettLuce;
  const double weight =
      params.get("kl", static_cast<double>(0.03), "stage reinforced: weight of the KL to where it began");
  if (!(weight >= 0)) params.fail("kl", "expected a number of at least 0");
  kl_weight_ = static_cast<float>(weight);
}

void ForesightReinforced::set_reference(std::span<const float> parameters) {
  reference_.assign(parameters.begin(), parameters.end());
}

std::vector<LearnedMean> ForesightReinforced::learn(const LearnBatch& batch, int budget, int interval,
                                                    std::span<const float> parameters, std::span<double> gradient) {
  scorer_->use(batch.source.info(), parameters);
  const auto texts = static_cast<int>(batch.sequences.size());
  const auto weight = static_cast<double>(texts);  // of means over the texts that are here
  const double rollouts = weight * group_, step_rollouts = static_cast<double>(batch.step_texts()) * group_;
  double reward = 0, spread = 0, kl_sum = 0, loss = 0;
  int64_t kl_rows = 0;
  for (int first = 0; first < texts; first += together_) {
    const int count = std::min(together_, texts - first);
    const auto read = batch.sequences.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const Baseline full = compute_baseline(batch.backend, batch.source, read, {});
    std::vector<std::span<const int32_t>> copies;
    std::vector<int32_t> lengths, numbers;
    for (int text = 0; text < count; ++text) {
      for (int copy = 0; copy < group_; ++copy) {
        copies.push_back(read[static_cast<size_t>(text)]);
        lengths.push_back(static_cast<int32_t>(copies.back().size()));
        const auto number = static_cast<int32_t>(batch.first_text()) + first + text;
        numbers.push_back(number * group_ + copy);  // a text that comes twice in a step draws anew
      }
    }
    Rollouts drawn(batch, *scorer_, reference_, law_, kl_weight_, std::ssize(copies), full.max_tokens);
    Observer* const observers[] = {&drawn};
    replay({.backend = batch.backend,
            .source = batch.source,
            .policy = drawing_,
            .sequences = copies,
            .schedule = decode_schedule(lengths, budget, interval, batch.prefill_chunk),
            .budget = budget,
            .interval = interval,
            .seed = seed_of_step(batch.seed, batch.step),
            .sample_numbers = numbers,
            .observers = observers});
    std::vector<double> advantages;
    for (int text = 0; text < count; ++text) {
      // Losses are those of the next token: of tokens behind the first eviction, the text's last one has none.
      const auto begin = static_cast<size_t>(budget + interval - 1);
      const auto tail = [&](std::span<const float> of_tokens) {
        return of_tokens.subspan(begin, read[static_cast<size_t>(text)].size() - 1 - begin);
      };
      const std::span<const float> plain = tail(full.nll[static_cast<size_t>(text)]);
      std::vector<double> rewards;
      for (int copy = 0; copy < group_; ++copy) {
        const std::span<const float> evicted = tail(drawn.nll(int64_t{text} * group_ + copy));
        rewards.push_back(eviction_reward(plain, evicted, tail(full.entropy[static_cast<size_t>(text)]), reward_));
        const double more =
            std::accumulate(evicted.begin(), evicted.end(), 0.0) - std::accumulate(plain.begin(), plain.end(), 0.0);
        loss += more / static_cast<double>(plain.size()) / rollouts;
      }
      const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / group_;
      double square = 0;
      for (const double one : rewards) square += (one - mean) * (one - mean);
      reward += mean / texts;
      spread += std::sqrt(square / group_) / texts;
      for (const double advantage : group_advantages(rewards)) advantages.push_back(advantage);
    }
    drawn.add_gradient(advantages, step_rollouts, gradient);
    kl_sum += drawn.kl_sum();
    kl_rows += drawn.kl_rows();
  }
  return {{.metric = "reward", .value = reward, .weight = weight},
          {.metric = "reward_spread", .value = spread, .weight = weight},
          {.metric = "kl",
           .value = kl_rows > 0 ? kl_sum / static_cast<double>(kl_rows) : 0,
           .weight = static_cast<double>(kl_rows)},
          {.metric = "loss_increase", .value = loss, .weight = weight}};
}

}  // namespace kv
