#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"

namespace kv {

struct SourceInfo {
  std::string name;
  std::filesystem::path folder{};  // of the model's files; empty for traces and random weights
  int layers = 0;                  // those replayed
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int width = 0;
  std::vector<int> layer_numbers;  // [layers], as the model counts them
  bool has_losses = false;         // a trace is not fed back: no loss under a policy
  bool has_pre_rope_queries = false;
  bool has_output_weight = false;
  std::vector<float> inv_freq;  // [head_dim / 2], empty where unknown
  float attention_factor = 1;

  int group() const { return q_heads / kv_heads; }
  float scale() const;  // 1 / sqrt(head_dim)
};

// A packed block: for every sequence of the batch the next run of its tokens (possibly empty).
struct Block {
  std::vector<Segment> segments;  // [sequences], host
  int64_t tokens = 0;
  int64_t max_count = 0;
  Tensor device_segments;   // the same, on the backend, as i32
  Tensor device_positions;  // [tokens] i32

  const Segment* on_device() const { return static_cast<const Segment*>(device_segments.ref().data); }
  Segment* on_device() { return static_cast<Segment*>(device_segments.ref().data); }
};

// counts[s] tokens of every sequence, from first_positions[s] on.
Block make_block(Backend& backend, std::span<const int32_t> first_positions, std::span<const int32_t> counts);

// One layer's projections of the block, [tokens, heads, head_dim]. Null where the source lacks them.
struct Projections {
  ConstRef queries;  // post-RoPE
  ConstRef keys;     // post-RoPE
  ConstRef values;
  ConstRef pre_rope_queries;  // after any q-norm
  ConstRef pre_rope_keys;     // after any k-norm
  ConstRef inputs;            // [tokens, width], the attention block's input (after the input norm)
};

// What the model says of each token of the block: of the *next* token, host memory, packed like the block.
struct TokenLosses {
  std::vector<float> nll;       // nats; 0 for a sequence's last token
  std::vector<float> entropy;   // nats
  std::vector<int32_t> argmax;  // most likely next token
};

// Where queries, keys and values come from. ModelSource continues the forward pass with the attention output it is
// given, so errors propagate; TraceSource replays recorded tensors and ignores it. Calls come in this order: begin,
// then for each block: start, for each layer (project, absorb), finish.
class Source {
 public:
  virtual ~Source() = default;
  virtual const SourceInfo& info() const = 0;
  // Token ids of each sequence of the batch; must stay alive until the next begin.
  virtual void begin(std::span<const std::span<const int32_t>> sequences) = 0;
  virtual void start(const Block& block) = 0;
  virtual Projections project(int layer) = 0;
  virtual void absorb(int layer, ConstRef head_outputs) = 0;  // [tokens, q_heads, head_dim]
  virtual void finish(TokenLosses& losses) = 0;               // leaves it empty without losses
  virtual ConstRef output_weight(int layer) const = 0;        // W_O [width, q_heads · head_dim] or null
  // What a block of that many tokens makes the source allocate, from shapes alone.
  virtual size_t activation_bytes(int64_t /*tokens*/) const { return 0; }
};

}  // namespace kv
