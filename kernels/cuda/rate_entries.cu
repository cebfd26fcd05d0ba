#include "kernels/rate_entries.h"

#include <algorithm>

#include "kernels/cuda/mma.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBackwardThreads = 256;
constexpr int kBackwardTile = 32;  // entries whose inputs a block holds

__device__ float normal_below(float a) { return 0.5f * (1.0f + erff(a * 0.70710678f)); }
__device__ float normal_density(float a) { return expf(-0.5f * a * a) * 0.39894228f; }

// Parameters of a head, as they lie one behind the other.
struct Parameters {
  const float* weights;
  const float* bias;
  const float* output_weights;
  const float* output_bias;
};
__device__ Parameters parameters_of(const float* all, int inputs, int hidden) {
  const float* bias = all + int64_t{inputs} * hidden;
  return {all, bias, bias + hidden, bias + 2 * hidden};
}

// a[h] += x · W1[input, h]; the weights are in shared memory, and all threads read the same ones.
template <int H>
__device__ void add_input(float x, const float* weights, int input, float (&a)[H]) {
  const auto* row = reinterpret_cast<const float4*>(weights + input * H);
#pragma unroll
  for (int h = 0; h < H / 4; ++h) {
    const float4 w = row[h];
    a[4 * h] += x * w.x, a[4 * h + 1] += x * w.y, a[4 * h + 2] += x * w.z, a[4 * h + 3] += x * w.w;
  }
}

template <int H>
__device__ void add_vector(const bf16* vector, int dim, const float* weights, int first_input, float (&a)[H]) {
  int d = 0;
  if (dim % 8 == 0) {
    for (; d < dim; d += 8) {
      const uint4 raw = *reinterpret_cast<const uint4*>(vector + d);
      const auto* pairs = reinterpret_cast<const uint32_t*>(&raw);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 x = to_f32_pair(pairs[e]);
        add_input(x.x, weights, first_input + d + 2 * e, a);
        add_input(x.y, weights, first_input + d + 2 * e + 1, a);
      }
    }
  }
  for (; d < dim; ++d) add_input(to_f32(vector[d]), weights, first_input + d, a);
}

// A thread an entry, the hidden layer in registers: for the features alone, and for vectors of odd dimensions.
template <int H>
__global__ void __launch_bounds__(kThreads) rate_kernel(RateEntriesArgs args, int64_t tiles) {
  extern __shared__ __align__(16) float shared[];
  const EntryNetwork& network = args.network;
  const PagedView& cache = args.cache;
  const RowTile at = row_tile(tiles, kThreads);
  const int64_t count = cache.lengths[at.row] - args.drop_newest;
  if (!is_due(args.rows_due, at.row) || at.first >= count) return;
  const int inputs = network.inputs();
  const auto parameters = static_cast<int>(network.parameter_count());
  const float* all = network.parameters + at.row % cache.kv_heads * int64_t{parameters};
  for (int i = static_cast<int>(threadIdx.x); i < parameters; i += kThreads) shared[i] = all[i];
  __syncthreads();
  const int64_t slot = at.first + threadIdx.x;
  if (slot >= count) return;
  const Parameters of = parameters_of(shared, inputs, H);
  float a[H];
#pragma unroll
  for (int h = 0; h < H; ++h) a[h] = of.bias[h];
  if (network.entry_dim > 0) {
    add_vector(key_of(cache, at.row, slot), network.entry_dim, of.weights, 0, a);
    add_vector(value_of(cache, at.row, slot), network.entry_dim, of.weights, network.entry_dim, a);
  }
  for (int f = 0; f < network.feature_count; ++f) {
    add_input(network.features.row(at.row * network.feature_count + f)[slot], of.weights, 2 * network.entry_dim + f, a);
  }
  float y = *of.output_bias;
#pragma unroll
  for (int h = 0; h < H; ++h) y += of.output_weights[h] * (a[h] * normal_below(a[h]));
  args.output.row(at.row)[slot] = y;
}

// Keys and values on the tensor cores. They are bf16, so that products with weights cut into three bf16 parts are as
// exact as those of f32. A warp rates 32 entries, as two tiles of 16 rows; a lane reads 16 bytes of an entry's vector
// at a time, which serve two products of depth 16: which values these take from a vector does not matter as long as the
// weights are taken alike (Fragments).
constexpr int kTensorThreads = 256, kEntriesAWarp = 32, kParts = 3;
constexpr int kTensorEntries = kTensorThreads / 32 * kEntriesAWarp;  // a block, at a time

