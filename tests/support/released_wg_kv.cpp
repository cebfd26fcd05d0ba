#include "tests/support/released_wg_kv.h"

#include "kernels/check.h"
#include "kernels/expiry.h"
#include "tests/support/packed_tensors.h"

namespace kv::ref {

ReleasedWgKv::ReleasedWgKv() : file_(open_packed("tests/data/wg_kv/expected.safetensors")) {}

SourceInfo ReleasedWgKv::info(int layers) { return tiny_info(layers, kQHeads, kHeads, kDim); }

TinySample ReleasedWgKv::sample(int layers) const {
  const std::vector<float> keys = floats("keys"), queries = floats("queries");
  const auto of_layer = [](const std::vector<float>& all, int layer) {
    const auto count = std::ssize(all) / kLayers;
    const auto first = all.begin() + layer % kLayers * count;
    return std::vector<float>(first, first + count);
  };
  TinySample sample;
  for (int layer = 0; layer < layers; ++layer) {
    sample.queries.push_back(of_layer(queries, layer));
    sample.keys.push_back(of_layer(keys, layer));
    sample.values.push_back(of_layer(keys, layer));
  }
  return sample;
}

std::vector<int32_t> ReleasedWgKv::positions(const std::string& name, int64_t row) const {
  constexpr int kBytes = kTokens / 8;
  const auto bits = file_.bytes(file_.require(name)).subspan(static_cast<size_t>(row * kBytes), kBytes);
  std::vector<int32_t> positions;
  for (int32_t position = 0; position < kTokens; ++position) {
    if (std::to_integer<int>(bits[static_cast<size_t>(position / 8)]) >> position % 8 & 1)
      positions.push_back(position);
  }
  return positions;
}

void GivenGates::admit(const LayerView& view, int32_t* expires) {
  KV_CHECK(view.segments.size() == 1);
  const Segment& segment = view.segments.front();
  const int64_t first = int64_t{view.layer} * ReleasedWgKv::kTokens + segment.first_position;
  view.backend.expiry({.segments = view.device_segments,
                       .segment_count = 1,
                       .max_count = segment.count,
                       .kv_heads = view.kv_heads,
                       .window = window(),
                       .gates = gates_.data() + first * view.kv_heads,
                       .threshold = ReleasedWgKv::kTau,
                       .expires = expires});
}

}  // namespace kv::ref
