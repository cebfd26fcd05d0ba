#include "tests/support/backends.h"

#include <cstdlib>
#include <limits>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/half.h"

namespace kv::ref {

std::vector<std::string> backend_names() { return {"cpu", "cuda"}; }

std::unique_ptr<Backend> try_backend(const std::string& name) {
  try {
    return make_backend(name);
  } catch (const UserError&) {
    if (name == "cuda" && std::getenv("KV_REQUIRE_CUDA")) throw;
    return nullptr;
  }
}

std::vector<float> rounded(const Backend& backend, std::vector<float> values) {
  if (backend.activation_type() == DType::kBF16) {
    for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  }
  return values;
}

Tensor upload_activations(Backend& backend, const std::vector<float>& values) {
  if (backend.activation_type() == DType::kF32) return upload_array(backend, values);
  KV_CHECK(backend.activation_type() == DType::kBF16);
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = f32_to_bf16(values[i]);
  Tensor tensor(backend, DType::kBF16, static_cast<int64_t>(values.size()));
  tensor.upload(bits.data(), bits.size() * sizeof(uint16_t));
  return tensor;
}

namespace {

// download(to, bytes) fetches them.
template <class Download>
std::vector<float> fetch_activations(DType dtype, int64_t count, const Download& download) {
  std::vector<float> values(static_cast<size_t>(count));
  if (dtype == DType::kF32) {
    download(values.data(), values.size() * sizeof(float));
    return values;
  }
  KV_CHECK(dtype == DType::kBF16);
  std::vector<uint16_t> bits(values.size());
  download(bits.data(), bits.size() * sizeof(uint16_t));
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_f32(bits[i]);
  return values;
}

}  // namespace

std::vector<float> download_activations(const Tensor& tensor) {
  return fetch_activations(tensor.dtype(), tensor.elements(),
                           [&](void* to, size_t bytes) { tensor.download(to, bytes); });
}

std::vector<float> download_activations(Backend& backend, ConstRef from, int64_t count) {
  return fetch_activations(from.dtype, count, [&](void* to, size_t bytes) { backend.download(to, from.data, bytes); });
}

double activation_epsilon(const Backend& backend) {
  return backend.activation_type() == DType::kBF16 ? 0x1p-8 : std::numeric_limits<float>::epsilon();
}

double storage_roundings(const Backend& backend) {
  if (backend.activation_type() == DType::kF32) return 0;
  return 2 * activation_epsilon(backend) / static_cast<double>(std::numeric_limits<float>::epsilon());
}

std::vector<float> random_values(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (float& value : values) {
    // Knuth's 64-bit linear congruential generator; the high bits are the good ones.
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<float>(static_cast<double>(state >> 40) * 0x1p-23 - 1.0);
  }
  return values;
}

}  // namespace kv::ref
