#include "kernels/occupancy.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tf32.cuh"

namespace kv::cuda {

namespace {

// Powers come apart: with t = kBlock · b + r it is β_i^{t − i} = β_i^{kBlock · b − i} · β_i^r. So what a block of
// tokens leaves to the later ones is a product of matrices, [later blocks, kBlock] · [kBlock, kBlock], and its factors
// are far fewer powers than there are pairs. Products are of tf32's halves (tf32.cuh): bf16 would not tell β near 1
// from 1.
constexpr int kBlock = 64;
constexpr int kThreads = 256;
constexpr int kBackwardThreads = 128;  // tokens whose gradient a block makes
constexpr float kLog2E = 1.44269504f;

// One head of one sequence.
struct Head {
  Segment segment;
  int64_t layer;
  int64_t head;
  int64_t place;  // of its first token
};
__device__ Head head_of(const TokenHeads& shape, int64_t plane) {
  const int64_t head = plane % shape.heads, row = plane / shape.heads;
  const int64_t layer = row / shape.segment_count;
  const Segment segment = shape.segments[row % shape.segment_count];
  return {segment, layer, head, shape.place(layer, segment, 0) + head};
}
__host__ int64_t planes_of(const TokenHeads& shape) { return shape.layers * shape.segment_count * shape.heads; }

__device__ float power(float rate, int age) { return exp2f(rate * static_cast<float>(age)); }

// What the tokens of earlier blocks count for: sums[plane, split, t], a tile of kBlock blocks of t a thread block, of
// every splits-th block of earlier tokens.
struct Splits {
  float* sums;
  int64_t tiles;  // a sequence
  int64_t count;
  int64_t pitch;

  __device__ float* row(int64_t plane, int64_t split) const { return sums + (plane * count + split) * pitch; }
};

// Two rows of fragments that neighbours read lie in different banks.
constexpr int kPitch = kBlock + 8;

// A warp has 16 rows of a tile's blocks, and half of their tokens.
__global__ void __launch_bounds__(kThreads) earlier_kernel(OccupancyArgs args, Splits splits) {
  __shared__ float factors[kBlock][kPitch], powers[kBlock][kPitch];  // [i, b], [i, r]
  __shared__ float rates[kBlock];
  const int64_t split = blockIdx.x % splits.count, tile = blockIdx.x / splits.count % splits.tiles;
  const int64_t plane = blockIdx.x / splits.count / splits.tiles;
  const Head at = head_of(args.shape, plane);
  const auto first_block = static_cast<int>(tile * kBlock), blocks = (at.segment.count + kBlock - 1) / kBlock;
  if (first_block >= blocks) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int b = warp / 2 * 16 + lane / 4, half = warp % 2 * 32;
  float sums[4][4] = {};
  for (auto block = static_cast<int>(split); block < min(first_block + kBlock, blocks) - 1;
       block += static_cast<int>(splits.count)) {
    __syncthreads();  // the tiles before have been read
    if (threadIdx.x < kBlock) {
      rates[threadIdx.x] =
          kLog2E * args.log_beta[at.place + (int64_t{block} * kBlock + threadIdx.x) * args.shape.heads];
    }
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < kBlock * kBlock; n += kThreads) {
      const int i = n / kBlock, r = n % kBlock;
      const int later = first_block + r - block;
      powers[i][r] = power(rates[i], r);
      factors[i][r] = later > 0 ? power(rates[i], later * kBlock - i) : 0.0f;
    }
    __syncthreads();
    float added[4][4] = {};
#pragma unroll
    for (int step = 0; step < kBlock / 8; ++step) {
      const int i = step * 8 + lane % 4;
      Halves<4> left;
#pragma unroll
      for (int e = 0; e < 4; ++e) left.set(e, factors[i + e / 2 * 4][b + e % 2 * 8]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Halves<2> right;
#pragma unroll
        for (int e = 0; e < 2; ++e) right.set(e, powers[i + e * 4][half + n * 8 + lane / 4]);
        multiply_add(added[n], left, right);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n][e] += added[n][e];
    }
  }
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const int block = first_block + b + 8 * lower;
    if (block >= blocks) continue;
    float* to = splits.row(plane, split) + int64_t{block} * kBlock + half + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = {sums[n][2 * lower], sums[n][2 * lower + 1]};
    }
  }
}

// S of a token: what all splits say, and the tokens of its own block. A thread a token; of all heads it is left where
// the first split stood.
__global__ void own_kernel(OccupancyArgs args, Splits splits, int64_t tiles) {
  const RowTile tile = row_tile(tiles, kThreads);  // row: plane
  const Head at = head_of(args.shape, tile.row);
  const int64_t t = tile.first + threadIdx.x;
  if (t >= at.segment.count) return;
  float sum = 0;
  for (int64_t split = 0; split < splits.count; ++split) sum += splits.row(tile.row, split)[t];
  float own = 0;
  for (int64_t i = t / kBlock * kBlock; i <= t; ++i) {
    own += power(kLog2E * args.log_beta[at.place + i * args.shape.heads], static_cast<int>(t - i));
  }
  sum += own;
  if (args.of == OccupancyOf::kEachHead) {
    args.occupancy[at.place + t * args.shape.heads] += sum;
  } else {
    splits.row(tile.row, 0)[t] = sum;
  }
}

// A thread a token, heads in their order.
__global__ void add_heads_kernel(OccupancyArgs args, Splits splits, int64_t tiles) {
  const RowTile tile = row_tile(tiles, kThreads);  // row: segment
  const TokenHeads& shape = args.shape;
  const Segment segment = shape.segments[tile.row];
  const int64_t t = tile.first + threadIdx.x;
  if (t >= segment.count) return;
  double sum = 0;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const int64_t first = (layer * shape.segment_count + tile.row) * shape.heads;
    for (int64_t plane = first; plane < first + shape.heads; ++plane) sum += double{splits.row(plane, 0)[t]};
  }
  args.occupancy[segment.first_token + t] += static_cast<float>(sum);
}