// The weights of keys and values as each lane wants them: [step of 16 inputs, tile of 8 units, part, lane].
template <int H>
struct Fragments {
  static constexpr int kTiles = H / 8;
  __host__ __device__ static size_t bytes(int entry_inputs) {
    return sizeof(uint2) * entry_inputs / 16 * kTiles * kParts * 32;
  }
  uint2* parts;

  __device__ const uint2& at(int step, int tile, int part, int lane) const {
    return parts[((step * kTiles + tile) * kParts + part) * 32 + lane];
  }
  // Input `i` of the four that a lane holds of a step, of its vector.
  __device__ static int input(int step, int lane, int i) { return step / 2 * 32 + lane % 4 * 8 + step % 2 * 4 + i; }

  __device__ void cut(const float* weights, int steps) const {
    for (int i = static_cast<int>(threadIdx.x); i < steps * kTiles * 32; i += kTensorThreads) {
      const int lane = i % 32, tile = i / 32 % kTiles, step = i / 32 / kTiles;
      float rest[4];
      for (int k = 0; k < 4; ++k) rest[k] = weights[input(step, lane, k) * H + tile * 8 + lane / 4];
      for (int part = 0; part < kParts; ++part) {
        bf16 cut[4];
        for (int k = 0; k < 4; ++k) {
          cut[k] = __float2bfloat16(rest[k]);
          rest[k] -= __bfloat162float(cut[k]);
        }
        parts[((step * kTiles + tile) * kParts + part) * 32 + lane] = {pair(cut[0], cut[1]), pair(cut[2], cut[3])};
      }
    }
  }
  __device__ static uint32_t pair(bf16 low, bf16 high) {
    return __bfloat16_as_ushort(low) | uint32_t{__bfloat16_as_ushort(high)} << 16;
  }
};

// A lane's four rows of its warp's entries are lane / 4 + 8 r; its hidden units, of each tile of 8, lane % 4 · 2 and
// the next.
template <int H>
struct HiddenSums {
  static constexpr int kTiles = H / 8;
  float a[4][kTiles][2];

  __device__ void start(const float* bias) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float of_unit = bias[n * 8 + threadIdx.x % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r][n][e] = of_unit;
      }
    }
  }

  // Sixteen inputs: x[r] are a lane's four of each row.
  __device__ void add_vectors(const uint2 (&x)[4], const Fragments<H>& weights, int step) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t rows[4] = {x[2 * m].x, x[2 * m + 1].x, x[2 * m].y, x[2 * m + 1].y};
        float sums[4] = {a[2 * m][n][0], a[2 * m][n][1], a[2 * m + 1][n][0], a[2 * m + 1][n][1]};
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
          const uint2 w = weights.at(step, n, part, threadIdx.x % 32);
          multiply_add(sums, rows, w.x, w.y);
        }
        a[2 * m][n][0] = sums[0], a[2 * m][n][1] = sums[1];
        a[2 * m + 1][n][0] = sums[2], a[2 * m + 1][n][1] = sums[3];
      }
    }
  }

  // `feature` is of the lane's own entry; all lanes of a row take it from there.
  __device__ void add_feature(float feature, const float* weights) {
    float x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = __shfl_sync(kWarp, feature, threadIdx.x % 32 / 4 + 8 * r);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 w = *reinterpret_cast<const float2*>(weights + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r][n][0] += x[r] * w.x, a[r][n][1] += x[r] * w.y;
    }
  }

  // Of row r, without the bias; all lanes of the row get it.
  __device__ float output(int r, const float* output_weights) const {
    float y = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        y += output_weights[n * 8 + threadIdx.x % 4 * 2 + e] * (a[r][n][e] * normal_below(a[r][n][e]));
      }
    }
    y += __shfl_xor_sync(kWarp, y, 1);
    return y + __shfl_xor_sync(kWarp, y, 2);
  }
};

