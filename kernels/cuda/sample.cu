#include "kernels/sample.h"

#include "kernels/cuda/best.cuh"
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/scan.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigit = 11;  // 64-bit keys in six passes at most, three for the values

using Mass = unsigned long long;

// One row's logits, ranked by 64-bit keys: the value, then the lower id.
struct Row {
  const float* logits;
  int64_t vocab;
  float largest;
  float temperature;

  __device__ Mass key(int64_t id) const { return Mass{ordered(logits[id])} << 32 | (0xffffffffu - uint32_t(id)); }
  __device__ Mass mass(int64_t id) const {
    return static_cast<Mass>(expf((logits[id] - largest) / temperature) * kSampleUnit);
  }
  // The mass of what ranks no lower than the cut.
  __device__ Mass mass_above(int64_t id, Mass cut) const { return key(id) >= cut ? mass(id) : 0; }
};

// Σ of mass over ids [first, end), by one warp.
__device__ Mass warp_mass(const Row& row, Mass cut, int64_t first, int64_t end) {
  Mass sum = 0;
  for (int64_t id = first + threadIdx.x % 32; id < end; id += 32) sum += row.mass_above(id, cut);
  return warp_reduce(sum, Add());
}

// The first id whose cumulative mass exceeds u · total. Each warp adds up a range of ids; the one in whose range it
// lies looks closer.
__device__ int32_t draw(const Row& row, Mass cut, uint64_t random) {
  __shared__ Mass sums[kWarps];
  __shared__ int32_t drawn;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t range = (row.vocab + kThreads - 1) / kThreads * 32;
  const int64_t first = min(row.vocab, warp * range), end = min(row.vocab, first + range);
  const Mass mass = warp_mass(row, cut, first, end);
  if (lane == 0) sums[warp] = mass;
  __syncthreads();
  Mass total = 0, before = 0;
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  const Mass target = draw_below(random, total);
  if (before <= target && target < before + mass) {
    for (int64_t id = first + lane;; id += 32) {
      const Mass until = warp_sum_until(id < end ? row.mass_above(id, cut) : Mass{0});
      const unsigned beyond = __ballot_sync(kWarp, before + until > target);
      if (beyond != 0) {
        if (lane == __ffs(beyond) - 1) drawn = static_cast<int32_t>(id);
        break;
      }
      before += __shfl_sync(kWarp, until, 31);
    }
  }
  __syncthreads();
  return drawn;
}

__device__ int32_t sample_row(const SampleArgs& args, const Row& row, uint64_t random) {
  const auto key = [&](int64_t id) { return row.key(id); };
  Mass cut = 0;
  if (args.top_k > 0 && args.top_k < args.vocab) {
    cut = radix_cut<kDigit, Mass, unsigned>(row.vocab, args.top_k, key, [](int64_t) { return 1u; }).key;
  }
  if (args.top_p < 1) {
    Mass total = 0;
    for (int64_t id = threadIdx.x; id < row.vocab; id += kThreads) total += row.mass_above(id, cut);
    total = block_reduce(total, Mass{0}, Add());
    const double enough = ceil(double{args.top_p} * static_cast<double>(total));
    const Mass target = max(Mass{1}, min(total, static_cast<Mass>(enough)));
    const auto mass = [&](int64_t id) { return row.mass_above(id, cut); };
    cut = max(cut, radix_cut<kDigit, Mass, Mass>(row.vocab, target, key, mass).key);
  }
  return draw(row, cut, random);
}

__device__ int32_t choose(const SampleArgs& args, int64_t r, int32_t sequence, int32_t position) {
  const float* logits = args.logits + r * args.vocab;
  const Best best = best_of_row<kThreads>(logits, args.vocab);
  if (args.temperature == 0) return best.id;
  return sample_row(args, {logits, args.vocab, best.value, args.temperature},
                    next_random(args.seed, args.numbers[sequence], position));
}

// One block a row; its logits stay in the L2 cache between the passes.
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleArgs args) {
  const int64_t r = blockIdx.x;
  const int32_t sequence = args.sequences[r];
  const int32_t position = args.positions[r];
  const bool finite = !args.first_bad || *args.first_bad == kNothingBad;
  const int32_t id = finite ? choose(args, r, sequence, position) : 0;
  if (threadIdx.x != 0) return;
  args.ids[r] = id;
  args.texts[int64_t{position + 1 - args.origins[sequence]} * args.sequence_count + sequence] = id;
}

}  // namespace

void sample(const SampleArgs& args) {
  KV_CHECK(args.vocab > 0 && args.vocab <= INT32_MAX);
  KV_CHECK(args.temperature >= 0 && args.top_k >= 0 && args.top_p > 0);
  launch(sample_kernel, args.rows, kThreads, 0, args);
}

}  // namespace kv::cuda
