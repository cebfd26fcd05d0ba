#include "policies/parts/late_attention.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/attend.h"
#include "kernels/embed.h"

namespace kv {

namespace {

using Words = std::array<int32_t, sizeof(Segment) / sizeof(int32_t)>;

int32_t end_of(const Segment& segment) { return segment.first_position + segment.count; }

}  // namespace

Segment part_of(const Segment& segment, const Suffixes& suffixes, int k) {
  Segment part{.sequence = segment.sequence};
  const int32_t end = end_of(segment);
  if (segment.count == 0 || end <= suffixes.first) return part;
  const int32_t interval_end = end - 1 + suffixes.left(end - 1);
  const int32_t first = std::max(segment.first_position, interval_end - suffixes.of[k]);
  const int32_t last = std::min(end, k == 0 ? interval_end : interval_end - suffixes.of[k - 1]);
  if (first >= last) return part;
  part.first_token = segment.first_token + first - segment.first_position;
  part.count = last - first;
  part.first_position = first;
  return part;
}

std::vector<LateAttention::Part> LateAttention::lay_out(const LayerView& view, const Suffixes& suffixes) {
  std::vector<Part> parts;
  rows_.clear();
  words_.clear();
  // The longest suffix first: what is added later has come later.
  for (int k = suffixes.count - 1; k >= 0; --k) {
    Part made{.first_word = std::ssize(words_)};
    std::vector<int32_t> lengths(view.lengths.begin(), view.lengths.end());
    for (const Segment& segment : view.segments) {
      Segment part = part_of(segment, suffixes, k);
      for (int head = 0; head < view.kv_heads && part.count > 0; ++head) {
        lengths[static_cast<size_t>(segment.sequence * view.kv_heads + head)] -= end_of(segment) - end_of(part);
      }
      for (int32_t i = 0; i < part.count; ++i) rows_.push_back(part.first_token + i);
      part.first_token = static_cast<int32_t>(std::ssize(rows_)) - part.count;
      made.max_count = std::max(made.max_count, part.count);
      const auto words = std::bit_cast<Words>(part);
      words_.insert(words_.end(), words.begin(), words.end());
    }
    words_.insert(words_.end(), lengths.begin(), lengths.end());
    if (made.max_count > 0) parts.push_back(made);
  }
  words_.insert(words_.end(), rows_.begin(), rows_.end());
  return parts;
}

void LateAttention::add(const LayerView& view, AttentionColumnsAddArgs columns) {
  const std::vector<Part> parts = lay_out(view, columns.suffixes);
  if (parts.empty()) return;
  Backend& backend = view.backend;
  on_device_.reserve(backend, DType::kI32, std::ssize(words_));
  on_device_.upload(words_.data(), words_.size() * sizeof(int32_t));
  const int64_t width = int64_t{view.q_heads} * view.head_dim, late = std::ssize(rows_);
  for (Tensor* tensor : {&queries_, &outputs_}) tensor->reserve(backend, backend.activation_type(), late * width);
  backend.embed({.table = view.projections.queries,
                 .ids = on_device_.at(std::ssize(words_) - late).as<int32_t>(),
                 .output = queries_.ref(),
                 .rows = late,
                 .width = width});
  const Slots<float> sums = sums_.reserve_slots<float>(backend, view.rows() * view.group(), view.pitch);
  for (const Part& part : parts) {
    const Segment* segments = static_cast<const Segment*>(on_device_.at(part.first_word).data);
    columns.cache.lengths = reinterpret_cast<const int32_t*>(segments + view.segments.size());
    columns.segments = segments;
    columns.sums = sums;
    columns.suffixes_only = true;
    backend.attend({.queries = queries_.ref(),
                    .cache = columns.cache,
                    .segments = segments,
                    .segment_count = columns.segment_count,
                    .max_count = part.max_count,
                    .output = outputs_.ref(),
                    .column_sums = sums,
                    .q_heads = view.q_heads,
                    .scale = view.scale});
    backend.attention_columns_add(columns);
  }
}

}  // namespace kv
