#include "sim/layer_view.h"

namespace kv {

LayerView layer_view(Backend& backend, const SourceInfo& info, Cache& cache, int layer) {
  LayerView view{.backend = backend,
                 .layer = layer,
                 .sequences = cache.shape().sequences,
                 .q_heads = info.q_heads,
                 .kv_heads = info.kv_heads,
                 .head_dim = info.head_dim,
                 .scale = info.scale(),
                 .cache = cache.view(layer),
                 .lengths = cache.lengths(layer),
                 .columns = cache.columns()};
  view.pitch = (view.cache.max_length + kPageTokens - 1) / kPageTokens * kPageTokens;
  return view;
}

}  // namespace kv
