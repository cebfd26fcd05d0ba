#include "policies/parts/foresight_training.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "kernels/error.h"
#include "kernels/pairwise_hinge.h"
#include "kernels/random_normal.h"
#include "kernels/select_top.h"
#include "policies/parts/options.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

constexpr float kDeviation = 0.02F;  // of initial parameters: the authors' initializer_range

}  // namespace

// What every row of every event says of the onlooker's scores, and the gradient of it. Row = sequence · kv_heads +
// head.
class ForesightTraining::RowLosses final : public Observer {
 public:
  RowLosses(const LearnBatch& batch, const ForesightScorer& scorer, float margin)
      : batch_(batch),
        info_(batch.source.info()),
        scorer_(scorer),
        margin_(margin),
        rows_(std::ssize(batch.sequences) * info_.kv_heads),
        elements_(elements_of(scorer.shape().parts(info_))),
        layers_(static_cast<size_t>(info_.layers)) {
    for (Layer& layer : layers_) {
      layer.gradient = Tensor(batch.backend, DType::kF32, rows_ * elements_);
      layer.gradient.fill_zero();
      layer.with_pairs.assign(batch.sequences.size(), 0);
      layer.loss.assign(batch.sequences.size(), 0);
    }
    loss_ = Tensor(batch.backend, DType::kF32, rows_);
    pairs_ = Tensor(batch.backend, DType::kI32, rows_);
    due_ = Tensor(batch.backend, DType::kU8, rows_);
    counts_ = Tensor(batch.backend, DType::kI32, rows_);
  }

  void evicting(const EvictionView& view) override {
    if (view.layer.layer == 0) note_due(view);
    const Slots<float> slope = slope_.reserve_slots<float>(batch_.backend, rows_, view.layer.pitch);
    Layer& layer = layers_[static_cast<size_t>(view.layer.layer)];
    const ScoredLayer& seen = view.onlookers.front();
    batch_.backend.pairwise_hinge({.targets = view.scores,
                                   .scores = seen.scores,
                                   .lengths = seen.cache.lengths,
                                   .rows_due = due_.ref().as<uint8_t>(),
                                   .rows = rows_,
                                   .drop_newest = view.protection.recent,
                                   .margin = margin_,
                                   .gradient = slope,
                                   .loss = loss_.ref().as<float>(),
                                   .pairs = pairs_.ref().as<int32_t>()});
    batch_.backend.rate_entries_backward({.cache = seen.cache,
                                          .network = scorer_.network(view.layer.layer),
                                          .rows_due = due_.ref().as<uint8_t>(),
                                          .drop_newest = view.protection.recent,
                                          .output_gradient = slope,
                                          .gradients = layer.gradient.ref().as<float>()});
    note_losses(view, layer);
    note_overlap(view, seen);
  }

  // Adds ∂loss/∂parameters, [layers, kv_heads, elements].
  void add_gradient(std::span<double> gradient) const {
    std::vector<float> of_rows(static_cast<size_t>(rows_ * elements_));
    for (size_t l = 0; l < layers_.size(); ++l) {
      layers_[l].gradient.download(of_rows.data(), of_rows.size() * sizeof(float));
      for (int64_t row = 0; row < rows_; ++row) {
        const int64_t count = layers_[l].with_pairs[static_cast<size_t>(row / info_.kv_heads)];
        if (count == 0) continue;
        const int64_t head = static_cast<int64_t>(l) * info_.kv_heads + row % info_.kv_heads;
        // All but the output's bias.
        for (int64_t i = 0; i + 1 < elements_; ++i) {
          gradient[static_cast<size_t>(head * elements_ + i)] +=
              of_rows[static_cast<size_t>(row * elements_ + i)] / static_cast<double>(count);
        }
      }
    }
  }

  // Mean over texts of the sum over layers, which is what is learned; mean over rows.
  double loss() const {
    double sum = 0;
    for (const Layer& layer : layers_) {
      for (size_t s = 0; s < layer.loss.size(); ++s) {
        if (layer.with_pairs[s] > 0) sum += layer.loss[s] / static_cast<double>(layer.with_pairs[s]);
      }
    }
    return sum / static_cast<double>(batch_.sequences.size());
  }
  double overlap() const { return rows_seen_ > 0 ? overlap_ / static_cast<double>(rows_seen_) : 0; }
  int64_t rows_seen() const { return rows_seen_; }

 private:
  struct Layer {
    Tensor gradient;                  // [rows, elements]
    std::vector<int64_t> with_pairs;  // [sequences] rows that had pairs
    std::vector<double> loss;         // [sequences] their sum
  };

  void note_due(const EvictionView& view) {
    is_due_.clear();
    for (int64_t row = 0; row < rows_; ++row) {
      is_due_.push_back(view.sequences_due[static_cast<size_t>(row / info_.kv_heads)]);
    }
    due_.upload(is_due_.data(), is_due_.size());
    counts_.upload(view.kept.data(), view.kept.size_bytes());
  }

  void note_losses(const EvictionView& view, Layer& layer) {
    std::vector<float> loss(static_cast<size_t>(rows_));
    std::vector<int32_t> pairs(static_cast<size_t>(rows_));
    loss_.download(loss.data(), loss.size() * sizeof(float));
    pairs_.download(pairs.data(), pairs.size() * sizeof(int32_t));
    for (size_t row = 0; row < loss.size(); ++row) {
      if (!is_due_[row]) continue;
      if (!std::isfinite(loss[row])) {
        throw UserError(fmt::format("step {}: layer {}, KV head {}: the loss is {}", batch_.step,
                                    info_.layer_numbers[static_cast<size_t>(view.layer.layer)],
                                    static_cast<int>(row) % info_.kv_heads, loss[row]));
      }
      const size_t sequence = row / static_cast<size_t>(info_.kv_heads);
      layer.with_pairs[sequence] += pairs[row] > 0;
      layer.loss[sequence] += loss[row];
    }
  }

