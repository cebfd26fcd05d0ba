#include "kernels/retained_mass.h"

#include "kernels/cuda/device.cuh"

// What a row retains and the lengths of its values come first. A replay asks for a few queries at a time, so a query's
// keys are cut into pieces that run side by side; `combine_pieces` joins them in their order.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 4;  // query heads that share one reading of keys and values
constexpr int kMaxDim = 256;
constexpr int kPieceKeys = 1024;

// Softmax parts of one (query, query head) over one piece's keys, relative to the piece's largest logit. Both masses
// are sums, not 1 − the other: a small evicted mass keeps its digits.
struct Piece {
  float largest;
  double kept;
  double evicted;
  float longest;  // of the values
};

struct Work {
  const bf16* queries;
  const bf16* keys;
  const bf16* values;
  uint8_t* keep;        // [rows, tokens]
  float* norms;         // [sequences, tokens, kv_heads], of the values
  Piece* pieces;        // [vectors, most]
  float* kept_outputs;  // [vectors, most, head_dim], not divided by any mass
  float* evicted_outputs;
  int max_pieces;  // pieces of the longest row
  int parts;
};

constexpr int kTile = 1024;  // slots a block

// Marks the positions that the rows hold.
__global__ void __launch_bounds__(kThreads) mark_retained(RetainedMassArgs args, Work work, int64_t tiles) {
  const RowTile tile = row_tile(tiles, kTile);
  const int64_t end = min(tile.first + kTile, int64_t{args.cache.lengths[tile.row]});
  for (int64_t slot = tile.first + threadIdx.x; slot < end; slot += kThreads) {
    const int32_t position = args.cache.positions[place_of(args.cache, tile.row, slot)];
    KV_DEVICE_CHECK(position >= 0 && position < args.tokens);
    work.keep[tile.row * args.tokens + position] = 1;
  }
}

// One warp a value. Beyond a sequence's end it is that of whatever is there, and nobody reads it.
__global__ void __launch_bounds__(kThreads) measure_values(RetainedMassArgs args, Work work, int64_t count) {
  const int64_t index = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  if (index >= count) return;
  const int dim = args.cache.head_dim;
  double square = 0;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32) {
    const double x = to_f32(work.values[index * dim + d]);
    square += x * x;
  }
  square = warp_reduce(square, Add());
  if (threadIdx.x % 32 == 0) work.norms[index] = static_cast<float>(sqrt(square));
}

__device__ int pieces_of(int64_t seen) { return static_cast<int>((seen + kPieceKeys - 1) / kPieceKeys); }

// What the threads of a block share while they sum values: thread t takes every `lanes`-th key, and of its value the
// elements t % columns and, in wide heads, the one kThreads further.
struct Split {
  int columns;  // a power of two
  int lanes;

  __device__ explicit Split(int dim) : columns(1) {
    while (columns < min(dim, kThreads)) columns *= 2;
    lanes = kThreads / columns;
  }
};

constexpr int kDims = kMaxDim / kThreads;  // elements of a value that a thread sums

// The thread's sums of values[count], `stride` apart, by the sign of their weights.
__device__ __forceinline__ void weigh_values(const bf16* values, int64_t stride, int dim, int count, const Split& split,
                                             const float (&weights)[kHeads][kPieceKeys], float (&kept)[kHeads][kDims],
                                             float (&evicted)[kHeads][kDims]) {
  const int column = static_cast<int>(threadIdx.x) % split.columns;
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) / split.columns; j < count; j += split.lanes) {
#pragma unroll
    for (int e = 0; e < kDims; ++e) {
      const int d = column + e * kThreads;
      const float value = d < dim ? to_f32(values[j * stride + d]) : 0.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        kept[h][e] += fmaxf(weights[h][j], 0.0f) * value;
        evicted[h][e] += fmaxf(-weights[h][j], 0.0f) * value;
      }
    }
  }
}

