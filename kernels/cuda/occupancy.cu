#include "kernels/occupancy.h"

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"

// Where there are T² / 2 pairs, this takes T · log T powers. Over a block of B tokens that begins at least B after
// token i, what i counts for is smooth in where in the block u, from 0 to 1, the token t stands: with x = −B log β_i
// and d >= 1 blocks from i to the block's beginning
//   β_i^{t − i} = e^{−x (d + u)},  and for the gradient (t − i) β_i^{t − i} = B (d + u) e^{−x (d + u)}
// The polynomial of u through the kNodes Chebyshev nodes is off by at most 1.6e-13, and by 4e-14 · B, whatever x is:
// less than f32's roundings of its values. So powers are taken at the nodes alone. Of blocks there are levels, of 64
// tokens, 128, 256 and so on. On each, tokens of block p count for block p + 2 and, where p is even, for p + 3: all
// later ones that are not next to p, but lie in the next level's block of p or the one behind it. What is too near on
// the lowest level, the token's own block and the next one, is added up pair by pair.

namespace kv::cuda {

namespace {

constexpr int kBlockBits = 6;
constexpr int kBlock = 1 << kBlockBits;  // tokens of a block of the lowest level
constexpr int kNodes = 16;
constexpr int kGroup = 256;  // tokens that a thread block has
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostLevels = 25;  // of 2^31 tokens

// A row's blocks of all levels lie one behind the other, and so do its chunks: tokens that a warp adds up, a block's
// or, of long ones, kGroup of them.
struct Levels {
  int count = 0;
  int64_t blocks = 0, chunks = 0;  // of a row
  int64_t first_block[kMostLevels], first_chunk[kMostLevels];

  explicit Levels(int64_t max_count) {
    for (int64_t tokens = kBlock; 2 * tokens < max_count; tokens *= 2) {  // else no block is far from another
      KV_CHECK(count < kMostLevels);
      first_block[count] = blocks;
      first_chunk[count] = chunks;
      blocks += ceil_div(max_count, tokens);
      chunks += ceil_div(max_count, std::min<int64_t>(tokens, kGroup));
      ++count;
    }
  }
};
__device__ int64_t block_tokens(int level) { return int64_t{kBlock} << level; }
__device__ int64_t block_of(int64_t token, int level) { return token >> (kBlockBits + level); }
// Where in its block a token stands, from -1 on to 1; f32 has it exactly.
__device__ float place_in_block(int64_t token, int level) {
  const int64_t tokens = block_tokens(level);
  return static_cast<float>(token & (tokens - 1)) * (2.0f / static_cast<float>(tokens)) - 1;
}
__device__ int chunk_tokens(int level) { return level < 2 ? kBlock << level : kGroup; }
static_assert(kBlock << 2 == kGroup);

// What a warp adds up of the group of tokens that its thread block has: the higher levels' one chunk first.
struct Chunk {
  int level;
  int first;  // token of the group

