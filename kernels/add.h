#pragma once

#include "kernels/element.h"

namespace kv {

// output[i] = first[i] + second[i], as where two gradients of one tensor meet. `output` may alias either.
struct AddArgs {
  ConstRef first;   // [count]
  ConstRef second;  // [count]
  Ref output;       // [count]
  int64_t count = 0;
};

namespace cpu {
void add(const AddArgs& args);
}
namespace cuda {
void add(const AddArgs& args);
}

}  // namespace kv
