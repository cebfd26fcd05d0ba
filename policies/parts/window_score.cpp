#include "policies/parts/window_score.h"

namespace kv {

void window_score(const LayerView& view, const ScoreOutput& out, WindowAttentionArgs::Mode mode, Slots<float> scores) {
  view.backend.window_attention({.mode = mode,
                                 .queries = view.window_queries,
                                 .query_rows = view.window_rows,
                                 .cache = view.cache,
                                 .window = view.window,
                                 .q_heads = view.q_heads,
                                 .scale = view.scale,
                                 .rows_due = out.rows_due,
                                 .scores = scores});
}

void pooled_window_score(const LayerView& view, const ScoreOutput& out, const PooledWindow& options, Slots<float> raw,
                         Slots<float> pooled) {
  window_score(view, out, options.mode, raw);
  view.backend.pool({.kind = options.pool,
                     .kernel = options.kernel,
                     .input = raw,
                     .output = pooled,
                     .lengths = view.cache.lengths,
                     .rows = view.rows(),
                     .drop_newest = view.window});
}

}  // namespace kv
