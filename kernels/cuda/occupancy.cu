#include "kernels/occupancy.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

// Powers come apart: with t = kBlock · b + r it is β_i^{t − i} = β_i^{kBlock · b − i} · β_i^r. So what a block of
// tokens leaves to the later ones is a product of matrices, [later blocks, kBlock] · [kBlock, kBlock], and its factors
// are far fewer powers than there are pairs. Products are f32: bf16 would not tell β near 1 from 1.
constexpr int kBlock = 64;
constexpr int kThreads = 256;
constexpr int kBackwardThreads = 128;  // tokens whose gradient a block makes
constexpr int kStaged = 256;           // slopes that it holds
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

__device__ float power(float rate, int64_t age) { return exp2f(rate * static_cast<float>(age)); }

// What the tokens of earlier blocks count for: sums[plane, split, t], a tile of kBlock blocks of t a thread block, of
// every splits-th block of earlier tokens.
struct Splits {
  float* sums;
  int64_t tiles;  // a sequence
  int64_t count;
  int64_t pitch;

  __device__ float* row(int64_t plane, int64_t split) const { return sums + (plane * count + split) * pitch; }
};

__global__ void __launch_bounds__(kThreads) earlier_kernel(OccupancyArgs args, Splits splits) {
  __shared__ __align__(16) float factors[kBlock][kBlock], powers[kBlock][kBlock];  // [i, b], [i, r]
  __shared__ float rates[kBlock];
  const int64_t split = blockIdx.x % splits.count, tile = blockIdx.x / splits.count % splits.tiles;
  const int64_t plane = blockIdx.x / splits.count / splits.tiles;
  const Head at = head_of(args.shape, plane);
  const int64_t first_block = tile * kBlock, blocks = (at.segment.count + kBlock - 1) / kBlock;
  if (first_block >= blocks) return;
  const int x = static_cast<int>(threadIdx.x) % 16 * 4, y = static_cast<int>(threadIdx.x) / 16 * 4;
  float sums[4][4] = {};
  for (int64_t block = split; block < min(first_block + kBlock, blocks) - 1; block += splits.count) {
    __syncthreads();  // the tiles before have been read
    if (threadIdx.x < kBlock) {
      rates[threadIdx.x] = kLog2E * args.log_beta[at.place + (block * kBlock + threadIdx.x) * args.shape.heads];
    }
    __syncthreads();
    for (int n = static_cast<int>(threadIdx.x); n < kBlock * kBlock; n += kThreads) {
      const int i = n / kBlock, r = n % kBlock;
      const int64_t later = first_block + r - block;
      powers[i][r] = power(rates[i], r);
      factors[i][r] = later > 0 ? power(rates[i], later * kBlock - i) : 0.0f;
    }
    __syncthreads();
    float added[4][4] = {};
#pragma unroll 8
    for (int i = 0; i < kBlock; ++i) {
      const float4 f = *reinterpret_cast<const float4*>(&factors[i][y]);
      const float4 p = *reinterpret_cast<const float4*>(&powers[i][x]);
      const float by[4] = {f.x, f.y, f.z, f.w}, of[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
#pragma unroll
        for (int r = 0; r < 4; ++r) added[b][r] += by[b] * of[r];
      }
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[b][r] += added[b][r];
    }
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if (first_block + y + b >= blocks) break;
    float* to = splits.row(plane, split) + (first_block + y + b) * kBlock + x;
    *reinterpret_cast<float4*>(to) = {sums[b][0], sums[b][1], sums[b][2], sums[b][3]};
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
    own += power(kLog2E * args.log_beta[at.place + i * args.shape.heads], t - i);
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

// A thread a token i, whose powers β_i^r it keeps in registers; slopes come past in tiles. The age of a pair parts as
// its power does:
//   Σ_r slope · (age + r) β^{age + r} = β^age · (age · Σ_r slope · β^r + Σ_r slope · r β^r)
__global__ void __launch_bounds__(kBackwardThreads) backward_kernel(OccupancyBackwardArgs args, int64_t tiles) {
  __shared__ __align__(16) float2 staged[kStaged];  // slope, slope · r
  const RowTile tile = row_tile(tiles, kBackwardThreads);
  const TokenHeads& shape = args.shape;
  const Head at = head_of(shape, tile.row);
  const int64_t count = at.segment.count;
  if (tile.first >= count) return;
  const bool each = args.of == OccupancyOf::kEachHead;
  const float* slopes = args.slopes + (each ? at.place : at.segment.first_token);
  const int64_t stride = each ? shape.heads : 1;
  const int64_t i = tile.first + threadIdx.x;
  const float rate = i < count ? kLog2E * args.log_beta[at.place + i * shape.heads] : 0.0f;
  const int64_t own_end = min((i / kBlock + 1) * kBlock, count);
  float powers[kBlock], sum = 0;
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    powers[r] = power(rate, r);
    if (i + r < own_end) sum += slopes[(i + r) * stride] * static_cast<float>(r) * powers[r];
  }
  for (int64_t first = tile.first; first < count; first += kStaged) {
    __syncthreads();  // the tile before has been read
    for (int n = static_cast<int>(threadIdx.x); n < kStaged; n += kBackwardThreads) {
      const float slope = first + n < count ? slopes[(first + n) * stride] : 0.0f;
      staged[n] = {slope, slope * static_cast<float>(n % kBlock)};
    }
    __syncthreads();
    for (int b = 0; b < kStaged; b += kBlock) {
      if (first + b <= i || first + b >= count) continue;  // all threads of a warp alike
      float plain[2] = {}, aged[2] = {};
#pragma unroll
      for (int r = 0; r < kBlock; r += 2) {
        const float4 two = *reinterpret_cast<const float4*>(&staged[b + r]);
        plain[0] += two.x * powers[r], aged[0] += two.y * powers[r];
        plain[1] += two.z * powers[r + 1], aged[1] += two.w * powers[r + 1];
      }
      const int64_t age = first + b - i;
      sum += power(rate, age) * (static_cast<float>(age) * (plain[0] + plain[1]) + (aged[0] + aged[1]));
    }
  }
  if (i < count) args.gradient[at.place + i * shape.heads] += sum;
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
