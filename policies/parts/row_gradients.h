#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "policies/parts/foresight_scorer.h"

namespace kv {

// Gradients of a batch by the network's parameters, added up over events but not over rows, so that what a row is worth
// may be known only at the end. Row = sequence · kv_heads + head.
class RowGradients {
 public:
  RowGradients(Backend& backend, const SourceInfo& info, const ForesightScorer& scorer, int64_t sequences);

  // An event of one layer: `slope` is ∂loss/∂y of slots [0, length − drop_newest).
  void add(const LayerView& view, Slots<const float> slope, const uint8_t* rows_due, int drop_newest);
  // gradient[layer, head, ·] += Σ over sequences of weight(layer, sequence) · the row's, but for the output's bias: it
  // moves all scores of a row alike, so its gradient is nothing but rounding, and it stays as it is.
  void add_to(std::span<double> gradient, const std::function<double(int layer, int64_t sequence)>& weight) const;

 private:
  const ForesightScorer& scorer_;
  int64_t kv_heads_, rows_, elements_;
  std::vector<Tensor> layers_;  // of [rows, elements]
};

// The rows of an event that are due, on host and backend.
class DueRows {
 public:
  DueRows(Backend& backend, int64_t rows, int kv_heads);

  void set(std::span<const uint8_t> sequences_due);
  bool is_due(int64_t row) const { return host_[static_cast<size_t>(row)] != 0; }
  const uint8_t* on_device() const { return device_.ref().as<uint8_t>(); }

 private:
  int kv_heads_;
  std::vector<uint8_t> host_;
  Tensor device_;
};

}  // namespace kv
