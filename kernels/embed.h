#pragma once

#include "kernels/element.h"

namespace kv {

// output[r, :] = table[ids[r], :], bit by bit whatever the bits are. The caller has checked 0 <= ids[r] < vocab.
struct EmbedArgs {
  ConstRef table;      // [vocab, width]
  const int32_t* ids;  // [rows]
  Ref output;          // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
};

namespace cpu {
void embed(const EmbedArgs& args);
}
namespace cuda {
void embed(const EmbedArgs& args);
}

}  // namespace kv
