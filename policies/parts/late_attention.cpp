#include "policies/parts/late_attention.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/window_attention.h"

namespace kv {

namespace {

void upload(Backend& backend, Tensor& tensor, const std::vector<int32_t>& words) {
  tensor.reserve(backend, DType::kI32, std::ssize(words));
  tensor.upload(words.data(), words.size() * sizeof(int32_t));
}

}  // namespace

int32_t tokens_in(const Segment& segment, const Suffixes& suffixes, int k) {
  if (segment.count == 0 || segment.first_position < suffixes.first) return 0;
  return std::clamp(suffixes.come(k, segment.first_position + segment.count), 0, segment.count);
}

void LateAttention::lay_out(const LayerView& view, const Suffixes& suffixes) {
  laid_out_.assign(view.segments.begin(), view.segments.end());
  window_ = 0;
  for (const Segment& segment : laid_out_) {
    window_ = std::max(window_, tokens_in(segment, suffixes, suffixes.count - 1));
  }
  if (window_ == 0) return;
  const auto sequences = static_cast<size_t>(view.rows() / view.kv_heads), window = static_cast<size_t>(window_);
  std::vector<int32_t> rows(sequences * window, 0), newest(sequences, 0);
  std::vector<int32_t> counts(sequences * static_cast<size_t>(suffixes.count), 0);
  std::vector<uint8_t> due(static_cast<size_t>(view.rows()), 0);
  for (const Segment& segment : laid_out_) {
    const auto s = static_cast<size_t>(segment.sequence);
    if (tokens_in(segment, suffixes, suffixes.count - 1) == 0) continue;
    // Where the window is longer than the segment, its first token stands for those that no suffix has.
    for (int32_t i = 0; i < window_; ++i) {
      rows[s * window + static_cast<size_t>(i)] = segment.first_token + std::max(0, segment.count - window_ + i);
    }
    newest[s] = segment.first_position + segment.count - 1;
    for (int k = 0; k < suffixes.count; ++k) {
      counts[s * static_cast<size_t>(suffixes.count) + static_cast<size_t>(k)] = tokens_in(segment, suffixes, k);
    }
    std::fill_n(due.begin() + segment.sequence * view.kv_heads, view.kv_heads, uint8_t{1});
  }
  upload(view.backend, rows_, rows);
  upload(view.backend, newest_, newest);
  upload(view.backend, counts_, counts);
  due_.reserve(view.backend, DType::kU8, std::ssize(due));
  due_.upload(due.data(), due.size());
}

Slots<const float> LateAttention::sums(const LayerView& view, const Suffixes& suffixes) {
  if (!std::ranges::equal(laid_out_, view.segments)) lay_out(view, suffixes);
  if (window_ == 0) return {};
  Backend& backend = view.backend;
  const int64_t planes = int64_t{suffixes.count} * view.group();
  const Slots<float> sums = sums_.reserve_slots<float>(backend, view.rows() * planes, view.pitch);
  backend.window_attention({.mode = WindowAttentionArgs::Mode::kSuffixSums,
                            .queries = view.projections.queries,
                            .query_rows = rows_.ref().as<int32_t>(),
                            .cache = view.cache,
                            .log_sums = view.log_sums,
                            .window = window_,
                            .q_heads = view.q_heads,
                            .scale = view.scale,
                            .suffix_count = suffixes.count,
                            .suffixes = counts_.ref().as<int32_t>(),
                            .newest_positions = view.cache.expires ? newest_.ref().as<int32_t>() : nullptr,
                            .planes = static_cast<int>(planes),
                            .rows_due = due_.ref().as<uint8_t>(),
                            .scores = sums});
  return sums;
}

}  // namespace kv
