#include "kernels/gate_sparsity.h"

#include "kernels/cuda/token_tiles.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = TokenTiles::kThreads;

struct Rated {
  double loss;
  long long admitted;
};

__device__ Rated sum_of_block(const Rated& rated) {
  return {block_reduce(rated.loss, 0.0, Add()), block_reduce(rated.admitted, 0LL, Add())};
}

__global__ void rate_kernel(GateSparsityArgs args, TokenTiles tiles, double share, Rated* sums) {
  Rated sum{};
  tiles.for_places([&](int64_t place, const Segment& segment, int64_t s) {
    const double windowed = windowed_share(args, segment, s);
    const float gate = args.gates[place], closed = 1 - gate;
    sum.loss += windowed + (1 - windowed) * (1 - double{closed} * double{closed});
    sum.admitted += gate > args.threshold;
    args.gradient[place] += static_cast<float>(args.weight * share * (1 - windowed) * 2) * closed;
  });
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block: adds up the tiles.
__global__ void loss_kernel(GateSparsityArgs args, const Rated* sums, int64_t tiles, double share) {
  Rated sum{};
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) {
    sum.loss += sums[tile].loss;
    sum.admitted += sums[tile].admitted;
  }
  sum = sum_of_block(sum);
  if (threadIdx.x != 0) return;
  *args.loss = static_cast<float>(sum.loss * share);
  *args.admitted = static_cast<int32_t>(sum.admitted);
}

}  // namespace

void gate_sparsity(const GateSparsityArgs& args) {
  const int64_t elements = args.shape.elements();
  KV_CHECK(elements <= 0x7fffffff);
  const TokenTiles tiles(args.shape);
  const double share = elements > 0 ? 1.0 / static_cast<double>(elements) : 0.0;
  const Scratch<Rated> sums(tiles.count());
  launch(rate_kernel, tiles.count(), kThreads, 0, args, tiles, share, sums.data());
  launch(loss_kernel, 1, kThreads, 0, args, sums.data(), tiles.count(), share);
}

}  // namespace kv::cuda
