#pragma once

#include "kernels/cuda/attend/decode/pages.cuh"
#include "kernels/cuda/attend/decode/plan.cuh"

// Joins the pieces of rows that several warps, or several blocks, of decode attention (decode.cu) have a part of:
// in the order of the pieces, whoever finished first.

namespace kv::cuda::decode {

struct Layout {
  int rows_a_thread;       // of all (segment, KV head)
  size_t piece_bytes;      // that a warp's piece takes in shared memory
  float* piece_outputs;    // [2 · blocks, max_pairs, D], not divided by the sum
  Softmax* piece_softmax;  // [2 · blocks, max_pairs]
  int max_pairs;
  int pair_bits;  // max_pairs ≤ 2^pair_bits
};

// Four values of one pair's output, not divided by the sum, and its softmax.
struct Joined {
  Softmax softmax{-kInfinity, 0};
  float4 values{};
};

// Joins pieces [first, last], whose softmax and values the calls give, relative to the largest logit of all, so that no
// piece waits for the sum of those before it. Code that runs once a launch is kept short: no cache has it yet.
template <class SoftmaxOf, class ValuesOf>
__device__ Joined join_pieces(int first, int last, const SoftmaxOf& softmax_of, const ValuesOf& values_of) {
  Joined joined;
#pragma unroll 4
  for (int p = first; p <= last; ++p) joined.softmax.largest = fmaxf(joined.softmax.largest, softmax_of(p).largest);
#pragma unroll 4
  for (int p = first; p <= last; ++p) {
    const Softmax piece = softmax_of(p);
    const float4 values = values_of(p);
    const float weight = piece.largest == -kInfinity ? 0.0f : exp2_fast(piece.largest - joined.softmax.largest);
    joined.softmax.sum += weight * piece.sum;
    joined.values.x += weight * values.x;
    joined.values.y += weight * values.y;
    joined.values.z += weight * values.z;
    joined.values.w += weight * values.w;
  }
  return joined;
}

// Writes values [d, d + 4) of one pair's output as far as there are so many, and its softmax once.
__device__ inline void write_joined(const AttendArgs& args, const AttendWork& work, const Part& part, int dim, int pair,
                                    int d, const Joined& joined) {
  if (d >= dim) return;
  const float inverse = 1 / joined.softmax.sum;
  const int64_t at = part.vector(args, work.group, pair) * dim + d;
  write_output(work, at, joined.values.x * inverse, joined.values.y * inverse);
  if (d + 2 < dim) write_output(work, at + 2, joined.values.z * inverse, joined.values.w * inverse);
  if (d == 0 && work.softmax) work.softmax[part.scratch(args, work.group, pair)] = {joined.softmax.largest, inverse};
}

// Where warps leave their pieces: [max_pairs, D], then the softmax of each pair.
template <int D>
struct Piece {
  float* outputs;
  Softmax* softmax;
  __device__ Piece(void* at, int max_pairs)
      : outputs(static_cast<float*>(at)), softmax(reinterpret_cast<Softmax*>(outputs + max_pairs * D)) {}
};
template <int D>
__host__ __device__ constexpr size_t piece_bytes(int max_pairs) {
  constexpr size_t kFourValues = 16;  // which are read at once where a piece begins
  return (max_pairs * (D * sizeof(float) + sizeof(Softmax)) + kFourValues - 1) / kFourValues * kFourValues;
}

// A block's shared memory: the list of parts, the stages of each warp, and the place of each for a piece that is done
// before its run is.
template <int D>
struct Shared {
  using Shape = StageShape<D>;
  unsigned char* start;
  size_t piece_bytes;
  int max_pairs;

