#pragma once

#include "kernels/cuda/attend_few_pages.cuh"

// Joins the pieces of rows that several warps, or several blocks, of decode attention (attend_few.cu) have a part of:
// in the order of the pieces, whoever finished first.

namespace kv::cuda::few {

struct FewWork {
  size_t piece_bytes;      // that a warp's piece takes in shared memory
  float* piece_outputs;    // [2 · blocks, max_pairs, D], not divided by the sum
  Softmax* piece_softmax;  // [2 · blocks, max_pairs]
  int max_pairs;
};

// Four values of one pair's output, not divided by the sum, and its softmax.
struct Joined {
  Softmax softmax{-kInfinity, 0};
  float4 values{};
};

// Of pieces [first, last], whose softmax and values the calls give: relative to the largest logit of all, so that no
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
  using Shape = Few<D>;
  unsigned char* start;
  size_t piece_bytes;
  int max_pairs;

  __device__ Part* parts() const { return reinterpret_cast<Part*>(start); }
  __device__ unsigned char* stages(int warp) const { return start + Shape::kPartBytes + warp * Shape::kWarpBytes; }
  // The last piece of a run takes the stages, which nothing comes into any more; an earlier one has its own place.
  __device__ Piece<D> piece(const Part& part, const Run& run, int warp) const {
    return Piece<D>(part.row_end() < run.end ? stages(Window::warps()) + warp * piece_bytes : stages(warp), max_pairs);
  }
};

// A part that several warps have a piece of, or the one that an earlier block began.
struct Split {
  int part;  // −1: none
  int first_warp;
  int last_warp;
  int piece;  // where the block leaves what it has of the row; −1: that is all of it
};

// Of each warp the part that begins in its run and goes on beyond, and last what an earlier block began. What the
// joining threads need of it is worked out once.
__device__ inline void find_split(const Part* parts, const Window& window, const Shares& shares,
                                  Split (&split)[kMaxWarps + 1]) {
  if (threadIdx.x > kMaxWarps) return;
  const int warp = static_cast<int>(threadIdx.x);
  Split own{.part = -1, .first_warp = warp % kMaxWarps, .last_warp = 0, .piece = -1};
  if (warp == kMaxWarps) {
    if (parts[0].first_page > 0) own.part = 0;
  } else if (const Run run = window.run_of(warp); run.first < run.end) {
    const int last = part_at(parts, window, run.end - 1);
    if (parts[last].row_first() >= run.first && parts[last].row_end() > run.end) own.part = last;
  }
  if (own.part >= 0) {
    const Part& part = parts[own.part];
    own.last_warp = (min(part.row_end(), window.pages()) - 1) / window.run_pages;
    // A block's two pieces, if it has two: the end of one row and the beginning of another.
    if (shares.count_of(part) > 1) own.piece = static_cast<int>(2 * blockIdx.x + (part.first_page == 0));
  }
  split[warp] = own;
}

// Joins the warps' pieces of those parts, into the output or into the block's pieces: four values a thread, of all
// parts at once, because nothing streams while they are joined.
template <int D>
__device__ void join_warps(const AttendArgs& args, const AttendWork& work, const FewWork& few, const Shared<D>& shared,
                           const Window& window, const Split (&split)[kMaxWarps + 1], int dim) {
  constexpr int kFours = D / 4;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < (kMaxWarps + 1) * few.max_pairs * kFours; i += blockDim.x) {
    const int which = i / kFours / few.max_pairs;
    const int pair = i / kFours - which * few.max_pairs, d = i % kFours * 4;
    const Split own = split[which];
    if (own.part < 0) continue;
    const Part& part = shared.parts()[own.part];
    if (pair >= part.count * work.group) continue;
    const auto piece_of = [&](int warp) { return shared.piece(part, window.run_of(warp), warp); };
    const Joined joined = join_pieces(
        own.first_warp, own.last_warp, [&](int warp) { return piece_of(warp).softmax[pair]; },
        [&](int warp) { return *reinterpret_cast<const float4*>(piece_of(warp).outputs + pair * D + d); });
    if (own.piece < 0) {
      write_joined(args, work, part, dim, pair, d, joined);
      continue;
    }
    const int64_t at = int64_t{own.piece} * few.max_pairs + pair;
    if (d == 0) few.piece_softmax[at] = joined.softmax;
    *reinterpret_cast<float4*>(few.piece_outputs + at * D + d) = joined.values;
  }
}

// Of one pair's pieces, in shared memory.
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
__device__ void join_blocks(const AttendArgs& args, const AttendWork& work, const FewWork& few, const Shared<D>& shared,
                            const Part& part, const Shares& shares, int dim) {
  constexpr int kFours = D / 4;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int first_block = shares.first_of(part), pieces = shares.count_of(part);
  const int pairs = part.count * work.group;
  const int room = Window::warps() * static_cast<int>(Shared<D>::Shape::kWarpBytes);
  const int at_once = min(pairs, room / joining_bytes<D>(pieces));
  auto* outputs = reinterpret_cast<float4*>(shared.stages(0));                      // [pieces, at_once, D / 4]
  auto* softmax = reinterpret_cast<Softmax*>(outputs + pieces * at_once * kFours);  // [pieces, at_once]
#pragma unroll 1
  for (int first = 0; first < pairs; first += at_once) {
    const int count = min(at_once, pairs - first);
    __syncthreads();  // all are done with the stages
#pragma unroll 1
    for (int p = thread / 32; p < pieces; p += Window::warps()) {
      const int64_t from = int64_t{2 * (first_block + p) + (p == 0)} * few.max_pairs + first;
      const auto* piece = reinterpret_cast<const float4*>(few.piece_outputs + from * D);
#pragma unroll 1
      for (int i = lane; i < count * kFours; i += 32) copy_async(outputs + p * count * kFours + i, piece + i);
      if (lane < count) softmax[p * count + lane] = load_fresh(few.piece_softmax + from + lane);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < count * kFours; i += Window::warps() * 32) {
      const int pair = i / kFours, d = i % kFours * 4;
      const Joined joined = join_pieces(
          0, pieces - 1, [&](int p) { return softmax[p * count + pair]; },
          [&](int p) { return outputs[(p * count + pair) * kFours + i % kFours]; });
      write_joined(args, work, part, dim, first + pair, d, joined);
    }
  }
}

}  // namespace kv::cuda::few
