// Every layer and KV head keeps equally many entries: what all policies of 001 and most published code do.

#include "sim/budget/apportion.h"
#include "sim/budget/divide.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Uniform final : public Allocation {
 public:
  bool keeps_protected() const override { return true; }
  int64_t most_kept(int64_t kept, int /*layers*/, int /*kv_heads*/) const override { return kept; }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    const std::vector<double> alike(static_cast<size_t>(args.heads()), 1.0);
    for (int s = 0; s < args.sequences; ++s) {
      if (args.is_due(s)) divide(args, s, alike, counts);
    }
  }
};

const RegisterAllocation registered{{
    .name = "uniform",
    .summary = "every layer and KV head keeps equally many entries",
    .make = [](Params&) { return std::make_unique<Uniform>(); },
}};

}  // namespace

}  // namespace kv
