// Local attention: the first tokens, and the newest.
// Paper: Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (2023), as 004 compares with (128
// sinks). Where the scorer `streaming` evicts at events, this is exact at every token: a query sees the sinks and the
// `window` newest entries, itself among them. Original rotations, as in 004; the paper rotates by place in the cache.

#include "policies/parts/windowed_admission.h"

namespace kv {

namespace {

class Local final : public WindowedAdmission {
 public:
  explicit Local(Params& params) : WindowedAdmission(params, 128, 256) {}
  SeenEntries most_seen(int64_t tokens, int64_t heads) const override { return least_seen(tokens, heads); }
};

const RegisterAdmission registered{{
    .name = "local",
    .summary = "the first tokens stay, any other is seen for a window (StreamingLLM's attention; 004)",
    .make = [](Params& params) { return std::make_unique<Local>(params); },
}};

}  // namespace

}  // namespace kv
