#include "sim/model/activations.h"

#include <algorithm>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/half.h"

namespace kv {

namespace {

constexpr int64_t kBlock = 1 << 16;  // numbers of a task

}  // namespace

void upload_activations(Backend& backend, Tensor& tensor, std::span<const float> values) {
  if (values.empty()) return;
  tensor.reserve(backend, backend.activation_type(), std::ssize(values));
  upload_activations(backend, tensor.ref(), values);
}

void upload_activations(Backend& backend, Ref to, std::span<const float> values) {
  if (to.dtype == DType::kF32) {
    backend.upload(to.data, values.data(), values.size_bytes());
    return;
  }
  KV_CHECK(to.dtype == DType::kBF16);
  const auto narrow = std::make_unique_for_overwrite<uint16_t[]>(values.size());
  cpu::parallel_blocks(std::ssize(values), kBlock, [&](int64_t first, int64_t end) {
    std::transform(values.begin() + first, values.begin() + end, narrow.get() + first, f32_to_bf16);
  });
  backend.upload(to.data, narrow.get(), values.size() * sizeof(uint16_t));
}

std::vector<float> download_activations(Backend& backend, ConstRef from, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (from.dtype == DType::kF32) {
    backend.download(values.data(), from.data, values.size() * sizeof(float));
    return values;
  }
  KV_CHECK(from.dtype == DType::kBF16);
  std::vector<uint16_t> narrow(values.size());
  backend.download(narrow.data(), from.data, narrow.size() * sizeof(uint16_t));
  std::transform(narrow.begin(), narrow.end(), values.begin(), bf16_to_f32);
  return values;
}

}  // namespace kv
