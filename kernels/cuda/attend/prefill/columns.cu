#include "kernels/cuda/attend/attend.cuh"
#include "kernels/cuda/hopper.cuh"

// Column statistics of many queries on Hopper, head dimensions 64 and 128: transposed scores S^T = K · Q^T, so that a
// key's sum and maximum never leave the four lanes that hold its row. One warp streams tiles of queries through a ring;
// four warpgroups own 64 keys each, and while some wait for their products the others compute exponentials. Sums go by
// tile of queries first, then over tiles, against the rounding of long chains.

namespace kv::cuda {

namespace {

constexpr int kQueries = 128;  // of a step
constexpr int kGroups = 4;
constexpr int kKeys = 64 * kGroups;
constexpr int kStages = 3;
constexpr int kThreads = kWarpgroup * (kGroups + 1);

template <int D>
struct Shape {
  static constexpr int kPanels = D / kPanelColumns;
  static constexpr int kKeyBytes = kPanels * kPanelBytes<kKeys>;
  static constexpr int kQueryBytes = kPanels * kPanelBytes<kQueries>;
  static constexpr size_t kSharedBytes = kPanelAlignment + kKeyBytes + kStages * kQueryBytes;
};

struct Ring {
  Barrier keys, full[kStages], empty[kStages];
};

// log2 Σ 2^logit of every query, [segments, q_heads, pitch]: it turns a logit into the logarithm of its probability.
// A segment's last query comes last, as in the tiles of queries; what is no query weighs nothing, by +∞.
struct Normalizers {
  float* data;
  int64_t pitch;
};

__global__ void normalize(AttendArgs args, AttendWork work, Normalizers to) {
  const int64_t at = blockIdx.x * int64_t{kQueries} + threadIdx.x;
  const int64_t head = at / to.pitch % args.q_heads, index = at / to.pitch / args.q_heads;
  const int64_t query = at % to.pitch - (to.pitch - args.segments[index].count);
  float normalizer = kInfinity;
  if (query >= 0) {
    const Softmax of = work.softmax[(index * args.max_count + query) * args.q_heads + head];
    normalizer = of.largest - log2f(of.sum);  // `sum` is the inverse
  }
  to.data[at] = normalizer;
}

// What a thread block computes: slots [first_slot, first_slot + kKeys) of one query head. Tiles of queries end at the
// block's last query, so that none reaches beyond the tensor; the first may begin before the block, with a negative
// one.
struct Tile {
  int64_t first_slot;
  int g;
  int first_query;
  int steps;
};

// One warp: the keys, then tile after tile of queries.
template <int D>
__device__ void load(const AttendArgs& args, const AttendWork& work, const AttendBlock& block, const Tile& tile,
                     const CUtensorMap& key_map, const CUtensorMap& query_map, unsigned char* keys,
                     unsigned char* queries, Ring& ring) {
  using Shape = Shape<D>;
  constexpr int kPages = kKeys / kPageTokens;
  const int lane = threadIdx.x % 32;
  if (lane == 0) ring.keys.arrive_expecting(Shape::kKeyBytes);
  __syncwarp();
  if (lane < kPages * Shape::kPanels) {
    const int64_t slot = tile.first_slot + lane % kPages * kPageTokens;
    const bool exists = slot < block.base + block.segment.count;
    const int32_t page =
        exists ? args.cache.page_table[block.row * args.cache.max_pages + slot / kPageTokens] : -1;  // −1: zeros
    copy_box(keys + lane / kPages * kPanelBytes<kKeys> + lane % kPages * kPanelBytes<kPageTokens>, key_map,
             lane / kPages * kPanelColumns, page * kPageTokens, ring.keys);
  }

  const int head = static_cast<int>(block.kv_head) * work.group + tile.g;
  for (int t = 0; t < tile.steps; ++t) {
    const int first = tile.first_query + t * kQueries;
    const int stage = t % kStages;
    ring.empty[stage].wait((t / kStages + 1) % 2);  // the first round finds the ring empty
    if (lane == 0) ring.full[stage].arrive_expecting(Shape::kQueryBytes);
    __syncwarp();
    if (lane < Shape::kPanels) {
      copy_box(queries + stage * Shape::kQueryBytes + lane * kPanelBytes<kQueries>, query_map,
               head * D + lane * kPanelColumns, block.segment.first_token + first, ring.full[stage]);
    }
  }
}

// The statistics of a thread's two keys, over the queries that passed by.
struct Columns {
  float sums[2] = {0, 0};
  float largest[2] = {0, 0};
};

template <bool kMax>
__device__ __forceinline__ void add_tile(float (&x)[kQueries / 2], const float* normalizers, float scale, int lane,
                                         Columns& columns) {
  float sums[2][2] = {};
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
    const float2 of = *reinterpret_cast<const float2*>(normalizers + n * 8 + lane % 4 * 2);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float probability = exp2_fast(x[4 * n + e] * scale - (e % 2 ? of.y : of.x));
      sums[e / 2][e % 2] += probability;
      if (kMax) columns.largest[e / 2] = fmaxf(columns.largest[e / 2], probability);
    }
  }
  columns.sums[0] += sums[0][0] + sums[0][1];
  columns.sums[1] += sums[1][0] + sums[1][1];
}

