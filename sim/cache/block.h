#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/paged.h"
#include "kernels/tensor.h"

namespace kv {

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

// What the model says of each token of the block: of the *next* token, host memory, packed like the block.
struct TokenLosses {
  std::vector<float> nll;       // nats; 0 for a sequence's last token
  std::vector<float> entropy;   // nats
  std::vector<int32_t> argmax;  // most likely next token
  ConstRef hidden{};            // [tokens, width] after the last norm, on the backend, until the next block; or null
};

}  // namespace kv
