#include "harness/cli/kept_positions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kv {

void KeptPositions::begin(const BatchShape& shape) {
  residents_.begin(shape);
  layer_numbers_ = shape.source->layer_numbers;
  events_.assign(layer_numbers_.size(), 0);
}

void KeptPositions::evicting(const EvictionView& view) {
  residents_.cut(view, to_host(view.layer.backend, view.keep.data, view.keep.elements()));
  if (!view.sequences_due[0]) return;
  const auto layer = static_cast<size_t>(view.layer.layer);
  for (int head = 0; head < view.layer.kv_heads; ++head) {
    lines_ += fmt::format(R"({{"event": {}, "tokens": {}, "layer": {}, "head": {}, "positions": [{}]}})"
                          "\n",
                          events_[layer], view.tokens_seen[0], layer_numbers_[layer], head,
                          fmt::join(residents_.row(view.layer.layer, head), ", "));
  }
  ++events_[layer];
}

}  // namespace kv
