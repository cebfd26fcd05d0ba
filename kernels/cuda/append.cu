#include "kernels/append.h"

#include "kernels/cuda/device.cuh"
#include "kernels/expiry.h"

namespace kv::cuda {

namespace {

constexpr int kThreads =
    128;  // one warp a (KV head, token); so few that decode attention of 128 dimensions finds registers beside them

struct Pools {
  bf16* keys;
  bf16* values;
};

template <class Word>
__device__ void copy_vector(const bf16* from, bf16* to, int dim, int lane) {
  constexpr int kValues = sizeof(Word) / sizeof(bf16);
  const auto* words_from = reinterpret_cast<const Word*>(from);
  auto* words_to = reinterpret_cast<Word*>(to);
  for (int i = lane; i < dim / kValues; i += 32) words_to[i] = words_from[i];
}

// Word: what both a vector's length and its place allow to copy at once.
template <class Word>
__global__ void append_kernel(AppendArgs args, const bf16* keys, const bf16* values, Pools pools, unsigned vectors) {
  let_next_start();
  const PagedView& cache = args.cache;
  const unsigned nth = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, vector = min(nth, vectors - 1);
  const unsigned segment_head = vector / static_cast<unsigned>(args.max_count);
  const auto i = static_cast<int>(vector % static_cast<unsigned>(args.max_count));
  const Segment segment = args.segments[segment_head / static_cast<unsigned>(cache.kv_heads)];
  const auto head = static_cast<int>(segment_head % static_cast<unsigned>(cache.kv_heads));
  const bool has_token = nth < vectors && i < segment.count;
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + head;
  const int64_t first_slot = cache.lengths[row] - segment.count;
  KV_DEVICE_CHECK(first_slot >= 0);
  const int64_t place = has_token ? place_of(cache, row, first_slot + i) : 0;
  const int64_t from = (int64_t{segment.first_token + i} * cache.kv_heads + head) * cache.head_dim;
  wait_for_previous();  // all threads do: who waits for this kernel relies on those before it
  if (!has_token) return;
  copy_vector<Word>(keys + from, pools.keys + place * cache.head_dim, cache.head_dim, lane);
  copy_vector<Word>(values + from, pools.values + place * cache.head_dim, cache.head_dim, lane);
  if (lane == 0) args.pool_positions[place] = segment.first_position + i;
  if (lane == 0 && args.pool_expires) {
    args.pool_expires[place] = args.expires ? args.expires[from / cache.head_dim] : kNeverExpires;
  }
  if (!args.pool_columns) return;
  for (int c = lane; c < cache.column_width; c += 32) args.pool_columns[place * cache.column_width + c] = 0;
}

}  // namespace

void append(const AppendArgs& args) {
  const bf16* keys = args.keys.as<bf16>();
  const bf16* values = args.values.as<bf16>();
  const Pools pools{.keys = args.pool_keys.as<bf16>(), .values = args.pool_values.as<bf16>()};
  const int64_t vectors = args.segment_count * args.cache.kv_heads * args.max_count;
  KV_CHECK(vectors <= INT32_MAX);
  const bool wide = args.cache.head_dim % 4 == 0 && is_aligned(keys, 8) && is_aligned(values, 8);
  launch_early(wide ? append_kernel<uint2> : append_kernel<bf16>, ceil_div(vectors, kThreads / 32), kThreads, 0, args,
               keys, values, pools, vectors);
}

}  // namespace kv::cuda
