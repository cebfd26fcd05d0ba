#pragma once

#include <optional>

#include "kernels/attend.h"
#include "kernels/cuda/attend/expiries.cuh"
#include "kernels/cuda/mma.cuh"

// Attention on CUDA, and what its kernels share. attend.cu picks one of three, by how many pairs of a query and a query
// head a KV head has, and by the card:
//
//   decode/   at most 16 pairs, as when tokens come one at a time. Memory is the limit: the pages of all rows form one
//             list, cut into equal shares, whatever the lengths.
//   prefill/  more, on Hopper, head dimensions 64 and 128. The tensor cores are the limit: warps that load feed warps
//             that multiply, by TMA and warpgroup products.
//   any/      more, on any card at any width, and for tests on Hopper (AttendArgs::on_any_card).
//
// All go through the same phases, by these names in the code, in steps of some keys:
//
//   load      queries once; keys and values of the next steps while this one is computed
//   qk        logits[pair, key] = query · key, on the tensor cores. Rows of a tile are the pairs m = i · group + g
//             (query i of the block, query head g of the group) of one KV head, so that all query heads of a group
//             share one reading of its keys and values
//   mask      −∞ where the query comes before the key, the entry has expired (expiries.cuh), or the row has ended
//   softmax   online: logits become 2^(logit − largest so far), what was summed up before shrinks accordingly
//   pv        output[pair] += probability · value; divided by the sum at the end
//
// Who joins what: a row's keys may be split into pieces, so that a long row keeps more than one multiprocessor busy.
// prefill and any split alike rows at the same keys, on the host, and a second kernel joins the pieces (pieces.cu).
// decode splits by the lengths on the device, the host knowing nothing, and joins by itself (decode/plan.cuh says who,
// decode/join.cuh how): a block joins what its warps have of a row, and the last of a row's blocks to finish joins the
// blocks'. Splits never depend on timing, and every sum has a fixed order.
//
// Column statistics come from a second pass (columns.cu of each folder), which recomputes the probabilities from the
// queries' softmax and reduces them over the queries: there keys stay and queries pass by.

namespace kv::cuda {

// One (query, query head): largest logit, in units of log 2, and Σ 2^(logit − largest) or its inverse.
struct Softmax {
  float largest;
  float sum;
};

struct AttendWork {
  const bf16* queries;
  bf16* output;
  float* piece_outputs;    // [pieces, vectors, head_dim], not divided by the sum
  Softmax* piece_softmax;  // [pieces, vectors]
  Softmax* softmax;        // [vectors], sum inverted; null when nobody asks for it or for column statistics
  int64_t vectors;         // segment_count · max_count · q_heads
  int64_t tiles;           // of (query, head) pairs a KV head
  int64_t piece_keys;      // a piece is that many keys; a multiple of what a step takes
  int pieces;
  int group;
};

// What the pair m of one (segment, KV head) stands for.
struct AttendBlock {
  Segment segment;
  int64_t index;
  int64_t kv_head;
  int64_t row;
  int64_t base;  // keys that were there before the block: query i sees [0, base + i]
  int pairs;

  __device__ AttendBlock(const AttendArgs& args, const AttendWork& work, int64_t segment_index, int64_t head)
      : segment(args.segments[segment_index]),
        index(segment_index),
        kv_head(head),
        row(int64_t{segment.sequence} * args.cache.kv_heads + head),
        base(args.cache.lengths[row] - segment.count),
        pairs(segment.count * work.group) {}

  // Of the query of a pair.
  __device__ int32_t position(const AttendWork& work, int pair) const {
    return segment.first_position + pair / work.group;
  }
  __device__ Expiries expiries(const AttendArgs& args) const { return {args.cache, row, base + segment.count}; }

  // A row holds at least the block's own keys.
  __device__ void check() const { KV_DEVICE_CHECK(base >= 0); }