// Adds up what the lanes have of each element below `dim`, and writes the piece's sums.
__device__ __forceinline__ void write_outputs(const Work& work, const Split& split, int64_t piece, int dim,
                                              const float (&kept)[kDims], const float (&evicted)[kDims],
                                              float (&lane_sums)[2][kThreads]) {
#pragma unroll
  for (int e = 0; e < kDims; ++e) {
    __syncthreads();
    lane_sums[0][threadIdx.x] = kept[e];
    lane_sums[1][threadIdx.x] = evicted[e];
    __syncthreads();
    const int d = static_cast<int>(threadIdx.x) + e * kThreads;
    if (threadIdx.x >= split.columns || d >= dim) continue;
    float sums[2] = {0, 0};
    for (int lane = 0; lane < split.lanes; ++lane) {
      sums[0] += lane_sums[0][lane * split.columns + threadIdx.x];
      sums[1] += lane_sums[1][lane * split.columns + threadIdx.x];
    }
    work.kept_outputs[piece * dim + d] = sums[0];
    work.evicted_outputs[piece * dim + d] = sums[1];
  }
}

// One block a (query, KV head, up to four query heads, piece). Logits become weights in shared memory, negative where
// the key is evicted.
__global__ void __launch_bounds__(kThreads) weigh_pieces(RetainedMassArgs args, Work work) {
  extern __shared__ float queries[];  // [kHeads, head_dim]
  __shared__ float weights[kHeads][kPieceKeys];
  __shared__ float lane_sums[2][kThreads];
  const int dim = args.cache.head_dim, kv_heads = args.cache.kv_heads;
  const int group = args.q_heads / kv_heads;
  int64_t block_number = blockIdx.x;
  const int piece = static_cast<int>(block_number % work.max_pieces);
  block_number /= work.max_pieces;
  const int part = static_cast<int>(block_number % work.parts);
  block_number /= work.parts;
  const int64_t kv_head = block_number % kv_heads, n = block_number / kv_heads;
  const int64_t sequence = args.sequences[n], seen = int64_t{args.positions[n]} + 1;
  KV_DEVICE_CHECK(seen <= args.tokens);
  if (piece >= pieces_of(seen)) return;
  const int heads = min(kHeads, group - part * kHeads);
  const int first_head = static_cast<int>(kv_head) * group + part * kHeads;
  const bf16* head_queries = work.queries + ((sequence * args.tokens + seen - 1) * args.q_heads + first_head) * dim;
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    queries[i] = i < heads * dim ? to_f32(head_queries[i]) : 0.0f;
  }
  __syncthreads();
  const int64_t stride = int64_t{kv_heads} * dim;
  const int64_t first = int64_t{piece} * kPieceKeys;
  const int count = static_cast<int>(min(int64_t{kPieceKeys}, seen - first));
  const int64_t first_token = sequence * args.tokens + first;
  const bf16* keys = work.keys + first_token * stride + kv_head * dim;
  const bf16* values = work.values + first_token * stride + kv_head * dim;
  const float* norms = work.norms + first_token * kv_heads + kv_head;
  const uint8_t* keep = work.keep + (sequence * kv_heads + kv_head) * args.tokens + first;

  float largest[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) largest[h] = -kInfinity;
  for (int j = threadIdx.x; j < count; j += kThreads) {
    float logits[kHeads];
    dots(keys + j * stride, queries, dim, logits);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      weights[h][j] = logits[h] * args.scale;
      largest[h] = fmaxf(largest[h], weights[h][j]);
    }
  }
  float longest = 0;
  for (int j = threadIdx.x; j < count; j += kThreads) longest = fmaxf(longest, norms[int64_t{j} * kv_heads]);
  longest = block_reduce(longest, 0.0f, Larger());
  double kept_mass[kHeads] = {}, evicted_mass[kHeads] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    largest[h] = block_reduce(largest[h], -kInfinity, Larger());
    for (int j = threadIdx.x; j < count; j += kThreads) {
      const float weight = expf(weights[h][j] - largest[h]);
      (keep[j] ? kept_mass[h] : evicted_mass[h]) += weight;
      weights[h][j] = keep[j] ? weight : -weight;
    }
  }
  __syncthreads();

  const Split split(dim);
  float kept[kHeads][kDims] = {}, evicted[kHeads][kDims] = {};
  weigh_values(values, stride, dim, count, split, weights, kept, evicted);

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const double stayed = block_reduce(kept_mass[h], 0.0, Add());
    const double gone = block_reduce(evicted_mass[h], 0.0, Add());
    const int64_t at = (n * args.q_heads + first_head + h) * work.max_pieces + piece;
    if (threadIdx.x == 0 && h < heads) work.pieces[at] = {largest[h], stayed, gone, longest};
    write_outputs(work, split, at, h < heads ? dim : 0, kept[h], evicted[h], lane_sums);
  }
}

