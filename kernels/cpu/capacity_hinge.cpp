#include "kernels/capacity_hinge.h"

#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/token_tiles.h"

namespace kv::cpu {

namespace {

struct Cost {
  double sum = 0;
  int64_t overfull = 0;
};

// Runs visit(place, rate of its position) for all places of a tile.
template <class Visit>
void for_places(const CapacityHingeArgs& args, const TokenTile& tile, const Visit& visit) {
  for (int64_t t = tile.first; t < tile.end; ++t) {
    const int64_t first = args.shape.place(tile.layer, tile.segment, t);
    const double rate = excess_rate(args, t);
    for (int64_t place = first; place < first + args.shape.heads; ++place) visit(place, rate);
  }
}

Cost cost_of(const CapacityHingeArgs& args, const TokenTile& tile) {
  Cost cost;
  for_places(args, tile, [&](int64_t place, double rate) {
    const double excess = excess_of(args, args.occupancy[place]);
    cost.sum += excess * rate;
    cost.overfull += excess != 0;
  });
  return cost;
}

}  // namespace

void capacity_hinge(const CapacityHingeArgs& args) {
  KV_CHECK(args.shape.elements() <= std::numeric_limits<int32_t>::max());
  const TokenTiles tiles(args.shape);
  std::vector<Cost> costs(static_cast<size_t>(tiles.count()));
  tiles.for_each([&](const TokenTile& tile, int64_t index) { costs[index] = cost_of(args, tile); });
  Cost all;
  for (const Cost& cost : costs) {
    all.sum += cost.sum;
    all.overfull += cost.overfull;
  }
  const double share = overfull_share(args, all.overfull);
  *args.loss = static_cast<float>(all.sum * share);
  *args.overfull = static_cast<int32_t>(all.overfull);
  tiles.for_each([&](const TokenTile& tile, int64_t) {
    for_places(args, tile, [&](int64_t place, double rate) {
      const bool overfull = excess_of(args, args.occupancy[place]) != 0;
      args.gradient[place] = overfull ? static_cast<float>(args.weight * share * rate) : 0.0f;
    });
  });
}

}  // namespace kv::cpu
