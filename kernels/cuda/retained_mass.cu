#include "kernels/retained_mass.h"

#include "kernels/cuda/device.cuh"

// Two kernels. A replay asks for a few queries at a time, so a query's keys are cut into pieces that run side by side;
// `combine_pieces` joins them in their order.

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
};

struct Work {
  const bf16* queries;
  const bf16* keys;
  const bf16* values;
  Piece* pieces;        // [vectors, most]
  float* kept_outputs;  // [vectors, most, head_dim], not divided by any mass
  float* evicted_outputs;
  int most;  // pieces of the longest row
  int parts;
};

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

// One block a (query, KV head, up to four query heads, piece). Logits become weights in shared memory, negative where
// the key is evicted.
__global__ void __launch_bounds__(kThreads) weigh_pieces(RetainedMassArgs args, Work work) {
  extern __shared__ float queries[];  // [kHeads, head_dim]
  __shared__ float weights[kHeads][kPieceKeys];
  __shared__ float lane_sums[2][kThreads];
  constexpr int kDims = kMaxDim / kThreads;
  const int dim = args.head_dim;
  const int group = args.q_heads / args.kv_heads;
  int64_t rest = blockIdx.x;
  const int piece = static_cast<int>(rest % work.most);
  rest /= work.most;
  const int part = static_cast<int>(rest % work.parts);
  rest /= work.parts;
  const int64_t kv_head = rest % args.kv_heads, n = rest / args.kv_heads;
  const int64_t seen = int64_t{args.query_positions[n]} + 1;
  KV_DEVICE_CHECK(seen <= args.tokens);
  if (piece >= pieces_of(seen)) return;
  const int heads = min(kHeads, group - part * kHeads);
  const int64_t first_vector = n * args.q_heads + kv_head * group + part * kHeads;
  for (int i = threadIdx.x; i < kHeads * dim; i += kThreads) {
    queries[i] = i < heads * dim ? __bfloat162float(work.queries[first_vector * dim + i]) : 0.0f;
  }
  __syncthreads();
  const int64_t stride = int64_t{args.kv_heads} * dim;
  const int64_t first = int64_t{piece} * kPieceKeys;
  const int count = static_cast<int>(min(int64_t{kPieceKeys}, seen - first));
  const bf16* keys = work.keys + first * stride + kv_head * dim;
  const bf16* values = work.values + first * stride + kv_head * dim;
  const uint8_t* keep = args.keep + kv_head * args.tokens + first;

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
  const int column = static_cast<int>(threadIdx.x) % split.columns;
  float kept[kHeads][kDims] = {}, evicted[kHeads][kDims] = {};
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) / split.columns; j < count; j += split.lanes) {
#pragma unroll
    for (int e = 0; e < kDims; ++e) {
      const int d = column + e * kThreads;
      const float value = d < dim ? __bfloat162float(values[j * stride + d]) : 0.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        kept[h][e] += fmaxf(weights[h][j], 0.0f) * value;
        evicted[h][e] += fmaxf(-weights[h][j], 0.0f) * value;
      }
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const double stayed = block_reduce(kept_mass[h], 0.0, Add());
    const double gone = block_reduce(evicted_mass[h], 0.0, Add());
    const int64_t at = (first_vector + h) * work.most + piece;
    if (threadIdx.x == 0 && h < heads) work.pieces[at] = {largest[h], stayed, gone};
#pragma unroll
    for (int e = 0; e < kDims; ++e) {
      __syncthreads();
      lane_sums[0][threadIdx.x] = kept[h][e];
      lane_sums[1][threadIdx.x] = evicted[h][e];
      __syncthreads();
      const int d = static_cast<int>(threadIdx.x) + e * kThreads;
      if (threadIdx.x >= split.columns || d >= dim || h >= heads) continue;
      float sums[2] = {0, 0};
      for (int lane = 0; lane < split.lanes; ++lane) {
        sums[0] += lane_sums[0][lane * split.columns + threadIdx.x];
        sums[1] += lane_sums[1][lane * split.columns + threadIdx.x];
      }
      work.kept_outputs[at * dim + d] = sums[0];
      work.evicted_outputs[at * dim + d] = sums[1];
    }
  }
}

// One block a (query, query head).
__global__ void __launch_bounds__(kThreads) combine_pieces(RetainedMassArgs args, Work work) {
  const int64_t vector = blockIdx.x;
  const int dim = args.head_dim;
  const int count = pieces_of(int64_t{args.query_positions[vector / args.q_heads]} + 1);
  const Piece* pieces = work.pieces + vector * work.most;
  float largest = -kInfinity;
  for (int p = 0; p < count; ++p) largest = fmaxf(largest, pieces[p].largest);
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
      const int64_t at = (vector * work.most + p) * dim + d;
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
}

}  // namespace

void retained_mass(const RetainedMassArgs& args) {
  KV_CHECK(args.head_dim > 0 && args.head_dim <= kMaxDim);
  const int64_t vectors = args.count * args.q_heads, most = ceil_div(args.tokens, kPieceKeys);
  const Scratch<Piece> pieces(vectors * most);
  const Scratch<float> kept(vectors * most * args.head_dim), evicted(vectors * most * args.head_dim);
  const Work work{.queries = args.queries.as<bf16>(),
                  .keys = args.keys.as<bf16>(),
                  .values = args.values.as<bf16>(),
                  .pieces = pieces.data(),
                  .kept_outputs = kept.data(),
                  .evicted_outputs = evicted.data(),
                  .most = static_cast<int>(most),
                  .parts = static_cast<int>(ceil_div(args.q_heads / args.kv_heads, kHeads))};
  check_vectors(work.keys, args.head_dim);
  launch(weigh_pieces, args.count * args.kv_heads * work.parts * most, kThreads, kHeads * args.head_dim * sizeof(float),
         args, work);
  launch(combine_pieces, vectors, kThreads, 0, args, work);
}

}  // namespace kv::cuda