  __device__ Part* parts() const { return reinterpret_cast<Part*>(start); }
  __device__ unsigned char* stages(int warp) const { return start + Shape::kPartBytes + warp * Shape::kWarpBytes; }
  // The last piece of a run takes the stages, which nothing comes into any more; an earlier one has its own place.
  __device__ Piece<D> piece(int warp, bool ends_early) const {
    return Piece<D>(ends_early ? stages(Window::warps()) + warp * piece_bytes : stages(warp), max_pairs);
  }
};

// Joins the warps' pieces of the split parts, into the output or into the block's pieces: four values a thread, of all
// parts at once, because nothing streams while they are joined.
template <int D>
__device__ void join_warps(const AttendArgs& args, const AttendWork& work, const Layout& layout,
                           const Shared<D>& shared, const Plan& plan, int dim) {
  constexpr int kFours = D / 4;
  const int all = (kMaxWarps + 1) << layout.pair_bits;  // (split, pair)
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < all * kFours; i += static_cast<int>(blockDim.x)) {
    const int unit = i / kFours, d = i % kFours * 4;
    const Split split = plan.splits[unit >> layout.pair_bits];
    if (split.part < 0) continue;
    const Part& part = shared.parts()[split.part];
    const int pair = unit & ((1 << layout.pair_bits) - 1);
    if (pair >= part.count * work.group) continue;
    const auto piece_of = [&](int warp) { return shared.piece(warp, warp == split.last_warp && split.ends_early); };
    const Joined joined = join_pieces(
        split.first_warp, split.last_warp, [&](int warp) { return piece_of(warp).softmax[pair]; },
        [&](int warp) { return *reinterpret_cast<const float4*>(piece_of(warp).outputs + pair * D + d); });
    if (split.piece < 0) {
      write_joined(args, work, part, dim, pair, d, joined);
      continue;
    }
    const int64_t at = int64_t{split.piece} * layout.max_pairs + pair;
    if (d == 0) layout.piece_softmax[at] = joined.softmax;
    *reinterpret_cast<float4*>(layout.piece_outputs + at * D + d) = joined.values;
  }
}

// What one pair's pieces take in shared memory.
template <int D>
__host__ __device__ constexpr int joining_bytes(int pieces) {
  return pieces * static_cast<int>(D * sizeof(float) + sizeof(Softmax));
}

// Past the L1 cache, which may hold what stood there before another block wrote.
__device__ inline Softmax load_fresh(const Softmax* from) {
  const float2 both = __ldcg(reinterpret_cast<const float2*>(from));
  return {both.x, both.y};
}

// Joins what the blocks have of a row, for the block that came last. All pieces of as many pairs as the stages take are
// read at once.
template <int D>
__device__ void join_blocks(const AttendArgs& args, const AttendWork& work, const Layout& layout,
                            const Shared<D>& shared, const Part& part, const Blocks& blocks, int dim) {
  constexpr int kFours = D / 4;
  const int thread = static_cast<int>(threadIdx.x), threads = Window::warps() * 32, lane = thread % 32;
  const int pairs = part.count * work.group, pieces = blocks.count;
  const int room = Window::warps() * static_cast<int>(Shared<D>::Shape::kWarpBytes);
  const int at_once = min(pairs, room / joining_bytes<D>(pieces));
  auto* outputs = reinterpret_cast<float4*>(shared.stages(0));                      // [pieces, at_once, D / 4]
  auto* softmax = reinterpret_cast<Softmax*>(outputs + pieces * at_once * kFours);  // [pieces, at_once]
#pragma unroll 1
  for (int first = 0; first < pairs; first += at_once) {
    const int count = min(at_once, pairs - first);
    const auto pair_of = [&](int p) { return int64_t{2 * (blocks.first + p) + (p == 0)} * layout.max_pairs + first; };
    __syncthreads();  // all are done with the stages
#pragma unroll 1
    for (int p = thread / 32; p < pieces; p += Window::warps()) {
      const auto* piece = reinterpret_cast<const float4*>(layout.piece_outputs + pair_of(p) * D);
#pragma unroll 1
      for (int i = lane; i < count * kFours; i += 32) copy_async(outputs + p * count * kFours + i, piece + i);
    }
    commit_copies();
    const int pair = thread % kDecodePairs;
#pragma unroll 1
    for (int p = thread / kDecodePairs; p < pieces && pair < count; p += threads / kDecodePairs) {
      softmax[p * count + pair] = load_fresh(layout.piece_softmax + pair_of(p) + pair);
    }
    wait_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < count * kFours; i += threads) {
      const int nth = i / kFours, d = i % kFours * 4;
      const Joined joined = join_pieces(
          0, pieces - 1, [&](int p) { return softmax[p * count + nth]; },
          [&](int p) { return outputs[(p * count + nth) * kFours + i % kFours]; });
      write_joined(args, work, part, dim, first + nth, d, joined);
    }
  }
}

}  // namespace kv::cuda::decode
