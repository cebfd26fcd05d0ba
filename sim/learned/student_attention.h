#pragma once

#include "kernels/element.h"
#include "sim/cache/block.h"
#include "sim/model/backward.h"
#include "sim/model/projections.h"

namespace kv {

// What a student's attention has that its teacher's lacks: whatever is learned sits in here, and reads of a layer what
// Projections say. Calls: begin, then attend for each layer, then, in the reverse order, backward for each of them.
class StudentAttention {
 public:
  virtual ~StudentAttention() = default;

  // What else it reads of a layer than queries, keys and values, so that gradients go there, too.
  struct Reads {
    bool pre_rope_keys = false;
    bool inputs = false;
  };
  virtual Reads reads() const { return {}; }
  // A block of whole sequences, which stays until the next one.
  virtual void begin(const Block&) {}
  // output [tokens, q_heads, head_dim]
  virtual void attend(int layer, const Projections& projections, Ref output) = 0;
  // From the gradient of what attend() has put out to those of the layer's projections: of queries, keys and values
  // they replace what was there; to the others, of what reads() says, they are added. At the first layer, below which
  // nothing learns, all of them are null.
  struct Output {
    ConstRef values, gradient;  // [tokens, q_heads, head_dim]
  };
  virtual void backward(int layer, const Projections& projections, const Output& output,
                        const ProjectionGradients& gradients) = 0;
};

}  // namespace kv
