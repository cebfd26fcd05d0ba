#include "kernels/attention_mass.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 4;  // query heads that share one reading of the keys

__device__ bool contains(const int32_t* begin, const int32_t* end, int32_t position) {
  while (begin < end) {
    const int32_t* middle = begin + (end - begin) / 2;
    if (*middle == position) return true;
    if (*middle < position) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return false;
}

// Σ e^(logit − largest) over what one thread has seen, of all and of the set.
struct Mass {
  float largest = -kInfinity;
  double all = 0;
  double set = 0;

  __device__ void add(float logit, bool in_set) {
    if (logit > largest) {
      const double shrink = exp(double{largest} - logit);
      all *= shrink;
      set *= shrink;
      largest = logit;
    }
    const double weight = expf(logit - largest);
    all += weight;
    if (in_set) set += weight;
  }
};

// One block a (query, KV head, up to four query heads); one thread a key.
__global__ void __launch_bounds__(kThreads)
    attention_mass_kernel(AttentionMassArgs args, const bf16* all_queries, int parts) {
  extern __shared__ float queries[];  // [kHeads, head_dim]
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;
  const int group = args.q_heads / cache.kv_heads;
  const int part = blockIdx.x % parts;
  const int64_t kv_head = blockIdx.x / parts % cache.kv_heads;
  const int64_t n = blockIdx.x / parts / cache.kv_heads;
  const int heads = min(kHeads, group - part * kHeads);
  const int64_t first_head = n * args.q_heads + kv_head * group + part * kHeads;
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    queries[i] = i < heads * dim ? to_f32(all_queries[first_head * dim + i]) : 0.0f;
  }
  __syncthreads();
  const int64_t row = args.sequences[n] * int64_t{cache.kv_heads} + kv_head;
  const int64_t length = cache.lengths[row];
  const int32_t* set = args.set_positions + args.set_begin[n];
  const int32_t* set_end = args.set_positions + args.set_begin[n + 1];
  Mass mass[kHeads];
  for (int64_t slot = threadIdx.x; slot < length; slot += kThreads) {
    const int64_t place = place_of(cache, row, slot);
    const int32_t position = cache.positions[place];
    if (position > args.query_positions[n]) break;  // positions ascend
    if (cache.expires && cache.expires[place] <= args.query_positions[n]) continue;
    float logits[kHeads];
    dots(static_cast<const bf16*>(cache.keys.data) + place * dim, queries, dim, logits);
    const bool in_set = contains(set, set_end, position);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) mass[h].add(logits[h] * args.scale, in_set);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float largest = block_reduce(mass[h].largest, -kInfinity, Larger());
    const double share = mass[h].all > 0 ? exp(double{mass[h].largest} - largest) : 0.0;
    const double all = block_reduce(mass[h].all * share, 0.0, Add());
    const double in_set = block_reduce(mass[h].set * share, 0.0, Add());
    if (threadIdx.x == 0 && h < heads) args.mass[first_head + h] = all > 0 ? static_cast<float>(in_set / all) : 0.0f;
  }
}

}  // namespace

void attention_mass(const AttentionMassArgs& args) {
  check_cache(args.cache);
  const int parts = static_cast<int>(ceil_div(args.q_heads / args.cache.kv_heads, kHeads));
  launch(attention_mass_kernel, args.count * args.cache.kv_heads * parts, kThreads,
         kHeads * args.cache.head_dim * sizeof(float), args, args.queries.as<bf16>(), parts);
}

}  // namespace kv::cuda