// One block a (query, query head).
__global__ void __launch_bounds__(kThreads) combine_pieces(RetainedMassArgs args, Work work) {
  const int64_t vector = blockIdx.x;
  const int dim = args.cache.head_dim;
  const int count = pieces_of(int64_t{args.positions[vector / args.q_heads]} + 1);
  const Piece* pieces = work.pieces + vector * work.max_pieces;
  float largest = -kInfinity, longest = 0;
  for (int p = 0; p < count; ++p) {
    largest = fmaxf(largest, pieces[p].largest);
    longest = fmaxf(longest, pieces[p].longest);
  }
  double stayed = 0, gone = 0;
  for (int p = 0; p < count; ++p) {
    const double share = exp(double{pieces[p].largest} - largest);
    stayed += share * pieces[p].kept;
    gone += share * pieces[p].evicted;
  }
  double difference = 0, product = 0, full_square = 0, kept_square = 0;
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    double kept = 0, evicted = 0;
    for (int p = 0; p < count; ++p) {
      const double share = exp(double{pieces[p].largest} - largest);
      const int64_t at = (vector * work.max_pieces + p) * dim + d;
      kept += share * work.kept_outputs[at];
      evicted += share * work.evicted_outputs[at];
    }
    const double full = (kept + evicted) / (stayed + gone);
    const double only = stayed > 0 ? kept / stayed : 0.0;
    difference += (full - only) * (full - only);
    product += full * only;
    full_square += full * full;
    kept_square += only * only;
  }
  difference = block_reduce(difference, 0.0, Add());
  product = block_reduce(product, 0.0, Add());
  const double norms = sqrt(block_reduce(full_square, 0.0, Add())) * sqrt(block_reduce(kept_square, 0.0, Add()));
  if (threadIdx.x != 0) return;
  args.evicted[vector] = static_cast<float>(gone / (stayed + gone));
  args.error[vector] = static_cast<float>(sqrt(difference));
  args.cosine[vector] = norms > 0 ? static_cast<float>(product / norms) : 0.0f;
  const int group = args.q_heads / args.cache.kv_heads;
  if (vector % group == 0) args.longest[vector / group] = longest;
}

}  // namespace

void retained_mass(const RetainedMassArgs& args) {
  const PagedView& cache = args.cache;
  const int dim = cache.head_dim;
  KV_CHECK(dim > 0 && dim <= kMaxDim && args.q_heads % cache.kv_heads == 0);
  if (args.count == 0) return;
  const int64_t vectors = args.count * args.q_heads, max_pieces = ceil_div(args.tokens, kPieceKeys);
  const int64_t values = cache.rows * args.tokens;
  Scratch<uint8_t> keep(values);
  const Scratch<float> norms(values), kept(vectors * max_pieces * dim), evicted(vectors * max_pieces * dim);
  const Scratch<Piece> pieces(vectors * max_pieces);
  const Work work{.queries = args.queries.as<bf16>(),
                  .keys = args.keys.as<bf16>(),
                  .values = args.values.as<bf16>(),
                  .keep = keep.data(),
                  .norms = norms.data(),
                  .pieces = pieces.data(),
                  .kept_outputs = kept.data(),
                  .evicted_outputs = evicted.data(),
                  .max_pieces = static_cast<int>(max_pieces),
                  .parts = static_cast<int>(ceil_div(args.q_heads / cache.kv_heads, kHeads))};
  check_vectors(work.keys, dim);
  keep.fill_zero();
  const int64_t tiles = ceil_div(cache.max_length, kTile);
  launch(mark_retained, cache.rows * tiles, kThreads, 0, args, work, tiles);
  launch(measure_values, ceil_div(values, kThreads / 32), kThreads, 0, args, work, values);
  launch(weigh_pieces, args.count * cache.kv_heads * work.parts * max_pieces, kThreads, kHeads * dim * sizeof(float),
         args, work);
  launch(combine_pieces, vectors, kThreads, 0, args, work);
}

}  // namespace kv::cuda
