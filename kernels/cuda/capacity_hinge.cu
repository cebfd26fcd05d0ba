#include "kernels/capacity_hinge.h"

#include "kernels/cuda/token_tiles.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = TokenTiles::kThreads;

struct Cost {
  double sum;
  long long overfull;
};

__global__ void cost_kernel(CapacityHingeArgs args, TokenTiles tiles, Cost* costs) {
  Cost cost{};
  tiles.for_places([&](int64_t place, const Segment&, int64_t t) {
    const double excess = excess_of(args, args.occupancy[place]);
    if (excess == 0) return;
    cost.sum += excess * excess_rate(args, t);
    ++cost.overfull;
  });
  cost.sum = block_reduce(cost.sum, 0.0, Add());
  cost.overfull = block_reduce(cost.overfull, 0LL, Add());
  if (threadIdx.x == 0) costs[blockIdx.x] = cost;
}

// One block: adds up the tiles; *share is what one place has in the mean.
__global__ void loss_kernel(CapacityHingeArgs args, const Cost* costs, int64_t tiles, double* share) {
  Cost all{};
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) {
    all.sum += costs[tile].sum;
    all.overfull += costs[tile].overfull;
  }
  all.sum = block_reduce(all.sum, 0.0, Add());
  all.overfull = block_reduce(all.overfull, 0LL, Add());
  if (threadIdx.x != 0) return;
  *share = overfull_share(args, all.overfull);
  *args.loss = static_cast<float>(all.sum * *share);
  *args.overfull = static_cast<int32_t>(all.overfull);
}

__global__ void gradient_kernel(CapacityHingeArgs args, TokenTiles tiles, const double* share) {
  const double weight = args.weight * *share;
  tiles.for_places([&](int64_t place, const Segment&, int64_t t) {
    const bool overfull = excess_of(args, args.occupancy[place]) != 0;
    args.gradient[place] = overfull ? static_cast<float>(weight * excess_rate(args, t)) : 0.0f;
  });
}

}  // namespace

void capacity_hinge(const CapacityHingeArgs& args) {
  KV_CHECK(args.shape.elements() <= 0x7fffffff);
  const TokenTiles tiles(args.shape);
  const Scratch<Cost> costs(tiles.count());
  const Scratch<double> share(1);
  launch(cost_kernel, tiles.count(), kThreads, 0, args, tiles, costs.data());
  launch(loss_kernel, 1, kThreads, 0, args, costs.data(), tiles.count(), share.data());
  launch(gradient_kernel, tiles.count(), kThreads, 0, args, tiles, share.data());
}

}  // namespace kv::cuda
