#pragma once

#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace kv {

class Backend;

// The element type of activations and weights is the backend's (kernels/backend.h); files and the host hold f32.
// Narrowing rounds to nearest, ties to even (kernels/half.h); f32 passes unchanged.

// Makes `tensor` hold at least the values, which come first. Empty values leave it as it is.
void upload_activations(Backend& backend, Tensor& tensor, std::span<const float> values);

// Writes the values at `to`, activations of the backend.
void upload_activations(Backend& backend, Ref to, std::span<const float> values);

std::vector<float> download_activations(Backend& backend, ConstRef from, int64_t count);

}  // namespace kv
