#include "kernels/pairwise_hinge.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

struct Slot {
  float target;
  float score;
};

// All pairs of a row by one block: for the thousands of entries of a head that is less work than sorting them twice. A
// thread owns every 256th slot i and meets all slots j in tiles that the block shares.
__global__ void __launch_bounds__(kThreads) hinge_row(PairwiseHingeArgs args) {
  __shared__ Slot tile[kThreads];
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int count = max(0, args.lengths[row] - args.drop_newest);
  KV_DEVICE_CHECK(count <= 65536);
  const float* targets = args.targets.row(row);
  const float* scores = args.scores.row(row);
  float* gradient = args.gradient.row(row);
  const double margin = args.margin;
  const int rounds = (count + kThreads - 1) / kThreads;
  double loss = 0;
  long long pairs = 0;
  int bad = 0;
  for (int round = 0; round < rounds; ++round) {
    const int i = round * kThreads + static_cast<int>(threadIdx.x);
    const Slot mine = i < count ? Slot{targets[i], scores[i]} : Slot{0, 0};
    if (!isfinite(mine.target) || !isfinite(mine.score)) bad = 1;
    int active = 0;
    for (int other = 0; other < rounds; ++other) {
      const int at = other * kThreads + static_cast<int>(threadIdx.x);
      __syncthreads();  // the tile before has been read
      if (at < count) tile[threadIdx.x] = {targets[at], scores[at]};
      __syncthreads();
      const int present = min(kThreads, count - other * kThreads);
      if (i >= count) continue;
      for (int j = 0; j < present; ++j) {
        const bool above = mine.target > tile[j].target, below = mine.target < tile[j].target;
        const double ahead = double{mine.score} - tile[j].score;
        const double cost = margin - (above ? ahead : -ahead);
        pairs += above;
        if (cost > 0 && (above || below)) active += above ? -1 : 1;
        if (cost > 0 && above) loss += cost;
      }
    }
    if (i < count) gradient[i] = static_cast<float>(active);  // |active| < 2^24
  }
  pairs = block_reduce(pairs, 0LL, Add());
  loss = block_reduce(loss, 0.0, Add());
  bad = block_reduce(bad, 0, Larger());
  const float nan = __int_as_float(0x7fc00000);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    gradient[i] = bad ? nan : pairs ? static_cast<float>(double{gradient[i]} / static_cast<double>(pairs)) : 0.0f;
  }
  if (threadIdx.x != 0) return;
  args.loss[row] = bad ? nan : pairs ? static_cast<float>(loss / static_cast<double>(pairs)) : 0.0f;
  args.pairs[row] = bad ? 0 : static_cast<int32_t>(pairs);
}

}  // namespace

void pairwise_hinge(const PairwiseHingeArgs& args) { launch(hinge_row, args.rows, kThreads, 0, args); }

}  // namespace kv::cuda