  // Of what Golden evicts, the share that the onlooker would have, too.
  void note_overlap(const EvictionView& view, const ScoredLayer& seen) {
    const int64_t pitch = view.layer.pitch;
    const Slots<uint8_t> its = its_keep_.reserve_slots<uint8_t>(batch_.backend, rows_, pitch);
    batch_.backend.select_top({.cache = seen.cache,
                               .scores = seen.scores,
                               .counts = counts_.ref().as<int32_t>(),
                               .sinks = view.protection.sinks,
                               .recent = view.protection.recent,
                               .rows_due = due_.ref().as<uint8_t>(),
                               .keep = its});
    std::vector<uint8_t> ours(its.bytes()), golden(its.bytes());
    batch_.backend.download(ours.data(), its.data, ours.size());
    batch_.backend.download(golden.data(), view.keep.data, golden.size());
    for (size_t row = 0; row < is_due_.size(); ++row) {
      if (!is_due_[row]) continue;
      int64_t both = 0, evicted = 0;
      for (int64_t slot = 0; slot < view.layer.lengths[row]; ++slot) {
        const size_t at = row * static_cast<size_t>(pitch) + static_cast<size_t>(slot);
        evicted += golden[at] == 0;
        both += golden[at] == 0 && ours[at] == 0;
      }
      ++rows_seen_;
      overlap_ += static_cast<double>(both) / static_cast<double>(evicted);
    }
  }

  const LearnBatch& batch_;
  const SourceInfo& info_;
  const ForesightScorer& scorer_;
  float margin_;
  int64_t rows_, elements_;
  std::vector<Layer> layers_;
  std::vector<uint8_t> is_due_;  // [rows], of the event that is looked at
  Tensor loss_, pairs_, due_, counts_;
  Tensor slope_, its_keep_;  // [rows, pitch]
  double overlap_ = 0;
  int64_t rows_seen_ = 0;
};

ForesightTraining::ForesightTraining(ForesightScorer& scorer, std::string file_name)
    : scorer_(scorer), file_name_(std::move(file_name)) {}

void ForesightTraining::read(Params& params) {
  budget_ = option_at_least(params, 1, "budget", 1024, "entries that a head keeps at an event, a multiple of interval");
  interval_ = option_at_least(params, 1, "interval", 256, "tokens from one event to the next");
  const double margin = params.get("margin", 0.01, "by how much a score has to lie above that of what leaves first");
  if (!(margin >= 0) || !std::isfinite(margin)) params.fail("margin", "expected a number of at least 0");
  margin_ = static_cast<float>(margin);
  if (budget_ % interval_ != 0 || budget_ <= interval_) {
    params.fail("budget", fmt::format("expected a multiple of the interval {} that is above it", interval_));
  }
}

std::vector<LearnedPart> ForesightTraining::parts(const SourceInfo& info) const { return scorer_.shape().parts(info); }

std::map<std::string, std::string> ForesightTraining::settings() const { return scorer_.shape().settings(); }

std::vector<float> ForesightTraining::initial(const SourceInfo& info, uint64_t seed) const {
  const auto count = static_cast<size_t>(int64_t{info.layers} * info.kv_heads * elements_of(parts(info)));
  std::vector<float> parameters(count);
  cpu::random_normal(
      {.output = {parameters.data(), DType::kF32}, .count = std::ssize(parameters), .seed = seed, .sigma = kDeviation});
  return parameters;
}

std::vector<Measured> ForesightTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                               std::span<double> gradient) {
  if (!looking_on_) {
    golden_ = make_policy("golden", {});
    auto scorer = std::make_unique<ForesightScorer>(scorer_.shape());
    looking_on_ = scorer.get();
    looking_on_->keep_features();
    onlooker_ = policy_of("foresight-kv", std::move(scorer));
  }
  looking_on_->use(batch.source.info(), parameters);
  BaselineNeeds needs = golden_.future_needs();
  needs.merge({.statistics_block = interval_});
  const Baseline baseline = compute_baseline(batch.backend, batch.source, batch.sequences, needs);
  std::vector<int32_t> lengths;
  for (const auto& ids : batch.sequences) lengths.push_back(static_cast<int32_t>(ids.size()));
  const Schedule schedule = decode_schedule(lengths, budget_, interval_, batch.prefill_chunk);
  RowLosses losses(batch, *looking_on_, margin_);
  Observer* const observers[] = {&losses};
  Policy* const onlookers[] = {&onlooker_};
  replay({.backend = batch.backend,
          .source = batch.source,
          .policy = golden_,
          .sequences = batch.sequences,
          .schedule = schedule,
          .budget = budget_,
          .interval = interval_,
          .seed = batch.seed,
          .sample_numbers = batch.sample_numbers,
          .baseline = &baseline,
          .observers = observers,
          .onlookers = onlookers});
  losses.add_gradient(gradient);
  return {{.metric = "hinge_loss", .value = losses.loss()}, {.metric = "evicted_overlap", .value = losses.overlap()}};
}

}  // namespace kv
