#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace kv {

// Bytes that a model or a run will take beyond what is allocated already, from shapes alone.
struct Footprint {
  size_t weights = 0;      // of the model, or of what a policy learned beside it
  size_t cache = 0;        // K, V, positions and entry columns at the peak
  size_t activations = 0;  // of the largest block, with its scores and logits

  size_t total() const { return weights + cache + activations; }
};

// Asked before anything is allocated. Throws MemoryError with the bytes needed and free when it does not fit.
void require_memory(const Backend& backend, const Footprint& footprint, std::string_view owner);

// "1.23 GB", "640 bytes": decimal units.
std::string bytes_text(size_t bytes);

}  // namespace kv
