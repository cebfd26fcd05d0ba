#pragma once

#include <cstdint>

#include "kernels/paged.h"

namespace kv {

// Until when a block's entries are seen, told once the last layer has them: for each layer l, segment and KV head h, of
// the last `count` slots of the row the i-th gets pool_expires = expires[l, first_token + i, h]. What append() would
// have written had it been known, layer by layer, before attention.
struct WriteExpiriesArgs {
  const int32_t* expires = nullptr;  // [layers, tokens, kv_heads]
  int layers = 0;
  int64_t tokens = 0;
  const Segment* segments = nullptr;  // at most one a sequence
  int64_t segment_count = 0;
  int64_t max_count = 0;            // largest count, known on the host
  PagedView cache;                  // the rows of all layers, [layers, sequences, kv_heads], the block counted
  int32_t* pool_expires = nullptr;  // of `cache`, writable
};

namespace cpu {
void write_expiries(const WriteExpiriesArgs& args);
}
namespace cuda {
void write_expiries(const WriteExpiriesArgs& args);
}

}  // namespace kv
