#pragma once

#include "kernels/cuda/attend_few_pages.cuh"

// Joins the pieces of rows that several warps, or several blocks, of decode attention (attend_few.cu) have a part of:
// in the order of the pieces, whoever finished first.

namespace kv::cuda::few {

struct FewWork {
  size_t piece_bytes;      // that a warp's piece takes in shared memory
  float* piece_outputs;    // [2 · blocks, max_pairs, head_dim], not divided by the sum
  Softmax* piece_softmax;  // [2 · blocks, max_pairs]
  int max_pairs;
};

// What some pieces of a pair make together, for as many values of the output as Values has.
template <class Values>
struct Joined {
  Softmax softmax{-kInfinity, 0};
  Values values{};

  __device__ void add(Softmax piece, const Values& of_piece) {
    const float largest = fmaxf(softmax.largest, piece.largest);
    const float from = largest == -kInfinity ? 0.0f : largest;
    const float before = exp2_fast(softmax.largest - from), weight = exp2_fast(piece.largest - from);
    softmax = {largest, before * softmax.sum + weight * piece.sum};
    auto* own = reinterpret_cast<float*>(&values);
    const auto* other = reinterpret_cast<const float*>(&of_piece);
#pragma unroll
    for (size_t e = 0; e < sizeof(Values) / sizeof(float); ++e) own[e] = before * own[e] + weight * other[e];
  }
};

// Writes two values of one pair's output, and its softmax once.
__device__ inline void write_joined(const AttendArgs& args, const AttendWork& work, const Part& part, int dim, int pair,
                                    int d, Softmax softmax, float2 values) {
  const float inverse = 1 / softmax.sum;
  write_output(work, part.vector(args, work.group, pair) * dim + d, values.x * inverse, values.y * inverse);
  if (d == 0 && work.softmax) work.softmax[part.scratch(args, work.group, pair)] = {softmax.largest, inverse};
}

// Joins what the blocks have of a row, for the block that came last: a warp joins 64 values of a pair, two a lane. All
// pieces, or kAtOnce of more, are read together.
__device__ inline void join_blocks(const AttendArgs& args, const AttendWork& work, const FewWork& few, const Part& part,
                                   const Shares& shares, int dim) {
  constexpr int kAtOnce = 24;  // at most 32, one a lane
  const int lane = threadIdx.x % 32, slices = (dim + 63) / 64;
  const int first_block = shares.first_of(part), pieces = shares.count_of(part);
  for (int i = threadIdx.x / 32; i < part.count * work.group * slices; i += Window::warps()) {
    const int pair = i / slices, d = i % slices * 64 + lane * 2;
    Joined<float2> joined;
    for (int first = 0; first < pieces; first += kAtOnce) {
      const int count = min(kAtOnce, pieces - first);
      const auto place = [&](int p) {
        return int64_t{2 * (first_block + first + p) + (first + p == 0)} * few.max_pairs + pair;
      };
      const float2 own = lane < count ? __ldcg(reinterpret_cast<const float2*>(few.piece_softmax + place(lane)))
                                      : float2{-kInfinity, 0};
      float2 values[kAtOnce];
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (p >= count) break;
        values[p] =
            d < dim ? __ldcg(reinterpret_cast<const float2*>(few.piece_outputs + place(p) * dim + d)) : float2{};
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (p >= count) break;
        joined.add({__shfl_sync(kWarp, own.x, p), __shfl_sync(kWarp, own.y, p)}, values[p]);
      }
    }
    if (d < dim) write_joined(args, work, part, dim, pair, d, joined.softmax, joined.values);
  }
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
  for (int i = static_cast<int>(threadIdx.x); i < (kMaxWarps + 1) * few.max_pairs * kFours; i += blockDim.x) {
    const int which = i / kFours / few.max_pairs;
    const int pair = i / kFours - which * few.max_pairs, d = i % kFours * 4;
    const Split own = split[which];
    if (own.part < 0 || d >= dim) continue;
    const Part& part = shared.parts()[own.part];
    if (pair >= part.count * work.group) continue;
    Joined<float4> joined;
#pragma unroll 1
    for (int warp = own.first_warp; warp <= own.last_warp; ++warp) {
      const Piece<D> piece = shared.piece(part, window.run_of(warp), warp);
      joined.add(piece.softmax[pair], *reinterpret_cast<const float4*>(piece.outputs + pair * D + d));
    }
    const Softmax softmax = joined.softmax;
    const int64_t at = int64_t{own.piece} * few.max_pairs + pair;
    if (own.piece >= 0 && d == 0) few.piece_softmax[at] = softmax;
    float2 values{joined.values.x, joined.values.y};
#pragma unroll 1
    for (int to = d; to < min(d + 4, dim); to += 2) {
      if (own.piece >= 0) {
        *reinterpret_cast<float2*>(few.piece_outputs + at * dim + to) = values;
      } else {
        write_joined(args, work, part, dim, pair, to, softmax, values);
      }
      values = {joined.values.z, joined.values.w};
    }
  }
}

}  // namespace kv::cuda::few
