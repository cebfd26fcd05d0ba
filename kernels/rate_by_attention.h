#pragma once

#include "kernels/attention_columns.h"
#include "kernels/rate_entries.h"
#include "kernels/window_attention.h"

namespace kv {

// An event of ForesightKV (001): what attention the entries got, and what the network makes of it; in one op, so that
// keys are read no more often than they must, and features nobody asks for are written nowhere. The same as, one after
// the other,
//   window_attention(window), features = window.scores;  attention_columns_fold(fold);  rate_entries(rate),
// of which it takes the arguments. All three are of the same cache and rows, window.mode has planes, and features go to
// fold.features; where these are null, what the three hand on is nobody's business.
struct RateByAttentionArgs {
  WindowAttentionArgs window;  // scores: not read
  AttentionColumnsFoldArgs fold;
  RateEntriesArgs rate;  // network.features: not read
};

// The three are about the same.
inline void check_parts(const RateByAttentionArgs& args) {
  check_planes(args.window);
  KV_CHECK(args.window.window > 0 && args.window.planes == args.fold.planes);
  KV_CHECK(args.fold.planes == args.rate.network.feature_count);
  KV_CHECK(args.window.rows_due == args.fold.rows_due && args.fold.rows_due == args.rate.rows_due);
  KV_CHECK(args.window.cache.page_table == args.rate.cache.page_table);
  KV_CHECK(args.fold.cache.page_table == args.rate.cache.page_table);
  KV_CHECK(args.fold.cache.column_width >= columns_needed(args.fold));
}

namespace cpu {
void rate_by_attention(const RateByAttentionArgs& args);
}
namespace cuda {
void rate_by_attention(const RateByAttentionArgs& args);
}

}  // namespace kv
