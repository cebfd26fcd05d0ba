#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "kernels/tensor.h"

// Operands of benchmarks, filled on the device: real shapes hold gigabytes.

namespace kv::bench {

// About normal, mean 0, variance 1 (a sum of four uniforms): products of zeros would draw less power and run faster.
// One block of about 2^20 values is repeated.
Tensor random_activations(Backend& backend, int64_t count, uint32_t seed);
Tensor random_floats(Backend& backend, int64_t count, uint32_t seed);  // f32 whatever the activation type

template <class T>
Tensor upload(Backend& backend, const std::vector<T>& values) {
  Tensor tensor(backend, DTypeOf<T>::value, static_cast<int64_t>(values.size()));
  tensor.upload(values.data(), values.size() * sizeof(T));
  return tensor;
}

// start, start + 1, …
Tensor counting(Backend& backend, int64_t count, int32_t start = 0);

// Segments in backend memory.
Tensor upload_segments(Backend& backend, const std::vector<Segment>& segments);
const Segment* segments_of(const Tensor& tensor);

// In what order a row's pages lie in the pool. `prefilled`: in runs, as sim/cache/cache.cpp hands them out while a
// prompt comes in chunks. `shuffled`: in random order, the worst that many evictions can lead to.
enum class PageOrder { kPrefilled, kShuffled };

// One layer of the cache; position = slot.
struct CacheShape {
  std::vector<int32_t> lengths;  // of rows
  PageOrder pages = PageOrder::kShuffled;
  int kv_heads = 8;
  int head_dim = 128;
  int column_width = 0;
  // Keys of one direction with noise: nearly all pairs are more similar than 0.5, as real keys are.
  bool similar_keys = false;
  // Without keys and values, for ops that read only positions and scores.
  bool positions_only = false;
};

class CacheLayer {
 public:
  CacheLayer(Backend& backend, const CacheShape& shape);

  PagedView view() const { return view_; }
  Ref pool_keys() { return keys_.ref(); }
  Ref pool_values() { return values_.ref(); }
  int32_t* pool_positions() { return positions_.ref().as<int32_t>(); }
  float* pool_columns() { return columns_ ? columns_.ref().as<float>() : nullptr; }
  double entries() const { return entries_; }  // of all rows
  // Bytes of the keys (or the values) of all entries.
  double half_bytes() const { return entries_ * view_.head_dim * static_cast<double>(bytes_of(view_.keys.dtype)); }

 private:
  Tensor keys_, values_, positions_, columns_, table_, lengths_;
  PagedView view_;
  double entries_ = 0;
};

// `rows` equal lengths; or ragged ones with the same sum, from 1/8 of the mean to about 3 times it.
std::vector<int32_t> equal_lengths(int64_t rows, int32_t length);
std::vector<int32_t> ragged_lengths(int64_t rows, int32_t mean, uint32_t seed);

}  // namespace kv::bench
