#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace kv::ref {

// Every backend the op tests run over; those this build or machine lacks are reported as skipped.
std::vector<std::string> backend_names();

// Null when the backend cannot run here. Where the environment has KV_REQUIRE_CUDA (a test run on a GPU machine), that
// of "cuda" is an error with the reason: a GPU's tests must not pass by being skipped.
std::unique_ptr<Backend> try_backend(const std::string& name);

// Values as the backend's activation type stores them (f32: unchanged), so that references start from equal inputs.
std::vector<float> rounded(const Backend& backend, std::vector<float> values);

// Floats as activations (converted to the backend's activation type).
Tensor upload_activations(Backend& backend, const std::vector<float>& values);
std::vector<float> download_activations(const Tensor& tensor);
std::vector<float> download_activations(Backend& backend, ConstRef from, int64_t count);

// Plain f32, i32 or u8 arrays, for statistics, indices and masks.
template <class T>
Tensor upload_array(Backend& backend, const std::vector<T>& values) {
  Tensor tensor(backend, DTypeOf<T>::value, static_cast<int64_t>(values.size()));
  tensor.upload(values.data(), values.size() * sizeof(T));
  return tensor;
}

template <class T>
std::vector<T> download_array(const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  tensor.download(values.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
T* data_of(Tensor& tensor) {
  return tensor.ref().as<T>();
}

// Unit roundoff of the backend's activation type.
double activation_epsilon(const Backend& backend);

// Storing an activation (and a probability on its way) in the backend's type, counted in roundings of f32: 0 where that
// type is f32.
double storage_roundings(const Backend& backend);

// Deterministic values in [-1, 1), roughly uniform.
std::vector<float> random_values(size_t count, uint32_t seed);

}  // namespace kv::ref

// Runs a TEST_P body with `backend` (std::unique_ptr<kv::Backend>) made from GetParam(), or skips.
// NOLINTBEGIN(bugprone-macro-parentheses): a declared variable cannot be parenthesised
#define KV_BACKEND_OR_SKIP(name)                        \
  const auto name = ::kv::ref::try_backend(GetParam()); \
  if (!name) GTEST_SKIP() << GetParam() << " is not here"
// NOLINTEND(bugprone-macro-parentheses)
