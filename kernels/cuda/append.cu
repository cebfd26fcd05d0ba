#include "kernels/append.h"

#include "kernels/cuda/device.cuh"
#include "kernels/expiry.h"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTokens = kThreads / 32;  // one warp a (token, KV head)

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
__global__ void append_kernel(AppendArgs args, const bf16* keys, const bf16* values, Pools pools, int64_t tiles) {
  let_next_start();
  const RowTile at = row_tile(tiles, kTokens);  // row: (segment, KV head)
  const PagedView& cache = args.cache;
  const Segment segment = args.segments[at.row / cache.kv_heads];
  const int64_t head = at.row % cache.kv_heads;
  const int64_t i = at.first + threadIdx.x / 32;
  const bool has_token = i < segment.count;
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{segment.sequence} * cache.kv_heads + head;
  const int64_t first_slot = cache.lengths[row] - segment.count;
  KV_DEVICE_CHECK(first_slot >= 0);
  const int64_t place = has_token ? place_of(cache, row, first_slot + i) : 0;
  const int64_t from = ((segment.first_token + i) * cache.kv_heads + head) * cache.head_dim;
  wait_for_previous();  // all threads do: who waits for this kernel relies on those before it
  if (!has_token) return;
  copy_vector<Word>(keys + from, pools.keys + place * cache.head_dim, cache.head_dim, lane);
  copy_vector<Word>(values + from, pools.values + place * cache.head_dim, cache.head_dim, lane);
  if (lane == 0) args.pool_positions[place] = segment.first_position + static_cast<int32_t>(i);
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
  const int64_t tiles = ceil_div(args.max_count, kTokens);
  const int64_t blocks = args.segment_count * args.cache.kv_heads * tiles;
  const bool wide = args.cache.head_dim % 4 == 0 && is_aligned(keys, 8) && is_aligned(values, 8);
  launch_early(wide ? append_kernel<uint2> : append_kernel<bf16>, blocks, kThreads, 0, args, keys, values, pools,
               tiles);
}

}  // namespace kv::cuda