// Transposed: 64 keys against a tile of queries.
template <int D>
__device__ __forceinline__ void qk(float (&logits)[kQueries / 2], const unsigned char* keys,
                                   const unsigned char* queries) {
  multiply_rows<D, kKeys, kQueries>(logits, keys, queries);
  product_commit();
}

// Rows of the thread, `row` and `row` + 8, are seen by the queries from row + diagonal on, before `until`.
__device__ __forceinline__ void mask(float (&logits)[kQueries / 2], int first_query, int row, int diagonal,
                                     const int (&until)[2], int lane) {
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = first_query + n * 8 + lane % 4 * 2 + e % 2;
      const bool is_seen = query >= 0 && query >= row + e / 2 * 8 + diagonal && query < until[e / 2];
      if (!is_seen) logits[4 * n + e] = -kInfinity;
    }
  }
}

// `row` is the thread's first in the tile.
template <bool kMax>
__device__ __forceinline__ void write_columns(const AttendArgs& args, const AttendWork& work, const AttendBlock& block,
                                              const Tile& tile, int row, int lane, const Columns& columns) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_of_four_lanes(columns.sums[half]);
    float largest = columns.largest[half];
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
    const int64_t slot = tile.first_slot + row + 8 * half;
    if (lane % 4 != 0 || slot >= block.base + block.segment.count) continue;
    const int64_t vector = block.row * work.group + tile.g;
    if (args.column_sums) args.column_sums.row(vector)[slot] = sum;
    if (kMax) args.column_max.row(vector)[slot] = largest;
  }
}

