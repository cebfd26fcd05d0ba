#include "kernels/retained_mass.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 4;  // query heads that share one reading of keys and values
constexpr int kDims = 2;   // output elements a thread, head_dim <= 256

struct Inputs {
  const bf16* queries;
  const bf16* keys;
  const bf16* values;
};

// One block a (query, KV head, up to four query heads). First the largest logit, then tiles of one key a thread: their
// weights go to shared memory, from where one thread an output element sums the values.
__global__ void __launch_bounds__(kThreads) retained_mass_kernel(RetainedMassArgs args, Inputs in, int parts) {
  extern __shared__ float queries[];  // [kHeads, head_dim]
  __shared__ float weights[kHeads][kThreads];
  const int dim = args.head_dim;
  const int group = args.q_heads / args.kv_heads;
  const int part = blockIdx.x % parts;
  const int64_t kv_head = blockIdx.x / parts % args.kv_heads;
  const int64_t n = blockIdx.x / parts / args.kv_heads;
  const int heads = min(kHeads, group - part * kHeads);
  const int64_t first_head = n * args.q_heads + kv_head * group + part * kHeads;
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    queries[i] = i < heads * dim ? __bfloat162float(in.queries[first_head * dim + i]) : 0.0f;
  }
  __syncthreads();
  const int64_t seen = int64_t{args.query_positions[n]} + 1;
  KV_DEVICE_CHECK(seen <= args.tokens);
  const int64_t stride = int64_t{args.kv_heads} * dim;
  const bf16* keys = in.keys + kv_head * dim;
  const bf16* values = in.values + kv_head * dim;
  const uint8_t* keep = args.keep + kv_head * args.tokens;

  float largest[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) largest[h] = -kInfinity;
  for (int64_t j = threadIdx.x; j < seen; j += kThreads) {
    float logits[kHeads];
    dots(keys + j * stride, queries, dim, logits);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) largest[h] = fmaxf(largest[h], logits[h] * args.scale);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) largest[h] = block_reduce(largest[h], -kInfinity, Larger());

  float kept[kHeads][kDims] = {}, evicted[kHeads][kDims] = {};
  double kept_mass[kHeads] = {}, evicted_mass[kHeads] = {};
  for (int64_t first = 0; first < seen; first += kThreads) {
    const int64_t j = first + threadIdx.x;
    float logits[kHeads];
    if (j < seen) dots(keys + j * stride, queries, dim, logits);
    __syncthreads();  // the previous tile's weights have been used
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float weight = j < seen ? expf(logits[h] * args.scale - largest[h]) : 0.0f;
      weights[h][threadIdx.x] = weight;
      if (j < seen) (keep[j] ? kept_mass[h] : evicted_mass[h]) += weight;
    }
    __syncthreads();
    const int count = static_cast<int>(min(int64_t{kThreads}, seen - first));
    for (int k = 0; k < count; ++k) {
      const bool stays = keep[first + k];
#pragma unroll
      for (int e = 0; e < kDims; ++e) {
        const int d = threadIdx.x + e * kThreads;
        if (d >= dim) break;
        const float value = __bfloat162float(values[(first + k) * stride + d]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (stays) {
            kept[h][e] += weights[h][k] * value;
          } else {
            evicted[h][e] += weights[h][k] * value;
          }
        }
      }
    }
  }

  // Both masses are sums, not 1 − the other: a small evicted mass keeps its digits.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const double stayed = block_reduce(kept_mass[h], 0.0, Add());
    const double gone = block_reduce(evicted_mass[h], 0.0, Add());
    double difference = 0, product = 0, full_square = 0, kept_square = 0;
#pragma unroll
    for (int e = 0; e < kDims; ++e) {
      const double full = (double{kept[h][e]} + evicted[h][e]) / (stayed + gone);
      const double only = stayed > 0 ? kept[h][e] / stayed : 0.0;
      difference += (full - only) * (full - only);
      product += full * only;
      full_square += full * full;
      kept_square += only * only;
    }
    difference = block_reduce(difference, 0.0, Add());
    product = block_reduce(product, 0.0, Add());
    const double norms = sqrt(block_reduce(full_square, 0.0, Add())) * sqrt(block_reduce(kept_square, 0.0, Add()));
    if (threadIdx.x != 0 || h >= heads) continue;
    args.evicted[first_head + h] = static_cast<float>(gone / (stayed + gone));
    args.error[first_head + h] = static_cast<float>(sqrt(difference));
    args.cosine[first_head + h] = norms > 0 ? static_cast<float>(product / norms) : 0.0f;
  }
}

}  // namespace

void retained_mass(const RetainedMassArgs& args) {
  KV_CHECK(args.head_dim > 0 && args.head_dim <= kThreads * kDims);
  const int parts = static_cast<int>(ceil_div(args.q_heads / args.kv_heads, kHeads));
  const Inputs in{args.queries.as<bf16>(), args.keys.as<bf16>(), args.values.as<bf16>()};
  check_vectors(in.keys, args.head_dim);
  launch(retained_mass_kernel, args.count * args.kv_heads * parts, kThreads, kHeads * args.head_dim * sizeof(float),
         args, in, parts);
}

}  // namespace kv::cuda