  __device__ Chunk(const Levels& levels, int task) {
    const int whole = max(levels.count - 2, 0);
    level = task < whole ? levels.count - 1 - task : (task - whole < 2 && levels.count > 1 ? 1 : 0);
    first = task < whole ? 0 : (task - whole - (level == 0 && levels.count > 1 ? 2 : 0)) * chunk_tokens(level);
  }
  __device__ static int count(const Levels& levels) {
    return max(levels.count - 2, 0) + (levels.count > 1 ? 2 : 0) + (levels.count > 0 ? 4 : 0);
  }
  __device__ int64_t place(const Levels& levels, int64_t first_token) const {
    return levels.first_chunk[level] + (first_token + first) / chunk_tokens(level);
  }
};

// Block `index` of those of all levels.
struct Block {
  int level = 0;
  int64_t number;
  __device__ Block(const Levels& levels, int64_t index) {
    while (level + 1 < levels.count && index >= levels.first_block[level + 1]) ++level;
    number = index - levels.first_block[level];
  }
  __device__ int64_t first_token() const { return number * block_tokens(level); }
  __device__ int64_t chunks() const { return block_tokens(level) / chunk_tokens(level); }
  __device__ int64_t first_chunk(const Levels& levels, int64_t of_number) const {
    return levels.first_chunk[level] + of_number * chunks();
  }
};

// One head of one sequence.
struct Head {
  Segment segment;
  int64_t place;  // of its first token
};
__device__ Head head_of(const TokenHeads& shape, int64_t plane) {
  const int64_t head = plane % shape.heads, row = plane / shape.heads;
  const Segment segment = shape.segments[row % shape.segment_count];
  return {segment, shape.place(row / shape.segment_count, segment, 0) + head};
}
__host__ int64_t planes_of(const TokenHeads& shape) { return shape.layers * shape.segment_count * shape.heads; }

__device__ float power(float rate, float age) { return exp2_fast(rate * age); }

// Where in a block its nth node is, and T_k there: cos of an angle that f32 has exactly, as a fraction of π.
__device__ float node(int n) { return 0.5f + 0.5f * cospif(static_cast<float>(2 * n + 1) / (2 * kNodes)); }
__device__ float chebyshev_at_node(int k, int n) {
  return cospif(static_cast<float>(k * (2 * n + 1) % (4 * kNodes)) / (2 * kNodes));
}
// The kth coefficient of the polynomial through values at the nodes is Σ_n value_n · share_of_node(k, n).
__device__ float share_of_node(int k, int n) { return (k == 0 ? 1.0f : 2.0f) / kNodes * chebyshev_at_node(k, n); }

// ---- Forward --------------------------------------------------------------------------------------------------------

// left[plane, chunk, 2, kNodes]: what a chunk's tokens count for at the nodes of the two blocks that are theirs.
__global__ void __launch_bounds__(kThreads)
    leave_to_nodes(OccupancyArgs args, Levels levels, int64_t groups, float* left) {
  __shared__ float rates[kGroup];
  const RowTile group = row_tile(groups, kGroup);  // row: plane
  const Head at = head_of(args.shape, group.row);
  const int64_t count = at.segment.count;
  if (group.first + 2 * kBlock >= count) return;  // no block begins so late
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, n = lane % kNodes, behind = lane / kNodes;
  const int64_t mine = group.first + thread;
  rates[thread] = mine < count ? kToLog2 * args.log_beta[at.place + mine * args.shape.heads] : 0.0f;
  __syncthreads();
  const float of_node = node(n);
  for (int task = thread / 32; task < Chunk::count(levels); task += kWarps) {
    const Chunk chunk(levels, task);
    const int64_t tokens = block_tokens(chunk.level), first = group.first + chunk.first;
    const int64_t block = block_of(first, chunk.level), begin = (block + 2 + behind) * tokens;
    if (begin - behind * tokens >= count) continue;
    float age = static_cast<float>(begin - first) + of_node * static_cast<float>(tokens), sum = 0;
    for (int part = 0; part < chunk_tokens(chunk.level); part += kBlock) {
      float added = 0;
#pragma unroll 8
      for (int i = part; i < part + kBlock; ++i, age -= 1) added += power(rates[chunk.first + i], age);
      sum += added;
    }
    left[(group.row * levels.chunks + chunk.place(levels, group.first)) * 32 + lane] = sum;
  }
}

// coefficients[plane, block, kNodes] of the polynomials that are what a block's tokens get from earlier ones. A warp a
// block: half of it for those two blocks before, half for those three before.
__global__ void __launch_bounds__(kThreads)
    make_coefficients(TokenHeads shape, Levels levels, int64_t all, const float* left, float* coefficients) {
  const int64_t index = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (index >= all) return;
  const Block block(levels, index % levels.blocks);
  const int64_t plane = index / levels.blocks;
  if (block.number < 2 || block.first_token() >= head_of(shape, plane).segment.count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, k = lane % kNodes, behind = lane / kNodes;
  float value = 0;
  if (behind == 0 || block.number % 2 == 1) {
    const int64_t first = block.first_chunk(levels, block.number - 2 - behind);
    for (int64_t chunk = first; chunk < first + block.chunks(); ++chunk) {
      value += left[(plane * levels.chunks + chunk) * 32 + lane];
    }
  }
  value += __shfl_xor_sync(kWarp, value, kNodes);
  float coefficient = 0;
#pragma unroll
  for (int n = 0; n < kNodes; ++n) coefficient += share_of_node(k, n) * __shfl_sync(kWarp, value, n);
  if (behind == 0) coefficients[index * kNodes + k] = coefficient;
}

// Σ_k c_k T_k(x), from the last term on (Clenshaw).
__device__ float polynomial(const float* coefficients, float x) {
  float c[kNodes];
#pragma unroll
  for (int k = 0; k < kNodes; k += 4) {
    const float4 four = *reinterpret_cast<const float4*>(coefficients + k);
    c[k] = four.x, c[k + 1] = four.y, c[k + 2] = four.z, c[k + 3] = four.w;
  }
  float next = 0, after = 0;
#pragma unroll
  for (int k = kNodes - 1; k > 0; --k) {
    const float here = 2 * x * next - after + c[k];
    after = next;
    next = here;
  }
  return x * next - after + c[0];
}

// S of a token, a thread each: what far ones leave, and pairs with near ones. Of all heads it goes to sums[plane, t].
__global__ void __launch_bounds__(kThreads)
    add_up(OccupancyArgs args, Levels levels, int64_t groups, const float* coefficients, float* sums, int64_t pitch) {
  __shared__ float rates[kBlock + kGroup];
  const RowTile group = row_tile(groups, kGroup);  // row: plane
  const Head at = head_of(args.shape, group.row);
  const int64_t count = at.segment.count, first = group.first - kBlock;
  if (group.first >= count) return;
  for (int i = static_cast<int>(threadIdx.x); i < kBlock + kGroup; i += kThreads) {
    const int64_t token = first + i;
    rates[i] = token >= 0 && token < count ? kToLog2 * args.log_beta[at.place + token * args.shape.heads] : 0.0f;
  }
  __syncthreads();
  const int64_t t = group.first + threadIdx.x;
  if (t >= count) return;
  const auto mine = static_cast<int>(t - first), block = mine / kBlock * kBlock;
  float before = 0, own = 0, age = static_cast<float>(mine - block);
  if (t >= kBlock) {
    float of_before = age + kBlock;
#pragma unroll 8
    for (int i = block - kBlock; i < block; ++i, of_before -= 1) before += power(rates[i], of_before);
  }
#pragma unroll 4
  for (int i = block; i <= mine; ++i, age -= 1) own += power(rates[i], age);
  float sum = own + before;
  for (int level = 0; level < levels.count; ++level) {
    const int64_t number = block_of(t, level);
    if (number < 2) break;
    sum += polynomial(coefficients + (group.row * levels.blocks + levels.first_block[level] + number) * kNodes,
                      place_in_block(t, level));
  }
  if (args.of == OccupancyOf::kEachHead) {
    args.occupancy[at.place + t * args.shape.heads] += sum;
  } else {
    sums[group.row * pitch + t] = sum;
  }
}

// A thread a token, heads in their order.
__global__ void add_heads(OccupancyArgs args, int64_t groups, const float* sums, int64_t pitch) {
  const RowTile group = row_tile(groups, kGroup);  // row: segment
  const TokenHeads& shape = args.shape;
  const Segment segment = shape.segments[group.row];
  const int64_t t = group.first + threadIdx.x;
  if (t >= segment.count) return;
  double sum = 0;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const int64_t first = (layer * shape.segment_count + group.row) * shape.heads;
    for (int64_t plane = first; plane < first + shape.heads; ++plane) sum += double{sums[plane * pitch + t]};
  }
  args.occupancy[segment.first_token + t] += static_cast<float>(sum);
}

// ---- Backward -------------------------------------------------------------------------------------------------------

// The slopes of a head or, of all heads' occupancy, of a sequence: a row.
struct Slopes {
  const float* first;
  int64_t stride, count;

