// Share: every head loses the same share of what it has beyond its protected entries.
// Paper: 004 (WG-KV), Appendix K: once a capacity is passed each head drops int(0.1 · its own older entries), so that
// heads stay as uneven as an admission has made them. Under a budget the share is the one that leaves the total that
// was asked, with losses rounded so that they add up, at least 1 where there is anything to lose
// (sim/budget/apportion.h).

#include <algorithm>
#include <numeric>

#include "sim/budget/apportion.h"
#include "sim/policy/allocation.h"
#include "sim/policy/capacity.h"

namespace kv {

namespace {

class Share final : public Allocation {
 public:
  bool keeps_protected() const override { return true; }

  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    for (int s = 0; s < args.sequences; ++s) {
      if (args.is_due(s)) allocate(args, s, counts);
    }
  }

 private:
  static void allocate(const AllocateArgs& args, int sequence, std::span<int32_t> counts) {
    const auto heads = static_cast<size_t>(args.kv_heads), first = static_cast<size_t>(sequence) * heads;
    std::vector<int32_t> lengths, lost;
    for (const ScoredLayer& layer : args.layers) {
      const auto of_layer = layer.lengths.subspan(first, heads);
      lengths.insert(lengths.end(), of_layer.begin(), of_layer.end());
    }
    if (args.capacity) {
      lose_dropped(args, sequence, lengths, lost);
    } else {
      lose_alike(args, sequence, lengths, lost);
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      counts[i / heads * static_cast<size_t>(args.rows()) + first + i % heads] = lengths[i] - lost[i];
    }
  }

  static void lose_dropped(const AllocateArgs& args, int sequence, std::span<const int32_t> lengths,
                           std::vector<int32_t>& lost) {
    const int32_t seen = args.tokens_seen[static_cast<size_t>(sequence)];
    for (const int32_t length : lengths) lost.push_back(args.capacity->dropped(args.capacity->older(length, seen)));
  }

  static void lose_alike(const AllocateArgs& args, int sequence, std::span<const int32_t> lengths,
                         std::vector<int32_t>& lost) {
    const int64_t excess = std::accumulate(lengths.begin(), lengths.end(), -args.total(sequence));
    const int own = args.protection.sinks + args.protection.recent;
    std::vector<int32_t> losable;
    for (const int32_t length : lengths) losable.push_back(std::max(0, length - own));
    if (std::accumulate(losable.begin(), losable.end(), int64_t{0}) < excess) {
      losable.assign(lengths.begin(), lengths.end());
    }
    lost.resize(lengths.size());
    apportion(excess, std::vector<double>(losable.begin(), losable.end()), losable, lost);
  }
};

const RegisterAllocation registered{{
    .name = "share",
    .summary = "every head loses the same share of its entries beyond the protected (WG-KV's Appendix K, 004)",
    .make = [](Params&) { return std::make_unique<Share>(); },
}};

}  // namespace

}  // namespace kv
