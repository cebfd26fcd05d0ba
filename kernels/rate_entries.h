#pragma once

#include <cstdint>

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// A small network a KV head that rates each entry of a cache by itself (ForesightKV's scorer, 001):
//   y = w2 · GELU(W1 x + b1) + b2,  x = [key, value, features] or the features alone,  GELU(a) = a · Φ(a), by erf.
// Parameters of a head lie together, f32, parameter_count() of them: W1 [inputs, hidden], b1 [hidden], w2 [hidden], b2.
struct EntryNetwork {
  int entry_dim = 0;                  // x begins with key and value of this dimension, the cache's; 0: it does not
  int feature_count = 0;              // of x, behind them
  int hidden = 16;                    // 8, 16, 32 or 64
  Slots<const float> features{};      // row · feature_count + feature
  const float* parameters = nullptr;  // [kv_heads, parameter_count]

  constexpr int inputs() const { return 2 * entry_dim + feature_count; }
  constexpr int64_t parameter_count() const { return int64_t{inputs()} * hidden + 2 * hidden + 1; }
};

struct RateEntriesArgs {
  PagedView cache;
  EntryNetwork network;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  int drop_newest = 0;                // rated are slots [0, length − drop_newest)
  Slots<float> output;                // y; other slots and rows not due stay untouched
};

// gradients[row, p] += Σ_slot output_gradient[row, slot] · ∂y_slot/∂p. A vector of parameters a row, so that rows of
// one head can be weighed before they are added up, and none waits for another.
struct RateEntriesBackwardArgs {
  PagedView cache;
  EntryNetwork network;
  const uint8_t* rows_due = nullptr;
  int drop_newest = 0;
  Slots<const float> output_gradient;
  float* gradients = nullptr;  // [rows, parameter_count]
};

namespace cpu {
void rate_entries(const RateEntriesArgs& args);
void rate_entries_backward(const RateEntriesBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void rate_entries(const RateEntriesArgs& args);
void rate_entries_backward(const RateEntriesBackwardArgs& args);
}  // namespace cuda

}  // namespace kv
