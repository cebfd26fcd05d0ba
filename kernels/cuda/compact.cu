#include "kernels/compact.h"

#include <algorithm>

#include "kernels/cuda/compact_pieces.cuh"
#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kHeldWords = 8;    // a thread
constexpr int kHeldColumns = 6;  // so that 128 entries with 12 columns move at once

// Where each slot of the current chunk goes: its rank among the kept ones, or −1. Returns how many are kept.
__device__ int rank_kept(const uint8_t* keep, int64_t first, int count, int* rank) {
  __shared__ int warp_kept[kThreads / 32];
  const int warp = threadIdx.x / 32;
  const bool stays = static_cast<int>(threadIdx.x) < count && keep[first + threadIdx.x];
  const unsigned votes = __ballot_sync(kWarp, stays);
  __syncthreads();  // readers of the previous chunk are done
  if (threadIdx.x % 32 == 0) warp_kept[warp] = __popc(votes);
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? warp_kept[w] : 0;
    total += warp_kept[w];
  }
  if (static_cast<int>(threadIdx.x) < count) {
    rank[threadIdx.x] = stays ? before + __popc(votes & ((1u << threadIdx.x % 32) - 1)) : -1;
  }
  __syncthreads();
  return total;
}

// The columns of a chunk's entries, neighbouring threads with neighbouring ones, as they lie in the pool; as many at a
// time as registers hold, the oldest entries first.
__device__ void move_columns(const CompactArgs& args, const int64_t* from, const int64_t* to, int count) {
  const int width = args.cache.column_width, total = count * width;
  for (int first = static_cast<int>(threadIdx.x); first - static_cast<int>(threadIdx.x) < total;
       first += kHeldColumns * kThreads) {
    float held[kHeldColumns];
#pragma unroll
    for (int k = 0; k < kHeldColumns; ++k) {
      const int i = first + k * kThreads, entry = i / width;
      if (i < total && to[entry] >= 0) held[k] = args.pool_columns[from[entry] * width + i % width];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kHeldColumns; ++k) {
      const int i = first + k * kThreads, entry = i / width;
      if (i < total && to[entry] >= 0) args.pool_columns[to[entry] * width + i % width] = held[k];
    }
  }
}

// One block a row walks its slots in chunks. A chunk is read into registers before any of it is written; entries only
// move towards slot 0, so what is overwritten has been read. Two forms, so that entries without columns do not pay for
// the registers that columns need.
template <class Word, bool kColumns>
__global__ void __launch_bounds__(kThreads, 4)
    compact_kernel(CompactArgs args, Word* keys, Word* values, int words, int chunk) {
  __shared__ int rank[kThreads];
  __shared__ int64_t from[kThreads], to[kThreads];
  const PagedView& cache = args.cache;
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = cache.lengths[row];
  const uint8_t* keep = args.keep.row(row);
  const int64_t oldest = max(int64_t{0}, length - args.newest);  // of those that may leave
  int64_t kept = oldest;
  for (int64_t first = oldest; first < length; first += chunk) {
    const int count = static_cast<int>(min(int64_t{chunk}, length - first));
    const int stay = rank_kept(keep, first, count, rank);
    const int64_t base = kept;
    kept += stay;
    if (stay == 0 || (stay == count && base == first)) continue;  // nothing moves
    const int slot = threadIdx.x;
    const bool moves = slot < count && rank[slot] >= 0;
    if (slot < count) {
      from[slot] = place_of(cache, row, first + slot);
      to[slot] = moves ? place_of(cache, row, base + rank[slot]) : -1;
    }
    __syncthreads();

    Word held[kHeldWords];
    const int total = count * 2 * words;  // keys, then values of each entry
#pragma unroll
    for (int k = 0; k < kHeldWords; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= total) break;
      const int entry = i / (2 * words), word = i % (2 * words);
      if (to[entry] < 0) continue;
      held[k] = word < words ? keys[from[entry] * words + word] : values[from[entry] * words + word - words];
    }
    const int32_t position = moves ? args.pool_positions[from[slot]] : 0;
    const int32_t expires = moves && args.pool_expires ? args.pool_expires[from[slot]] : 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kHeldWords; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= total) break;
      const int entry = i / (2 * words), word = i % (2 * words);
      if (to[entry] < 0) continue;
      (word < words ? keys[to[entry] * words + word] : values[to[entry] * words + word - words]) = held[k];
    }
    if (moves) args.pool_positions[to[slot]] = position;
    if (moves && args.pool_expires) args.pool_expires[to[slot]] = expires;
    if constexpr (kColumns) move_columns(args, from, to, count);
  }
  // Over cache.lengths, too: every thread has read the row's length before the barriers of its first chunk, or none may
  // leave and it stays so.
  if (args.lengths && threadIdx.x == 0) args.lengths[row] = static_cast<int32_t>(kept);
  has_settled();
}

template <class Word>
void compact_words(const CompactArgs& args) {
  const int words = args.cache.head_dim / static_cast<int>(sizeof(Word) / sizeof(bf16));
  const int chunk = std::min(kThreads, kThreads * kHeldWords / (2 * words));
  KV_CHECK(chunk > 0);
  launch(args.pool_columns ? compact_kernel<Word, true> : compact_kernel<Word, false>, args.cache.rows, kThreads, 0,
         args, reinterpret_cast<Word*>(args.pool_keys.as<bf16>()), reinterpret_cast<Word*>(args.pool_values.as<bf16>()),
         words, chunk);
}

}  // namespace

void compact(const CompactArgs& args) {
  if (args.cache.rows < multiprocessors()) return compact_pieces(args);
  if (args.cache.head_dim % 8 == 0) {
    compact_words<uint4>(args);
  } else {
    compact_words<uint16_t>(args);
  }
}

}  // namespace kv::cuda
