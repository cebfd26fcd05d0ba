#include "policies/parts/row_gradients.h"

#include "kernels/rate_entries.h"

namespace kv {

RowGradients::RowGradients(Backend& backend, const SourceInfo& info, const ForesightScorer& scorer, int64_t sequences)
    : scorer_(scorer),
      kv_heads_(info.kv_heads),
      rows_(sequences * info.kv_heads),
      elements_(elements_of(scorer.shape().parts(info))) {
  for (int layer = 0; layer < info.layers; ++layer) {
    layers_.emplace_back(backend, DType::kF32, rows_ * elements_);
    layers_.back().fill_zero();
  }
}

void RowGradients::add(const LayerView& view, Slots<const float> slope, const uint8_t* rows_due, int drop_newest) {
  view.backend.rate_entries_backward({.cache = view.cache,
                                      .network = scorer_.network(view.layer),
                                      .rows_due = rows_due,
                                      .drop_newest = drop_newest,
                                      .output_gradient = slope,
                                      .gradients = layers_[static_cast<size_t>(view.layer)].ref().as<float>()});
}

void RowGradients::add_to(std::span<double> gradient,
                          const std::function<double(int layer, int64_t sequence)>& weight) const {
  std::vector<float> of_rows(static_cast<size_t>(rows_ * elements_));
  for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) {
    layers_[static_cast<size_t>(layer)].download(of_rows.data(), of_rows.size() * sizeof(float));
    for (int64_t row = 0; row < rows_; ++row) {
      const double worth = weight(layer, row / kv_heads_);
      if (worth == 0) continue;
      const float* from = of_rows.data() + row * elements_;
      double* to = gradient.data() + (layer * kv_heads_ + row % kv_heads_) * elements_;
      for (int64_t i = 0; i + 1 < elements_; ++i) to[i] += worth * from[i];
    }
  }
}

DueRows::DueRows(Backend& backend, int64_t rows, int kv_heads)
    : kv_heads_(kv_heads), host_(static_cast<size_t>(rows)), device_(backend, DType::kU8, rows) {}

void DueRows::set(std::span<const uint8_t> sequences_due) {
  for (size_t row = 0; row < host_.size(); ++row) host_[row] = sequences_due[row / static_cast<size_t>(kv_heads_)];
  device_.upload(host_.data(), host_.size());
}

}  // namespace kv
