// PyramidKV: budgets fall linearly from the first layer to the last; heads of a layer share alike.
// Paper: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling" (2024); as
// kvpress computes it, with the settings of 002 Table 8 (β = 20, window 8). Of a mean budget κ:
//   last layer κ/β, first layer 2κ − κ/β; where the first exceeds T − window, it gets T − window and the last the rest.
// Deviations: kvpress rounds each layer, so its totals are off by a few entries; here the total is exact
// (sim/budget/apportion.h), a head then differs by at most 1. Where the last layer would get less than the window
// kvpress silently divides uniformly; here that is an error. T is the longest a head holds when the event comes.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"
#include "policies/parts/options.h"
#include "sim/budget/divide.h"
#include "sim/policy/allocation.h"
#include "sim/policy/policy.h"

namespace kv {

namespace {

class Pyramid final : public Allocation {
 public:
  explicit Pyramid(Params& params)
      : beta_(params.get("beta", 20.0, "the mean budget over the last layer's (002: 20)")),
        window_(option_at_least(params, 0, "window", 8, "least entries of the last layer (002: 8)")) {
    if (!(beta_ >= 1 && beta_ <= 1e6)) params.fail("beta", "expected 1 to 1000000");
  }

  // The first layer's 2κ − κ/β, rounded up.
  int64_t most_kept(int64_t kept, int /*layers*/, int /*kv_heads*/) const override { return 2 * kept; }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    for (int s = 0; s < args.sequences; ++s) {
      if (args.is_due(s)) divide(args, s, shares(args, s), counts);
    }
  }

 private:
  std::vector<double> shares(const AllocateArgs& args, int sequence) const {
    const double mean = args.kept;
    const double longest = args.longest(sequence) - window_;
    double last = mean / beta_;
    double first = 2 * mean - last;
    if (first > longest) {
      first = longest;
      last = 2 * mean - first;
    }
    if (last < window_ || first < last) {
      throw UserError(
          fmt::format("pyramid: of a mean budget of {} with beta {} the last layer gets {:.1f} entries, expected at "
                      "least the window {} and no more than the first layer's {:.1f}",
                      args.kept, beta_, last, window_, first));
    }
    std::vector<double> weights;
    const auto steps = static_cast<double>(std::max<int64_t>(1, std::ssize(args.layers) - 1));
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      const double share = first - static_cast<double>(layer) * (first - last) / steps;
      weights.insert(weights.end(), static_cast<size_t>(args.kv_heads), args.layers.size() == 1 ? mean : share);
    }
    return weights;
  }

  double beta_;
  int window_;
};

const RegisterAllocation registered{{
    .name = "pyramid",
    .summary = "budgets fall linearly from the first layer to the last (PyramidKV, Cai et al. 2024)",
    .make = [](Params& params) { return std::make_unique<Pyramid>(params); },
}};

}  // namespace

}  // namespace kv
