#include "kernels/rate_entries.h"

#include "kernels/cuda/device.cuh"

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

// A thread an entry, the hidden layer in registers.
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
