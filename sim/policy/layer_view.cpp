#include "sim/policy/layer_view.h"

#include <utility>

namespace kv {

LayerView layer_view(Backend& backend, const SourceInfo& info, Cache& cache, int layer) {
  LayerView view = layer_view(backend, info, std::as_const(cache), layer);
  view.columns = cache.columns();
  return view;
}

LayerView layer_view(Backend& backend, const SourceInfo& info, const Cache& cache, int layer) {
  LayerView view{.backend = backend,
                 .layer = layer,
                 .sequences = cache.shape().sequences,
                 .q_heads = info.q_heads,
                 .kv_heads = info.kv_heads,
                 .head_dim = info.head_dim,
                 .scale = info.scale(),
                 .cache = cache.view(layer),
                 .lengths = cache.lengths(layer)};
  view.pitch = (view.cache.max_length + kPageTokens - 1) / kPageTokens * kPageTokens;
  return view;
}

}  // namespace kv
