#include "harness/metrics/top_attended.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/half.h"
#include "sim/cache/to_host.h"

namespace kv {
namespace {

std::vector<float> floats_to_host(Backend& backend, ConstRef from, int64_t count) {
  if (from.dtype == DType::kF32) return to_host(backend, from.as<float>(), count);
  KV_CHECK(from.dtype == DType::kBF16);
  std::vector<float> out;
  out.reserve(static_cast<size_t>(count));
  for (const uint16_t bits : to_host(backend, static_cast<const uint16_t*>(from.data), count))
    out.push_back(bf16_to_f32(bits));
  return out;
}

float dot(const float* a, const float* b, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

// The positions of the largest logits, ascending, to the front of `order`.
void put_largest_first(std::span<const float> logits, int top_k, std::vector<int32_t>& order) {
  order.resize(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::nth_element(order.begin(), order.begin() + top_k, order.end(), [&](int32_t a, int32_t b) {
    const float left = logits[static_cast<size_t>(a)], right = logits[static_cast<size_t>(b)];
    return left != right ? left > right : a > b;
  });
  std::sort(order.begin(), order.begin() + top_k);
}

}  // namespace

void TopAttended::begin(const CaseView& view) {
  KV_CHECK(view.baseline && view.baseline->has.projections);
  view_ = view;
  layers_.assign(view.baseline->layers.size(), {});
}

int64_t TopAttended::measured_before(int64_t length) const {
  return std::max<int64_t>(0, (length + stride_ - 1) / stride_ - first_measured());
}

std::span<const int32_t> TopAttended::at(int layer, int sequence, int q_head, int32_t position) {
  auto& sequences = layers_[static_cast<size_t>(layer)];
  if (sequences.empty()) {
    for (int s = 0; s < view_.baseline->sequences; ++s) sequences.push_back(make(layer, s));
  }
  const int64_t queries = measured_before(view_.baseline->lengths[static_cast<size_t>(sequence)]);
  const int64_t query = position / stride_ - first_measured();
  KV_CHECK(measures(position) && query < queries);
  const Positions& positions = sequences[static_cast<size_t>(sequence)];
  return std::span(positions).subspan(static_cast<size_t>((q_head * queries + query) * top_k_),
                                      static_cast<size_t>(top_k_));
}

TopAttended::Positions TopAttended::make(int layer, int sequence) const {
  const SourceInfo& source = *view_.batch.source;
  const Baseline& baseline = *view_.baseline;
  const BaselineLayer& full = baseline.layers[static_cast<size_t>(layer)];
  const int64_t length = baseline.lengths[static_cast<size_t>(sequence)];
  const int dim = source.head_dim;
  const int64_t query_width = int64_t{source.q_heads} * dim, key_width = int64_t{source.kv_heads} * dim;
  const int64_t first_token = sequence * baseline.max_tokens;
  Backend& backend = *view_.batch.backend;
  const auto queries = floats_to_host(backend, full.queries.at(first_token * query_width), length * query_width);
  const auto keys = floats_to_host(backend, full.keys.at(first_token * key_width), length * key_width);
  Positions positions;
  std::vector<float> logits;
  std::vector<int32_t> order;
  for (int head = 0; head < source.q_heads; ++head) {
    const float* head_keys = keys.data() + int64_t{head / source.group()} * dim;
    for (int64_t t = first_measured() * stride_; t < length; t += stride_) {
      const float* query = queries.data() + t * query_width + int64_t{head} * dim;
      logits.resize(static_cast<size_t>(t) + 1);
      for (int64_t j = 0; j <= t; ++j) logits[static_cast<size_t>(j)] = dot(query, head_keys + j * key_width, dim);
      put_largest_first(logits, top_k_, order);
      positions.insert(positions.end(), order.begin(), order.begin() + top_k_);
    }
  }
  return positions;
}

}  // namespace kv
