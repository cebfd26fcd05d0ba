#include "kernels/gate_sparsity.h"

#include "kernels/cuda/token_tiles.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = TokenTiles::kThreads;

__global__ void rate_kernel(GateSparsityArgs args, TokenTiles tiles, double share, double* sums) {
  double sum = 0;
  tiles.for_places([&](int64_t place, const Segment& segment, int64_t s) {
    const double windowed = windowed_share(args, segment, s);
    const float closed = 1 - args.gates[place];
    sum += windowed + (1 - windowed) * (1 - double{closed} * double{closed});
    args.gradient[place] += static_cast<float>(args.weight * share * (1 - windowed) * 2) * closed;
  });
  sum = block_reduce(sum, 0.0, Add());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block: adds up the tiles.
__global__ void loss_kernel(const double* sums, int64_t tiles, double share, float* loss) {
  double sum = 0;
  for (int64_t tile = threadIdx.x; tile < tiles; tile += kThreads) sum += sums[tile];
  sum = block_reduce(sum, 0.0, Add());
  if (threadIdx.x == 0) *loss = static_cast<float>(sum * share);
}

}  // namespace

void gate_sparsity(const GateSparsityArgs& args) {
  const TokenTiles tiles(args.shape);
  const int64_t elements = args.shape.elements();
  const double share = elements > 0 ? 1.0 / static_cast<double>(elements) : 0.0;
  const Scratch<double> sums(tiles.count());
  launch(rate_kernel, tiles.count(), kThreads, 0, args, tiles, share, sums.data());
  launch(loss_kernel, 1, kThreads, 0, sums.data(), tiles.count(), share, args.loss);
}

}  // namespace kv::cuda