// One warpgroup: its 64 keys against all tiles of queries. Each thread fetches one query's normalizer two steps ahead;
// of the three places for them one is read, one complete, one being written, so that one barrier a step does.
template <int D, bool kMax>
__device__ __forceinline__ void consume(const AttendArgs& args, const AttendWork& work, const AttendBlock& block,
                                        const Tile& tile, const unsigned char* keys, const unsigned char* queries,
                                        Ring& ring, const Normalizers& from, float (&normalizers)[3][kQueries]) {
  const int group = __shfl_sync(kWarp, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int first_row = group * 64;
  const int row = first_row + thread / 32 * 16 + lane / 4;
  // Query i sees slots up to base + i: in the tile's coordinates, rows up to i − diagonal.
  const int diagonal = static_cast<int>(tile.first_slot - block.base);
  const float scale = args.scale * kToLog2;
  const Expiries expiries = block.expiries(args);
  const auto first_slot = static_cast<int>(tile.first_slot);
  const bool may_expire = expiries.may(first_slot + first_row, first_slot + first_row + 64);
  const auto until_of = [&](int of_row) { return expiries.of(first_slot + of_row) - block.segment.first_position; };
  const int until[2] = {until_of(row), until_of(row + 8)};  // kNeverExpires less a position: still late
  Columns columns;

  static_assert(kQueries == kWarpgroup);
  const int64_t head = block.kv_head * work.group + tile.g;
  const float* source =
      from.data + (block.index * args.q_heads + head + 1) * from.pitch - tile.steps * kQueries + thread;
  normalizers[0][thread] = source[0];
  float next = tile.steps > 1 ? source[kQueries] : 0;
  ring.keys.wait(0);
  for (int t = 0; t < tile.steps; ++t) {
    const int stage = t % kStages, first = tile.first_query + t * kQueries;
    float logits[kQueries / 2];
    ring.full[stage].wait(t / kStages % 2);
    qk<D>(logits, keys + first_row * 128, queries + stage * Shape<D>::kQueryBytes);
    normalizers[(t + 1) % 3][thread] = next;
    if (t + 2 < tile.steps) next = source[(t + 2) * kQueries];
    named_sync(1 + group, kWarpgroup);
    product_wait<0>();
    pin(logits);
    if (lane == 0) ring.empty[stage].arrive();
    if (may_expire || first < 0 || first < first_row + 63 + diagonal) mask(logits, first, row, diagonal, until, lane);
    add_tile<kMax>(logits, normalizers[t % 3], scale, lane, columns);
  }
  write_columns<kMax>(args, work, block, tile, row, lane, columns);
}

template <int D, bool kMax>
__device__ void reduce_tile(const AttendArgs& args, const AttendWork& work, const Normalizers& from, int64_t key_tiles,
                            const CUtensorMap& key_map, const CUtensorMap& query_map) {
  using Shape = Shape<D>;
  extern __shared__ unsigned char unaligned[];
  __shared__ Ring ring;
  __shared__ float normalizers[kGroups][3][kQueries];

  // Early keys are seen by the most queries: they start first. The tiles of a query head run together and share its
  // queries in L2.
  unsigned block_number = blockIdx.x;
  const auto tiles = static_cast<unsigned>(key_tiles), group = static_cast<unsigned>(work.group);
  Tile tile;
  tile.first_slot = int64_t{block_number % tiles} * kKeys;
  block_number /= tiles;
  tile.g = static_cast<int>(block_number % group);
  block_number /= group;
  const AttendBlock block(args, work, block_number / args.cache.kv_heads, block_number % args.cache.kv_heads);
  const int count = block.segment.count;
  if (count == 0 || tile.first_slot >= block.base + count) return;
  const int first_query = static_cast<int>(max(int64_t{0}, tile.first_slot - block.base));  // to see any of the keys
  tile.steps = (count - first_query + kQueries - 1) / kQueries;
  tile.first_query = count - tile.steps * kQueries;

  unsigned char* keys = align_panels(unaligned);
  unsigned char* queries = keys + Shape::kKeyBytes;
  if (threadIdx.x == 0) {
    ring.keys.init(1);
    for (int stage = 0; stage < kStages; ++stage) {
      ring.full[stage].init(1);
      ring.empty[stage].init(kGroups * kWarpgroup / 32);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    shrink_registers<32>();
    if (threadIdx.x < 32) load<D>(args, work, block, tile, key_map, query_map, keys, queries, ring);
  } else {
    grow_registers<112>();
    consume<D, kMax>(args, work, block, tile, keys, queries, ring, from, normalizers[threadIdx.x / kWarpgroup - 1]);
  }
}

template <int D, bool kMax>
__global__ void __launch_bounds__(kThreads, 1)
    column_statistics(const __grid_constant__ AttendArgs args, const __grid_constant__ AttendWork work,
                      const __grid_constant__ Normalizers from, int64_t key_tiles,
                      const __grid_constant__ CUtensorMap key_map, const __grid_constant__ CUtensorMap query_map) {
  if constexpr (kHopperCode) reduce_tile<D, kMax>(args, work, from, key_tiles, key_map, query_map);
}

template <int D, bool kMax>
void run(const AttendArgs& args, const AttendWork& work) {
  const int64_t key_tiles = ceil_div(args.cache.max_length, kKeys);
  const int64_t blocks = args.segment_count * args.q_heads * key_tiles;
  const int64_t pitch = ceil_div(args.max_count, kQueries) * kQueries;
  const Scratch<float> normalizers(args.segment_count * args.q_heads * pitch);
  const Normalizers from{normalizers.data(), pitch};
  launch(normalize, args.segment_count * args.q_heads * pitch / kQueries, kQueries, 0, args, work, from);
  launch(column_statistics<D, kMax>, blocks, kThreads, Shape<D>::kSharedBytes, args, work, from, key_tiles,
         tensor_map(args.cache.keys.as<bf16>(), D, kPageTokens),
         tensor_map(work.queries, int64_t{args.q_heads} * D, kQueries));
}

}  // namespace

void run_prefill_columns(const AttendArgs& args, const AttendWork& work) {
  if (args.cache.head_dim == 64) return args.column_max ? run<64, true>(args, work) : run<64, false>(args, work);
  KV_CHECK(args.cache.head_dim == 128);
  return args.column_max ? run<128, true>(args, work) : run<128, false>(args, work);
}

}  // namespace kv::cuda
