#pragma once

#include "kernels/pool.h"
#include "kernels/window_attention.h"
#include "sim/policy/policy.h"

namespace kv {

// Attention of the newest view.window queries, raw (kernels/window_attention.h), to `scores`: a vector a query head or
// a row, as the mode has it.
void window_score(const LayerView& view, const ScoreOutput& out, WindowAttentionArgs::Mode mode, Slots<float> scores);

// SnapKV's decode-time importance, which R-KV shares: the window's attention to the entries older than it, logits or
// probabilities maximised over the group as the mode has it, into `raw`, pooled over neighbouring entries into
// `pooled`. Both are written for slots older than the window.
struct PooledWindow {
  WindowAttentionArgs::Mode mode = WindowAttentionArgs::Mode::kGroupMaxOlder;  // of those with is_group_max()
  int kernel = 7;
  PoolArgs::Kind pool = PoolArgs::Kind::kMax;
};
void pooled_window_score(const LayerView& view, const ScoreOutput& out, const PooledWindow& options, Slots<float> raw,
                         Slots<float> pooled);

}  // namespace kv
