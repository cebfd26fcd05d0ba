#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "sim/cache/block.h"
#include "sim/model/projections.h"
#include "sim/model/source_info.h"

namespace kv {

struct ForwardModel;

// Where queries, keys and values come from. ModelSource continues the forward pass with the attention output it is
// given, so errors propagate; TraceSource replays recorded tensors and ignores it. Calls come in this order: want,
// begin, then for each block: start, for each layer (project, absorb), finish.
class Source {
 public:
  virtual ~Source() = default;
  virtual const SourceInfo& info() const = 0;
  // What somebody reads, from the next begin on, of the projections that a source may lack: others may be null.
  struct Wanted {
    bool pre_rope_queries = false;
    bool pre_rope_keys = false;
    bool inputs = false;
  };
  virtual void want(const Wanted&) {}
  // Token ids of each sequence of the batch; must stay alive until the next begin.
  virtual void begin(std::span<const std::span<const int32_t>> sequences) = 0;
  virtual void start(const Block& block) = 0;
  virtual Projections project(int layer) = 0;
  // Whether keys and pre_rope_keys of all of the block's layers stay until the next start(), a layer's behind those of
  // the one before.
  virtual bool keeps_keys() const { return false; }
  virtual void absorb(int layer, ConstRef head_outputs) = 0;  // [tokens, q_heads, head_dim]
  virtual void finish(TokenLosses& losses) = 0;               // leaves it empty without losses
  virtual ConstRef output_weight(int layer) const = 0;        // W_O [width, q_heads · head_dim] or null
  // What a gradient can go back through (sim/model/backward.h); null: recorded tensors, or nothing of that kind.
  virtual const ForwardModel* frozen_model() const { return nullptr; }
  // Another source of the same weights, on a backend of the same kind, with state of its own: both can run at once, on
  // two threads. This one must outlive it. Null: there can be none.
  virtual std::unique_ptr<Source> twin(Backend&) const { return nullptr; }
  // What a block of that many tokens, and single tokens of that many sequences, make it allocate, from shapes alone.
  virtual size_t activation_bytes(int64_t /*tokens*/, int64_t /*sequences*/) const { return 0; }
};

}  // namespace kv
