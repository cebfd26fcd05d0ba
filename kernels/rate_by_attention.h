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

namespace cpu {
void rate_by_attention(const RateByAttentionArgs& args);
}
namespace cuda {
void rate_by_attention(const RateByAttentionArgs& args);
}

}  // namespace kv