  // In the packed tensors, times head_dim.
  __device__ int64_t vector(const AttendArgs& args, const AttendWork& work, int pair) const {
    return int64_t{segment.first_token + pair / work.group} * args.q_heads + kv_head * work.group + pair % work.group;
  }
  // In the scratch arrays, which leave room for max_count queries a segment.
  __device__ int64_t scratch(const AttendArgs& args, const AttendWork& work, int pair) const {
    return (index * args.max_count + pair / work.group) * args.q_heads + kv_head * work.group + pair % work.group;
  }
};

__device__ inline void write_output(const AttendWork& work, int64_t at, float a, float b) {
  *reinterpret_cast<uint32_t*>(work.output + at) = to_bf16_pair(a, b);
}

// Writes one pair's two neighbouring output values, or the piece's share of them.
__device__ inline void write_values(const AttendArgs& args, const AttendWork& work, const AttendBlock& block, int piece,
                                    int pair, int d, float a, float b, float sum) {
  const int dim = args.cache.head_dim;
  if (d >= dim) return;
  if (work.pieces == 1) {
    write_output(work, block.vector(args, work, pair) * dim + d, a / sum, b / sum);
  } else {
    float* to = work.piece_outputs + (piece * work.vectors + block.scratch(args, work, pair)) * dim + d;
    to[0] = a;
    to[1] = b;
  }
}

__device__ inline void write_softmax(const AttendArgs& args, const AttendWork& work, const AttendBlock& block,
                                     int piece, int pair, Softmax softmax) {
  const int64_t at = block.scratch(args, work, pair);
  if (work.pieces > 1) {
    work.piece_softmax[piece * work.vectors + at] = softmax;
  } else if (work.softmax) {
    // A true division is a function call, which would make the compiler wait after each of Hopper's products.
    work.softmax[at] = {softmax.largest, __fdividef(1.0f, softmax.sum)};
  }
}

// One step of the online softmax for one row of a warp's tile, held by four lanes: `logits` (raw products, −∞ where
// masked) become probabilities relative to the new maximum; returns what older sums and outputs shrink by.
template <int N>
__device__ float online_step(float (&logits)[N][4], int half, float scale, Softmax& state) {
  float largest = -kInfinity;
#pragma unroll
  for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(logits[n][2 * half], logits[n][2 * half + 1]));
  largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kWarp, largest, 2));
  largest = fmaxf(largest * scale, state.largest);
  const float from = largest == -kInfinity ? 0.0f : largest;  // nothing seen yet: −∞ − −∞ is no number
  const float shrink = exp2_fast(state.largest - from);
  float sum = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& x = logits[n][2 * half + e];
      x = exp2_fast(x * scale - from);
      sum += x;
    }
  }
  state = {largest, state.sum * shrink + sum};  // this lane's share of the sum
  return shrink;
}

__device__ inline float sum_of_four_lanes(float x) {
  x += __shfl_xor_sync(kWarp, x, 1);
  return x + __shfl_xor_sync(kWarp, x, 2);
}

// How a kernel wants rows split: so that its blocks fill the device about `waves` times, each piece a multiple of
// `step` keys, of at least `least` and, if given, at most `most`.
struct SplitRule {
  int64_t blocks = 0;  // without splitting
  int64_t waves = 0;
  int64_t step = 0;
  int64_t least = 0;
  int64_t most = 0;
};

// Splits the rows of one launch, and holds the memory of the pieces' results until they are joined.
class Pieces {
 public:
  Pieces(const AttendArgs& args, AttendWork& work, const SplitRule& rule);

 private:
  std::optional<Scratch<float>> outputs_;
  std::optional<Scratch<Softmax>> softmax_;
};

// Joins the pieces' results; nothing to do for a single piece.
void combine_pieces(const AttendArgs& args, const AttendWork& work);

inline constexpr int kDecodePairs = 16;

// Each fills the output and, if wanted, work.softmax.
void run_decode(const AttendArgs& args, AttendWork work);   // at most kDecodePairs pairs a KV head: decoding
void run_any(const AttendArgs& args, AttendWork work);      // any number
void run_prefill(const AttendArgs& args, AttendWork work);  // any number, where has_prefill()

// Column statistics, from work.softmax.
void run_decode_columns(const AttendArgs& args, const AttendWork& work);  // at most kDecodePairs pairs a KV head
void run_any_columns(const AttendArgs& args, const AttendWork& work);
void run_prefill_columns(const AttendArgs& args, const AttendWork& work);  // where has_prefill()

// The kernels of Hopper's warpgroup products take head dimensions 64 and 128.
inline bool has_prefill(const AttendArgs& args) {
  return compute_capability() == 90 && !args.on_any_card && (args.cache.head_dim == 64 || args.cache.head_dim == 128);
}

}  // namespace kv::cuda