// The tokens of i's own block.
__device__ float own_gradient(const float* slopes, int64_t stride, float rate, int i, int count) {
  float sum = 0;
  const int most = min((i / kBlock + 1) * kBlock, count) - i;
#pragma unroll 4
  for (int age = 1; age < most; ++age) {
    sum += slopes[(i + age) * stride] * static_cast<float>(age) * power(rate, age);
  }
  return sum;
}

// A warp has 32 tokens i, the powers β_i^r of which are its left operands. The age of a pair parts as its power does:
//   Σ_r slope · (age + r) β^{age + r} = β^age · (age · Σ_r slope · β^r + Σ_r slope · r β^r)
// Both sums over r are products with the slopes of later blocks, eight at a time.
constexpr int kStagedBlocks = 8;
__global__ void __launch_bounds__(kBackwardThreads) backward_kernel(OccupancyBackwardArgs args, int64_t tiles) {
  constexpr int kSteps = kBlock / 8, kStaged = kStagedBlocks * kBlock;
  __shared__ float staged[kStagedBlocks][kBlock + 4];  // as kPitch, of eight rows
  __shared__ float own[kBackwardThreads];
  const RowTile tile = row_tile(tiles, kBackwardThreads);
  const TokenHeads& shape = args.shape;
  const Head at = head_of(shape, tile.row);
  const int count = at.segment.count;
  if (tile.first >= count) return;
  const auto first_token = static_cast<int>(tile.first);
  const bool each = args.of == OccupancyOf::kEachHead;
  const float* slopes = args.slopes + (each ? at.place : at.segment.first_token);
  const int64_t stride = each ? shape.heads : 1;
  const auto rate_of = [&](int i) {
    return i < count ? kLog2E * args.log_beta[at.place + int64_t{i} * shape.heads] : 0.0f;
  };
  const int mine = first_token + static_cast<int>(threadIdx.x);
  own[threadIdx.x] = mine < count ? own_gradient(slopes, stride, rate_of(mine), mine, count) : 0.0f;

  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 32 + lane / 4;
  float rates[4], sums[4] = {};  // of tokens row + 8k
#pragma unroll
  for (int k = 0; k < 4; ++k) rates[k] = rate_of(first_token + row + 8 * k);
  Halves<4> powers[2][kSteps];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        powers[m][step].set(e, power(rates[2 * m + e % 2], step * 8 + lane % 4 + e / 2 * 4));
      }
    }
  }
  for (int first = first_token / kStaged * kStaged; first < count; first += kStaged) {
    __syncthreads();  // the blocks before have been read
    for (int n = static_cast<int>(threadIdx.x); n < kStaged; n += kBackwardThreads) {
      staged[n / kBlock][n % kBlock] = first + n < count ? slopes[(int64_t{first} + n) * stride] : 0.0f;
    }
    __syncthreads();
    float plain[2][4] = {}, aged[2][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Halves<2> right, right_aged;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int r = step * 8 + lane % 4 + e * 4;
        const float slope = staged[lane / 4][r];
        right.set(e, slope);
        right_aged.set(e, slope * static_cast<float>(r));
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(plain[m], powers[m][step], right);
        multiply_add(aged[m], powers[m][step], right_aged);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int block = first + (lane % 4 * 2 + e) * kBlock, age = block - (first_token + row + 8 * k);
        if (age <= 0 || block >= count) continue;  // of the own block, or none
        const int of = k % 2 * 2 + e;
        sums[k] += power(rates[k], age) * (static_cast<float>(age) * plain[k / 2][of] + aged[k / 2][of]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sums[k] += __shfl_xor_sync(kWarp, sums[k], 1);
    sums[k] += __shfl_xor_sync(kWarp, sums[k], 2);
    const int i = first_token + row + 8 * k;
    if (lane % 4 == 0 && i < count) args.gradient[at.place + int64_t{i} * shape.heads] += own[row + 8 * k] + sums[k];
  }
}

// So many thread blocks, where earlier tokens can be shared out among them, on any card: the order of sums, too, is
// that of the shape alone.
constexpr int64_t kWantedBlocks = 512;

}  // namespace

void occupancy(const OccupancyArgs& args) {
  const TokenHeads& shape = args.shape;
  const int64_t planes = planes_of(shape);
  if (planes == 0 || shape.max_count == 0) return;
  const int64_t tiles = ceil_div(shape.max_count, kBlock * kBlock), blocks = ceil_div(shape.max_count, kBlock);
  const int64_t count = std::clamp<int64_t>(kWantedBlocks / (planes * tiles), 1, blocks);
  const Scratch<float> sums(planes * count * blocks * kBlock);
  const Splits splits{sums.data(), tiles, count, blocks * kBlock};
  launch(earlier_kernel, planes * tiles * count, kThreads, 0, args, splits);
  const int64_t token_tiles = ceil_div(shape.max_count, kThreads);
  launch(own_kernel, planes * token_tiles, kThreads, 0, args, splits, token_tiles);
  if (args.of == OccupancyOf::kEachHead) return;
  launch(add_heads_kernel, shape.segment_count * token_tiles, kThreads, 0, args, splits, token_tiles);
}

void occupancy_backward(const OccupancyBackwardArgs& args) {
  const int64_t tiles = ceil_div(args.shape.max_count, kBackwardThreads);
  launch(backward_kernel, planes_of(args.shape) * tiles, kBackwardThreads, 0, args, tiles);
}

}  // namespace kv::cuda
