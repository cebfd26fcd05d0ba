#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace kv {

// What the full-cache pass must keep besides the losses.
struct BaselineNeeds {
  int statistics_block = 0;  // query block of the attention statistics in tokens; 0 = none
  bool block_sums = false;   // mean attention a block (Golden)
  bool block_max = false;    // largest attention a block (oracle importance)
  bool outputs = false;      // head outputs (end-to-end cosine)
  bool projections = false;  // queries, keys, values (local error, evicted mass)
  bool value_norms = false;  // ‖v W_O‖ (oracle importance)
  bool hidden = false;       // states after the last norm (hidden distance)

  void merge(const BaselineNeeds& other);  // the block becomes the greatest common divisor
};

// One layer of the full-cache pass of a batch; S sequences, T = longest, blocks = ceil(T / statistics_block).
struct BaselineLayer {
  Tensor block_sums;   // [S·kv_heads, blocks, T]: Σ over the block's queries, mean over the group, of A_ij
  Tensor block_max;    // [S·q_heads, blocks, T]: max over the block's queries of A_ij
  Tensor value_norms;  // [S, T, q_heads]: ‖v_j W_O^(h)‖₂
  Tensor outputs;      // [S, T, q_heads, head_dim]
  Tensor queries;      // [S, T, q_heads, head_dim], post-RoPE
  Tensor keys;         // [S, T, kv_heads, head_dim], post-RoPE
  Tensor values;       // [S, T, kv_heads, head_dim]
};

// The full-cache pass of one model and batch of samples: computed once, shared by every case, and the only source of
// knowledge about the future. Reaches only policies and metrics that ask for it; their rows are marked as oracle.
struct Baseline {
  int sequences = 0;
  int64_t max_tokens = 0;
  int64_t blocks = 0;
  BaselineNeeds has;
  std::vector<int32_t> lengths;              // [S]
  std::vector<std::vector<float>> nll;       // [S][T_s]: of the next token; empty without losses
  std::vector<std::vector<float>> entropy;   // [S][T_s]
  std::vector<std::vector<int32_t>> argmax;  // [S][T_s]
  std::vector<BaselineLayer> layers;
  Tensor hidden;            // [S, T, width]; null where the source has no losses
  double pass_seconds = 0;  // the full pass with its statistics
};

}  // namespace kv