// The warp's 32 entries from `first` on. Those beyond the end are read as the last one, and not written.
template <int H>
__device__ void rate_warp(const RateEntriesArgs& args, int64_t row, int64_t first, int64_t count, const Parameters& of,
                          const Fragments<H>& weights, const float* feature_weights) {
  constexpr int kAhead = 8;  // features that are on their way at a time
  const PagedView& cache = args.cache;
  const int dim = args.network.entry_dim, features = args.network.feature_count, lane = threadIdx.x % 32;
  int64_t places[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    places[r] = place_of(cache, row, min(first + lane / 4 + 8 * r, count - 1)) * dim + lane % 4 * 8;
  }
  HiddenSums<H> sums;
  sums.start(of.bias);
  const auto* keys = static_cast<const bf16*>(cache.keys.data);
  const auto* values = static_cast<const bf16*>(cache.values.data);
#pragma unroll 4
  for (int from = 0; from < 2 * dim; from += 32) {
    const bf16* vectors = from < dim ? keys + from : values + (from - dim);
    uint4 x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = *reinterpret_cast<const uint4*>(vectors + places[r]);
    const uint2 low[4] = {{x[0].x, x[0].y}, {x[1].x, x[1].y}, {x[2].x, x[2].y}, {x[3].x, x[3].y}};
    const uint2 high[4] = {{x[0].z, x[0].w}, {x[1].z, x[1].w}, {x[2].z, x[2].w}, {x[3].z, x[3].w}};
    sums.add_vectors(low, weights, from / 16);
    sums.add_vectors(high, weights, from / 16 + 1);
  }
  const int64_t own = min(first + lane, count - 1);
  for (int f = 0; f < features; f += kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      ahead[k] = f + k < features ? args.network.features.row(row * features + f + k)[own] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (f + k < features) sums.add_feature(ahead[k], feature_weights + (f + k) * H);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float y = sums.output(r, of.output_weights);
    const int64_t slot = first + lane / 4 + 8 * r;
    if (lane % 4 == 0 && slot < count) args.output.row(row)[slot] = y + *of.output_bias;
  }
}

// A block cuts the weights once, for `rounds` tiles of entries of a row.
template <int H>
__global__ void __launch_bounds__(kTensorThreads, H <= 16 ? 2 : 1)
    rate_on_tensor_cores(RateEntriesArgs args, int64_t blocks_a_row, int rounds) {
  extern __shared__ __align__(16) unsigned char memory[];
  const EntryNetwork& network = args.network;
  const int64_t row = blockIdx.x / blocks_a_row, begin = blockIdx.x % blocks_a_row * rounds * kTensorEntries;
  const int64_t count = args.cache.lengths[row] - args.drop_newest;
  if (!is_due(args.rows_due, row) || begin >= count) return;
  const int dim = network.entry_dim;
  const Parameters of =
      parameters_of(network.parameters + row % args.cache.kv_heads * network.parameter_count(), network.inputs(), H);
  const Fragments<H> weights{reinterpret_cast<uint2*>(memory)};
  weights.cut(of.weights, 2 * dim / 16);
  auto* feature_weights = reinterpret_cast<float*>(memory + Fragments<H>::bytes(2 * dim));
  for (int i = static_cast<int>(threadIdx.x); i < network.feature_count * H; i += kTensorThreads) {
    feature_weights[i] = of.weights[2 * dim * H + i];
  }
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    const int64_t first = begin + round * kTensorEntries + threadIdx.x / 32 * kEntriesAWarp;
    if (first >= count) return;
    rate_warp<H>(args, row, first, count, of, weights, feature_weights);
  }
}

// What a block holds of its tile: inputs, and what each hidden unit's slope and output are.
template <int H>
struct BackwardTile {
  float* x;       // [tile, inputs]
  float* slope;   // [tile, H]: ∂/∂a
  float* output;  // [tile, H]: gradient of the output weight
  float* dy;      // [tile]

  static size_t bytes(int inputs) { return sizeof(float) * kBackwardTile * (inputs + 2 * H + 1); }
  __device__ BackwardTile(float* memory, int inputs)
      : x(memory),
        slope(x + kBackwardTile * inputs),
        output(slope + kBackwardTile * H),
        dy(output + kBackwardTile * H) {}
};

__device__ float input_of(const RateEntriesBackwardArgs& args, int64_t row, int64_t slot, int input) {
  const int dim = args.network.entry_dim;
  if (input < dim) return to_f32(key_of(args.cache, row, slot)[input]);
  if (input < 2 * dim) return to_f32(value_of(args.cache, row, slot)[input - dim]);
  return args.network.features.row(row * args.network.feature_count + input - 2 * dim)[slot];
}

