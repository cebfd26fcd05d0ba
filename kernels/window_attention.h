#pragma once

#include "kernels/check.h"
#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Attention that each resident entry gets from the last `window` queries of its sequence: SnapKV's and R-KV's raw
// score, TOVA's with window = 1. The i-th of the window's queries sees slots [0, length − window + i].
struct WindowAttentionArgs {
  enum class Mode : uint8_t {
    // Per query head: softmax over all visible slots, mean over the window's queries.
    // scores[row, g, slot] for slots [0, length).                 (kvpress; the original sums instead: same order)
    kPerQueryHead,
    // Logits first maximised over the group's query heads, softmax over the slots older than the window only.
    // scores[row, 0, slot] for slots [0, length − window); the group dimension of the output is 1.   (001, R-KV code)
    kGroupMaxOlder,
    // Each query head's own softmax over the slots older than the window, maximised over the group's query heads, mean
    // over the window's queries.
    // scores[row, 0, slot] as above.                            (004, App. K; the paper sums instead: the same order)
    kGroupMaxProbabilityOlder,
    // Sums of each query head's probabilities over the newest suffixes[sequence, k] of the window's queries, k <
    // suffix_count; a probability is one among all that the query saw, whether it is here or not (log_sums).
    // scores[row · planes + k · group + g, slot].                                                    (001's features)
    kSuffixSums,
    // The largest, the smallest and the sum of such probabilities over the window's queries, in this order; a query
    // that does not see an entry gives it 0.
    // scores[row · planes + k · group + g, slot], k < 3.                            (features of 001's training code)
    kExtremes,
  };
  static constexpr int kMostSuffixes = 4;
  static constexpr int kExtremeCount = 3;
  Mode mode = Mode::kPerQueryHead;
  ConstRef queries;  // [sequences, window, q_heads, head_dim], post-RoPE, oldest first; or as query_rows says
  // [sequences, window]: at which rows of `queries` (and log_sums) the window's lie, oldest first; null: their order is
  // the window's.
  const int32_t* query_rows = nullptr;
  PagedView cache;
  // Of kSuffixSums and kExtremes, [as queries, q_heads]: what attend() says of the queries (AttendArgs::log_sums).
  // +infinity: it saw nothing, and gives nothing.
  const float* log_sums = nullptr;
  int window = 0;  // <= length of every due row; of kSuffixSums that holds for its suffixes, older queries are anything
  int q_heads = 0;
  float scale = 0;
  int suffix_count = 0;               // 3 or 4
  const int32_t* suffixes = nullptr;  // [sequences, suffix_count], each <= window; 0: of no query
  // Of kSuffixSums, where entries that have expired are still there (PagedView::expires): the position of every
  // sequence's newest query, [sequences]; a query sees none that had expired by its own. Null: all are seen.
  const int32_t* newest_positions = nullptr;
  int planes = 0;                     // of kSuffixSums and kExtremes: vectors that a row has in scores
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  Slots<float> scores;                // vectors a row: group, 1 or planes
};

// At which row of `queries` a query of the sequence's window is.
constexpr int64_t query_row(const WindowAttentionArgs& args, int64_t sequence, int64_t query) {
  const int64_t at = sequence * args.window + query;
  return args.query_rows ? args.query_rows[at] : at;
}

// Modes that leave one vector a row, over the slots older than the window.
inline bool is_group_max(WindowAttentionArgs::Mode mode) {
  return mode == WindowAttentionArgs::Mode::kGroupMaxOlder ||
         mode == WindowAttentionArgs::Mode::kGroupMaxProbabilityOlder;
}

// Statistics of each query head that a mode with planes writes; 0 for the others.
inline int statistics_of(const WindowAttentionArgs& args) {
  if (args.mode == WindowAttentionArgs::Mode::kSuffixSums) return args.suffix_count;
  return args.mode == WindowAttentionArgs::Mode::kExtremes ? WindowAttentionArgs::kExtremeCount : 0;
}

// They have their place.
inline void check_planes(const WindowAttentionArgs& args) {
  const bool sums_suffixes = args.mode == WindowAttentionArgs::Mode::kSuffixSums;
  KV_CHECK(!sums_suffixes || (args.suffixes && (args.suffix_count == 3 || args.suffix_count == 4)));
  KV_CHECK(!args.newest_positions || (sums_suffixes && args.cache.expires));
  const int statistics = statistics_of(args);
  KV_CHECK((statistics > 0) == (args.log_sums != nullptr));
  KV_CHECK(statistics == 0 || args.planes >= statistics * (args.q_heads / args.cache.kv_heads));
}

namespace cpu {
void window_attention(const WindowAttentionArgs& args);
}
namespace cuda {
void window_attention(const WindowAttentionArgs& args);
}

}  // namespace kv
