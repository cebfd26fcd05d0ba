#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/policy.h"
#include "sim/resident_bound.h"

namespace kv {

// Bytes that a model or a run will take beyond what is allocated already, from shapes alone.
struct Footprint {
  size_t weights = 0;
  size_t cache = 0;        // K, V, positions and entry columns at the peak
  size_t activations = 0;  // of the largest block, with its scores and logits

  size_t total() const { return weights + cache + activations; }
};

// What a run's memory depends on, beside its model and policy.
struct RunShape {
  int64_t sequences = 0;
  int64_t pages = 0;    // of all layers and KV heads, at the peak of every sequence
  int64_t longest = 0;  // entries of one head at most
  int64_t tokens = 0;   // of the largest block
  int64_t logits = 0;   // f32 values held
};

// resident [sequences]: of the whole run.
RunShape run_shape(std::span<const ResidentBound> resident, int64_t tokens);

// Without the momentary scratch of the ops. No less than what the run takes, and under the uniform allocation just that
// for the cache.
Footprint run_footprint(const Backend& backend, const Source& source, const Policy& policy, const RunShape& shape);

// Asked before anything is allocated. Throws MemoryError with the bytes needed and free when it does not fit.
void require_memory(const Backend& backend, const Footprint& footprint, std::string_view owner);

// "1.23 GB", "640 bytes": decimal units.
std::string bytes_text(size_t bytes);

}  // namespace kv