// A block a row, tile after tile, each thread the owner of some parameters: sums have one order.
template <int H>
__global__ void __launch_bounds__(kBackwardThreads) backward_kernel(RateEntriesBackwardArgs args) {
  extern __shared__ __align__(16) float shared[];
  const EntryNetwork& network = args.network;
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int inputs = network.inputs(), thread = static_cast<int>(threadIdx.x);
  const int64_t count = args.cache.lengths[row] - args.drop_newest;
  const Parameters of =
      parameters_of(network.parameters + row % args.cache.kv_heads * network.parameter_count(), inputs, H);
  float* gradients = args.gradients + row * network.parameter_count();
  const BackwardTile<H> tile(shared, inputs);
  for (int64_t first = 0; first < count; first += kBackwardTile) {
    const int entries = static_cast<int>(min(int64_t{kBackwardTile}, count - first));
    __syncthreads();  // the tile before has been used
    for (int i = thread; i < entries * inputs; i += kBackwardThreads) {
      tile.x[i] = input_of(args, row, first + i / inputs, i % inputs);
    }
    if (thread < entries) tile.dy[thread] = args.output_gradient.row(row)[first + thread];
    __syncthreads();
    for (int i = thread; i < entries * H; i += kBackwardThreads) {
      const int entry = i / H, h = i % H;
      float a = of.bias[h];
      for (int d = 0; d < inputs; ++d) a += tile.x[entry * inputs + d] * of.weights[d * H + h];
      const float below = normal_below(a), dy = tile.dy[entry];
      tile.slope[i] = dy * of.output_weights[h] * (below + a * normal_density(a));
      tile.output[i] = dy * (a * below);
    }
    __syncthreads();
    for (int i = thread; i < inputs * H; i += kBackwardThreads) {
      float sum = 0;
      for (int e = 0; e < entries; ++e) sum += tile.x[e * inputs + i / H] * tile.slope[e * H + i % H];
      gradients[i] += sum;
    }
    float* bias = gradients + int64_t{inputs} * H;
    if (thread < 2 * H) {
      const float* terms = thread < H ? tile.slope + thread : tile.output + thread - H;
      float sum = 0;
      for (int e = 0; e < entries; ++e) sum += terms[e * H];
      bias[thread] += sum;
    } else if (thread == 2 * H) {
      float sum = 0;
      for (int e = 0; e < entries; ++e) sum += tile.dy[e];
      bias[thread] += sum;
    }
  }
}

template <class Args>
void check(const Args& args) {
  check_cache(args.cache);
  KV_CHECK(args.network.inputs() > 0);
  KV_CHECK(args.network.entry_dim == 0 || args.network.entry_dim == args.cache.head_dim);
}

template <int H>
void rate_with(const RateEntriesArgs& args) {
  const EntryNetwork& network = args.network;
  if (network.entry_dim > 0 && network.entry_dim % 32 == 0) {
    // Weights are cut for as many tiles as leave every multiprocessor its blocks.
    const int64_t tiles = ceil_div(args.cache.max_length, kTensorEntries);
    const int64_t most = std::clamp<int64_t>(args.cache.rows * tiles / (4 * multiprocessors()), 1, 4);
    const int64_t blocks = ceil_div(tiles, most), rounds = ceil_div(tiles, blocks);
    const size_t shared =
        Fragments<H>::bytes(2 * network.entry_dim) + static_cast<size_t>(network.feature_count * H) * sizeof(float);
    launch(rate_on_tensor_cores<H>, args.cache.rows * blocks, kTensorThreads, shared, args, blocks,
           static_cast<int>(rounds));
    return;
  }
  const int64_t tiles = ceil_div(args.cache.max_length, kThreads);
  const size_t shared = static_cast<size_t>(args.network.parameter_count()) * sizeof(float);
  launch(rate_kernel<H>, args.cache.rows * tiles, kThreads, shared, args, tiles);
}

template <int H>
void backward_with(const RateEntriesBackwardArgs& args) {
  const size_t shared = BackwardTile<H>::bytes(args.network.inputs());
  launch(backward_kernel<H>, args.cache.rows, kBackwardThreads, shared, args);
}

}  // namespace

void rate_entries(const RateEntriesArgs& args) {
  check(args);
  switch (args.network.hidden) {
    case 8:
      return rate_with<8>(args);
    case 16:
      return rate_with<16>(args);
    case 32:
      return rate_with<32>(args);
    case 64:
      return rate_with<64>(args);
  }
  KV_CHECK(false);
}

void rate_entries_backward(const RateEntriesBackwardArgs& args) {
  check(args);
  switch (args.network.hidden) {
    case 8:
      return backward_with<8>(args);
    case 16:
      return backward_with<16>(args);
    case 32:
      return backward_with<32>(args);
    case 64:
      return backward_with<64>(args);
  }
  KV_CHECK(false);
}

}  // namespace kv::cuda
