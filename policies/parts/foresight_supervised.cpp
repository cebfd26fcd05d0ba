#include "policies/parts/foresight_supervised.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "kernels/error.h"
#include "kernels/pairwise_hinge.h"
#include "policies/parts/row_gradients.h"
#include "sim/replay/evicted_overlap.h"
#include "sim/source/source.h"

namespace kv {

// What every row of every event says of the onlooker's scores.
class ForesightSupervised::RowLosses final : public Observer {
 public:
  RowLosses(const LearnBatch& batch, const ForesightScorer& scorer, float margin)
      : batch_(batch),
        info_(batch.source.info()),
        margin_(margin),
        rows_(std::ssize(batch.sequences) * info_.kv_heads),
        gradients_(batch.backend, info_, scorer, std::ssize(batch.sequences)),
        due_(batch.backend, rows_, info_.kv_heads),
        loss_(batch.backend, DType::kF32, rows_),
        pairs_(batch.backend, DType::kI32, rows_),
        layers_(static_cast<size_t>(info_.layers)) {
    for (Layer& layer : layers_) {
      layer.with_pairs.assign(batch.sequences.size(), 0);
      layer.loss.assign(batch.sequences.size(), 0);
    }
  }

  void evicting(const EvictionView& view) override {
    due_.set(view.sequences_due);
    const Slots<float> slope = slope_.reserve_slots<float>(batch_.backend, rows_, view.layer.pitch);
    batch_.backend.pairwise_hinge({.targets = view.scores,
                                   .scores = view.onlookers.front().scores,
                                   .lengths = view.layer.cache.lengths,
                                   .rows_due = due_.on_device(),
                                   .rows = rows_,
                                   .drop_newest = view.protection.recent,
                                   .margin = margin_,
                                   .gradient = slope,
                                   .loss = loss_.ref().as<float>(),
                                   .pairs = pairs_.ref().as<int32_t>()});
    gradients_.add(view.layer, slope, due_.on_device(), view.protection.recent);
    note_losses(view.layer.layer);
    note_overlap(view);
  }

  void add_gradient(std::span<double> gradient) const {
    gradients_.add_to(gradient, [&](int layer, int64_t sequence) {
      const int64_t count = layers_[static_cast<size_t>(layer)].with_pairs[static_cast<size_t>(sequence)];
      return count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
    });
  }

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
    std::vector<int64_t> with_pairs;  // [sequences] rows that had pairs
    std::vector<double> loss;         // [sequences] their sum
  };

  void note_losses(int number) {
    Layer& layer = layers_[static_cast<size_t>(number)];
    std::vector<float> loss(static_cast<size_t>(rows_));
    std::vector<int32_t> pairs(static_cast<size_t>(rows_));
    loss_.download(loss.data(), loss.size() * sizeof(float));
    pairs_.download(pairs.data(), pairs.size() * sizeof(int32_t));
    for (int64_t row = 0; row < rows_; ++row) {
      if (!due_.is_due(row)) continue;
      const auto at = static_cast<size_t>(row), sequence = static_cast<size_t>(row / info_.kv_heads);
      if (!std::isfinite(loss[at])) {
        throw NotFiniteError(fmt::format("layer {}, KV head {}: the loss is {}",
                                         info_.layer_numbers[static_cast<size_t>(number)], row % info_.kv_heads,
                                         loss[at]));
      }
      layer.with_pairs[sequence] += pairs[at] > 0;
      layer.loss[sequence] += loss[at];
    }
  }

  void note_overlap(const EvictionView& view) {
    for (const std::optional<double>& share : agreement_.of(view, view.onlookers.front())) {
      if (!share) continue;
      ++rows_seen_;
      overlap_ += *share;
    }
  }

  const LearnBatch& batch_;
  const SourceInfo& info_;
  float margin_;
  int64_t rows_;
  RowGradients gradients_;
  DueRows due_;
  Tensor loss_, pairs_;  // [rows]
  Tensor slope_;         // [rows, pitch]
  EvictedOverlap agreement_;
  std::vector<Layer> layers_;
  double overlap_ = 0;
  int64_t rows_seen_ = 0;
};

namespace {

std::unique_ptr<ForesightScorer> onlooking_scorer(const ForesightShape& shape) {
  auto scorer = std::make_unique<ForesightScorer>(shape);
  scorer->keep_features();
  return scorer;
}

}  // namespace

ForesightSupervised::ForesightSupervised(const ForesightShape& shape) : ForesightSupervised(onlooking_scorer(shape)) {}

ForesightSupervised::ForesightSupervised(std::unique_ptr<ForesightScorer> onlooking)
    : looking_on_(onlooking.get()), lesson_(policy_of("foresight-kv", std::move(onlooking))) {}

std::vector<LearnedMeasure> ForesightSupervised::measures() {
  return {{.name = "hinge_loss", .title = "Pairwise hinge, summed over layers", .better = "lower"},
          {.name = "evicted_overlap",
           .title = "Of what Golden evicts, the share that the network would evict, too",
           .better = "higher"}};
}

void ForesightSupervised::read(Params& params) {
  const double margin = params.get("margin", 0.01, "by how much a score has to lie above that of what leaves first");
  if (!(margin >= 0)) params.fail("margin", "expected a number of at least 0");
  margin_ = static_cast<float>(margin);
}

std::vector<LearnedMean> ForesightSupervised::learn(const LearnBatch& batch, int budget, int interval,
                                                    std::span<const float> parameters, std::span<double> gradient) {
  looking_on_->use(batch.source.info(), parameters);
  RowLosses losses(batch, *looking_on_, margin_);
  lesson_.teach(batch, budget, interval, losses);
  losses.add_gradient(gradient);
  return {{.metric = "hinge_loss", .value = losses.loss(), .weight = static_cast<double>(batch.sequences.size())},
          {.metric = "evicted_overlap", .value = losses.overlap(), .weight = static_cast<double>(losses.rows_seen())}};
}

}  // namespace kv