  __device__ Slopes(const OccupancyBackwardArgs& args, int64_t row) {
    if (args.of == OccupancyOf::kEachHead) {
      const Head at = head_of(args.shape, row);
      first = args.slopes + at.place, stride = args.shape.heads, count = at.segment.count;
    } else {
      const Segment segment = args.shape.segments[row];
      first = args.slopes + segment.first_token, stride = 1, count = segment.count;
    }
  }
  __device__ float at(int64_t token) const { return token < count ? first[token * stride] : 0.0f; }
};
__host__ int64_t slope_rows(const OccupancyBackwardArgs& args) {
  return args.of == OccupancyOf::kEachHead ? planes_of(args.shape) : args.shape.segment_count;
}
__device__ int64_t row_of_plane(const OccupancyBackwardArgs& args, int64_t plane) {
  return args.of == OccupancyOf::kEachHead ? plane : plane / args.shape.heads % args.shape.segment_count;
}

// moments[row, chunk, kNodes]: Σ_t slope(t) · T_k(where t stands in its block).
__global__ void __launch_bounds__(kThreads)
    make_moments(OccupancyBackwardArgs args, Levels levels, int64_t groups, float* moments) {
  const RowTile group = row_tile(groups, kGroup);  // row: of slopes
  const Slopes slopes(args, group.row);
  if (group.first >= slopes.count) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  for (int task = thread / 32; task < Chunk::count(levels); task += kWarps) {
    const Chunk chunk(levels, task);
    const int64_t first = group.first + chunk.first;
    if (first >= slopes.count) continue;
    float sums[kNodes] = {};
    for (int i = lane; i < chunk_tokens(chunk.level); i += 32) {
      const float slope = slopes.at(first + i), x = place_in_block(first + i, chunk.level);
      float before = slope, here = slope * x;
      sums[0] += before;
      sums[1] += here;
#pragma unroll
      for (int k = 2; k < kNodes; ++k) {
        const float next = 2 * x * here - before;
        before = here;
        here = next;
        sums[k] += here;
      }
    }
    float mine = 0;
#pragma unroll
    for (int k = 0; k < kNodes; ++k) {
      const float sum = warp_reduce(sums[k], Add());
      if (lane == k) mine = sum;
    }
    if (lane < kNodes) moments[(group.row * levels.chunks + chunk.place(levels, group.first)) * kNodes + lane] = mine;
  }
}

// weights[row, block, kNodes]: what a value at a node of the block changes the loss by. A warp a block.
__global__ void __launch_bounds__(kThreads)
    make_weights(OccupancyBackwardArgs args, Levels levels, int64_t all, const float* moments, float* weights) {
  const int64_t index = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (index >= all) return;
  const Block block(levels, index % levels.blocks);
  const int64_t row = index / levels.blocks, count = Slopes(args, row).count;
  if (block.number < 2 || block.first_token() >= count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, n = lane % kNodes;
  const int64_t first = block.first_chunk(levels, block.number);
  const int64_t tokens = min(block_tokens(block.level), count - block.first_token()),
                of_chunk = chunk_tokens(block.level);
  const int64_t chunks = (tokens + of_chunk - 1) / of_chunk;  // those behind the end were not made
  float moment = 0;
  for (int64_t chunk = lane / kNodes; chunk < chunks; chunk += 2) {
    moment += moments[(row * levels.chunks + first + chunk) * kNodes + n];
  }
  moment += __shfl_xor_sync(kWarp, moment, kNodes);
  float weight = 0;
#pragma unroll
  for (int k = 0; k < kNodes; ++k) weight += share_of_node(k, n) * __shfl_sync(kWarp, moment, k);
  if (lane < kNodes) weights[index * kNodes + n] = weight;
}

// The gradient of a token, a thread each.
__global__ void __launch_bounds__(kThreads)
    add_gradients(OccupancyBackwardArgs args, Levels levels, int64_t groups, const float* weights) {
  __shared__ float staged[kGroup + kBlock], nodes[kNodes];
  const RowTile group = row_tile(groups, kGroup);  // row: plane
  const Head at = head_of(args.shape, group.row);
  const int64_t count = at.segment.count, row = row_of_plane(args, group.row);
  if (group.first >= count) return;
  const Slopes slopes(args, row);
  const int mine = static_cast<int>(threadIdx.x);
  for (int i = mine; i < kGroup + kBlock; i += kThreads) staged[i] = slopes.at(group.first + i);
  if (mine < kNodes) nodes[mine] = node(mine);
  __syncthreads();
  const int64_t i = group.first + mine;
  if (i >= count) return;
  const int64_t place = at.place + i * args.shape.heads;
  const float rate = kToLog2 * args.log_beta[place];
  const auto near = [&](int begin, int end) {
    float sum = 0, age = static_cast<float>(begin - mine);
#pragma unroll 8
    for (int t = begin; t < end; ++t, age += 1) sum += staged[t] * age * power(rate, age);
    return sum;
  };
  const int next = (mine / kBlock + 1) * kBlock;  // what is staged beyond the end is 0
  float sum = near(mine + 1, next) + near(next, next + kBlock);
  for (int level = 0; level < levels.count; ++level) {
    const int64_t tokens = block_tokens(level), number = block_of(i, level);
    for (int64_t far = number + 2; far <= number + (number % 2 == 0 ? 3 : 2); ++far) {
      if (far * tokens >= count) break;
      const float begin = static_cast<float>(far * tokens - i);
      const float* of_block = weights + (row * levels.blocks + levels.first_block[level] + far) * kNodes;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kNodes; ++n) {
        const float age = begin + nodes[n] * static_cast<float>(tokens);
        added += of_block[n] * age * power(rate, age);
      }
      sum += added;
    }
  }
  args.gradient[place] += sum;
}

}  // namespace

void occupancy(const OccupancyArgs& args) {
  const TokenHeads& shape = args.shape;
  const int64_t planes = planes_of(shape);
  if (planes == 0 || shape.max_count == 0) return;
  const Levels levels(shape.max_count);
  const int64_t groups = ceil_div(shape.max_count, kGroup), blocks = planes * levels.blocks;
  const bool each = args.of == OccupancyOf::kEachHead;
  const Scratch<float> coefficients(blocks * kNodes), sums(each ? 0 : planes * shape.max_count);
  if (levels.count > 0) {
    const Scratch<float> left(planes * levels.chunks * 2 * kNodes);
    launch(leave_to_nodes, planes * groups, kThreads, 0, args, levels, groups, left.data());
    launch(make_coefficients, ceil_div(blocks, kWarps), kThreads, 0, shape, levels, blocks, left.data(),
           coefficients.data());
  }
  launch(add_up, planes * groups, kThreads, 0, args, levels, groups, coefficients.data(), sums.data(), shape.max_count);
  if (!each) launch(add_heads, shape.segment_count * groups, kGroup, 0, args, groups, sums.data(), shape.max_count);
}

void occupancy_backward(const OccupancyBackwardArgs& args) {
  const TokenHeads& shape = args.shape;
  const int64_t planes = planes_of(shape);
  if (planes == 0 || shape.max_count == 0) return;
  const Levels levels(shape.max_count);
  const int64_t groups = ceil_div(shape.max_count, kGroup), rows = slope_rows(args), blocks = rows * levels.blocks;
  const Scratch<float> weights(blocks * kNodes);
  if (levels.count > 0) {
    const Scratch<float> moments(rows * levels.chunks * kNodes);
    launch(make_moments, rows * groups, kThreads, 0, args, levels, groups, moments.data());
    launch(make_weights, ceil_div(blocks, kWarps), kThreads, 0, args, levels, blocks, moments.data(), weights.data());
  }
  launch(add_gradients, planes * groups, kThreads, 0, args, levels, groups, weights.data());
}

}  // namespace kv::cuda
