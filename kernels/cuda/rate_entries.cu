#include "kernels/rate_entries.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/gelu.cuh"
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
  for (int h = 0; h < H; ++h) y += of.output_weights[h] * gelu(a[h]);
  args.output.row(at.row)[slot] = y;
}

// On the tensor cores, as weights times entries. Keys and values are bf16, so that products with weights cut into three
// bf16 parts are as exact as those of f32; features are cut, too. A warp rates 32 entries at a time, as four tiles of
// eight; a lane reads 16 bytes of an entry's vector at a time, as they are wanted for two products of depth 16: which
// values these take from a vector does not matter as long as the weights are taken alike (Fragments). Blocks stay while
// their head has entries left: weights are cut once a block, and a warp's next entries are on their way while it is
// busy with others.
constexpr int kTensorThreads = 256, kTensorWarps = kTensorThreads / 32;
constexpr int kEntryTiles = 4, kEntriesAWarp = kEntryTiles * 8;
constexpr int kDepth = 16, kInputs = kDepth / 4;  // inputs of a product, and a lane's of them
constexpr int kParts = 3;
static_assert(kEntriesAWarp == 2 * kPageTokens);
template <int H>
constexpr int kTensorBlocks = H <= 16 ? 2 : 1;  // a multiprocessor's
template <int H>
constexpr int kUnitTiles = (H + 15) / 16;  // of 16 hidden units; those beyond the network's have no weights

__host__ __device__ int vector_products(const EntryNetwork& network) { return 2 * network.entry_dim / kDepth; }
__host__ __device__ int products_of(const EntryNetwork& network) {
  return vector_products(network) + (network.feature_count + kDepth - 1) / kDepth;
}

// The first of a lane's inputs of a product: two products share what lanes read of vectors.
__device__ int first_input(const EntryNetwork& network, int product, int lane) {
  if (product >= vector_products(network)) return product * kDepth + lane % 4 * kInputs;
  return product / 2 * 2 * kDepth + lane % 4 * 2 * kInputs + product % 2 * kInputs;
}

// The largest bf16 part of two numbers, and what it leaves of them.
__device__ uint32_t cut_pair(float& low, float& high) {
  const uint32_t pair = to_bf16_pair(low, high);
  const float2 cut = to_f32_pair(pair);
  low -= cut.x, high -= cut.y;
  return pair;
}

// The weights as each lane wants them: [product, tile of units, part, lane].
template <int H>
struct Fragments {
  static constexpr int kTiles = kUnitTiles<H>;
  __host__ __device__ static size_t bytes(const EntryNetwork& network) {
    return sizeof(uint4) * products_of(network) * kTiles * kParts * 32;
  }
  uint4* parts;

  __device__ uint4& at(int product, int tile, int part, int lane) const {
    return parts[((product * kTiles + tile) * kParts + part) * 32 + lane];
  }

  __device__ void cut(const EntryNetwork& network, const float* weights) const {
    const int inputs = network.inputs(), fragments = products_of(network) * kTiles;
    for (int i = static_cast<int>(threadIdx.x); i < fragments * 32; i += kTensorThreads) {
      const int lane = i % 32, tile = i / 32 % kTiles, product = i / 32 / kTiles;
      const int first = first_input(network, product, lane), unit = tile * 16 + lane / 4;
      float rest[2][kInputs];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int k = 0; k < kInputs; ++k) {
          const bool exists = first + k < inputs && unit + u * 8 < H;
          rest[u][k] = exists ? weights[(first + k) * H + unit + u * 8] : 0.0f;
        }
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint4& to = at(product, tile, part, lane);
        to.x = cut_pair(rest[0][0], rest[0][1]), to.y = cut_pair(rest[1][0], rest[1][1]);
        to.z = cut_pair(rest[0][2], rest[0][3]), to.w = cut_pair(rest[1][2], rest[1][3]);
      }
    }
  }
};

// The other parameters, for as many units as there are tiles for.
template <int H>
struct UnitNumbers {
  static constexpr int kUnits = kUnitTiles<H> * 16;
  float bias[kUnits], output_weights[kUnits], output_bias;

  __device__ void read(const Parameters& of) {
    for (int i = static_cast<int>(threadIdx.x); i < kUnits; i += kTensorThreads) {
      bias[i] = i < H ? of.bias[i] : 0.0f;
      output_weights[i] = i < H ? of.output_weights[i] : 0.0f;
    }
    if (threadIdx.x == 0) output_bias = *of.output_bias;
  }
};

// A lane's hidden units are, of each tile of 16, lane / 4 and the one 8 further; its entries, of each tile of 8,
// lane % 4 · 2 and the next.
template <int H>
struct HiddenSums {
  static constexpr int kTiles = kUnitTiles<H>;
  float a[kTiles][kEntryTiles][4];  // [.., .., unit · 2 + entry]

  __device__ void start(const UnitNumbers<H>& numbers) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float* bias = numbers.bias + m * 16 + threadIdx.x % 32 / 4;
      const float low = bias[0], high = bias[8];
#pragma unroll
      for (int t = 0; t < kEntryTiles; ++t) a[m][t][0] = a[m][t][1] = low, a[m][t][2] = a[m][t][3] = high;
    }
  }

  // x: a lane's inputs of entry lane / 4 of each tile. By so many parts of the weights.
  template <int kWeightParts>
  __device__ void add(const uint2 (&x)[kEntryTiles], const Fragments<H>& weights, int product) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int part = kWeightParts - 1; part >= 0; --part) {
        const uint4 w = weights.at(product, m, part, threadIdx.x % 32);
        const uint32_t rows[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int t = 0; t < kEntryTiles; ++t) multiply_add(a[m][t], rows, x[t].x, x[t].y);
      }
    }
  }

  // Of entry lane / 8 · 8 + lane % 4 · 2 + lane / 4 % 2, without the bias.
  __device__ float output(const UnitNumbers<H>& numbers) const {
    float y[kEntryTiles * 2] = {};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float* weights = numbers.output_weights + m * 16 + threadIdx.x % 32 / 4;
      const float low = weights[0], high = weights[8];
#pragma unroll
      for (int e = 0; e < kEntryTiles * 2; ++e) {
        y[e] += low * gelu(a[m][e / 2][e % 2]) + high * gelu(a[m][e / 2][e % 2 + 2]);
      }
    }
    // Lanes that have the same entries swap halves of them until each has one.
#pragma unroll
    for (int some = kEntryTiles; some > 0; some /= 2) {
      const bool has_second = threadIdx.x & (some * 4);
#pragma unroll
      for (int e = 0; e < some; ++e) {
        const float kept = has_second ? y[e + some] : y[e], given = has_second ? y[e] : y[e + some];
        y[e] = kept + __shfl_xor_sync(kWarp, given, some * 4);
      }
    }
    return y[0];
  }
};

// Two pages of a row, from slot `first` on; none where it has none that are rated.
struct EntryTile {
  int row = 0;
  int first = 0;
  int count = 0;  // of the row's entries that are rated
  int pages[2] = {0, 0};

  __device__ bool exists() const { return first < count; }
};

// A head's tiles, every so-manieth of which is a warp's.
class HeadTiles {
 public:
  __device__ HeadTiles(const RateEntriesArgs& args, int tiles_a_row)
      : args_(args),
        a_row_(tiles_a_row),
        all_(static_cast<int>(args.cache.rows / args.cache.kv_heads) * tiles_a_row),
        stride_(static_cast<int>(gridDim.x) / args.cache.kv_heads * kTensorWarps),
        next_(static_cast<int>(blockIdx.x) / args.cache.kv_heads * kTensorWarps + static_cast<int>(threadIdx.x) / 32) {}

  // One that does not exist when none is left.
  __device__ EntryTile next() {
    const PagedView& cache = args_.cache;
    EntryTile tile;
    for (; next_ < all_ && !tile.exists(); next_ += stride_) {
      tile.row = next_ / a_row_ * cache.kv_heads + static_cast<int>(blockIdx.x) % cache.kv_heads;
      tile.first = next_ % a_row_ * kEntriesAWarp;
      tile.count = is_due(args_.rows_due, tile.row) ? cache.lengths[tile.row] - args_.drop_newest : 0;
    }
    if (tile.exists()) locate(tile);
    return tile;
  }

 private:
  // What lies beyond the row's end in its last page is rated, too, and not written; a page beyond that is not there.
  __device__ void locate(EntryTile& tile) const {
    const PagedView& cache = args_.cache;
    const int32_t* pages = cache.page_table + tile.row * cache.max_pages;
    const int page = tile.first / kPageTokens, last = (tile.count - 1) / kPageTokens;
    tile.pages[0] = pages[page];
    tile.pages[1] = pages[min(page + 1, last)];
  }

  const RateEntriesArgs& args_;
  int a_row_, all_, stride_, next_;
};

// Of each tile of entries what a lane reads for four products, which is a line of an entry's vector between four lanes
// where the dimension is a multiple of 64.
struct FourProducts {
  uint4 x[2][kEntryTiles];  // for two products each

  __device__ void read(const PagedView& cache, const EntryTile& tile, int product) {
    const int dim = cache.head_dim, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int input = (product + 2 * i) * kDepth;
      const void* pool = input < dim ? cache.keys.data : cache.values.data;
      const bf16* vectors = static_cast<const bf16*>(pool) + (input < dim ? input : input - dim) + lane % 4 * 8;
#pragma unroll
      for (int t = 0; t < kEntryTiles; ++t) {
        const int64_t entry = int64_t{tile.pages[t / 2]} * kPageTokens + t % 2 * 8 + lane / 4;
        x[i][t] = *reinterpret_cast<const uint4*>(vectors + entry * dim);
      }
    }
  }

  template <int H>
  __device__ void add_to(HiddenSums<H>& sums, const Fragments<H>& weights, int product) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4(&both)[kEntryTiles] = x[i];
      const uint2 first[] = {
          {both[0].x, both[0].y}, {both[1].x, both[1].y}, {both[2].x, both[2].y}, {both[3].x, both[3].y}};
      const uint2 second[] = {
          {both[0].z, both[0].w}, {both[1].z, both[1].w}, {both[2].z, both[2].w}, {both[3].z, both[3].w}};
      sums.template add<kParts>(first, weights, product + 2 * i);
      sums.template add<kParts>(second, weights, product + 2 * i + 1);
    }
  }
};

// A warp's features of its tile, in shared memory: on their way while it is busy with vectors.
class StagedFeatures {
 public:
  __host__ __device__ static size_t bytes(const EntryNetwork& network) {
    return sizeof(float) * network.feature_count * kStride;
  }
  __device__ StagedFeatures(const EntryNetwork& network, float* memory) : network_(network), memory_(memory) {}

  // Beyond the row's end they are the last entry's, because there may be no such place.
  __device__ void start(const EntryTile& tile) const {
    const int lane = threadIdx.x % 32, entry = min(tile.first + lane, tile.count - 1);
    const float* from = network_.features.row(int64_t{tile.row} * network_.feature_count) + entry;
    __syncwarp();  // all lanes are done with the tile before
#pragma unroll 4
    for (int f = 0; f < network_.feature_count; ++f, from += network_.features.pitch) {
      copy_few_async<sizeof(float)>(memory_ + f * kStride + lane, from);
    }
    commit_copies();
  }

  // The smallest products of parts are less than what f32 rounds.
  template <int H>
  __device__ void add_to(HiddenSums<H>& sums, const Fragments<H>& weights) const {
    wait_copies<0>();
    __syncwarp();
    const int vectors = vector_products(network_);
#pragma unroll 1
    for (int product = vectors; product < products_of(network_); ++product) {
      float rest[kEntryTiles][kInputs];
      read(rest, (product - vectors) * kDepth + static_cast<int>(threadIdx.x) % 4 * kInputs);
      uint2 x[kEntryTiles];
      cut(x, rest);
      sums.template add<3>(x, weights, product);
      cut(x, rest);
      sums.template add<2>(x, weights, product);
      cut(x, rest);
      sums.template add<1>(x, weights, product);
    }
  }

 private:
  static constexpr int kStride = kEntriesAWarp + 2;  // so that a warp reads from 32 banks

  __device__ void read(float (&x)[kEntryTiles][kInputs], int first) const {
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      const float* feature = memory_ + (first + k) * kStride + threadIdx.x % 32 / 4;
#pragma unroll
      for (int t = 0; t < kEntryTiles; ++t) x[t][k] = first + k < network_.feature_count ? feature[t * 8] : 0.0f;
    }
  }
  __device__ static void cut(uint2 (&parts)[kEntryTiles], float (&rest)[kEntryTiles][kInputs]) {
#pragma unroll
    for (int t = 0; t < kEntryTiles; ++t) {
      parts[t] = {cut_pair(rest[t][0], rest[t][1]), cut_pair(rest[t][2], rest[t][3])};
    }
  }

  const EntryNetwork& network_;
  float* memory_;
};

// All of a warp's tiles. The vectors of kTogether · 4 products are on their way at a time, which divide those of a
// tile.
template <int H, int kTogether>
__device__ void rate_tiles(const RateEntriesArgs& args, HeadTiles tiles, const Fragments<H>& weights,
                           const UnitNumbers<H>& numbers, const StagedFeatures& features) {
  constexpr int kAhead = 4 * kTogether;
  const PagedView& cache = args.cache;
  const int lane = threadIdx.x % 32, last = vector_products(args.network) - kAhead;
  EntryTile tile = tiles.next();
  if (!tile.exists()) return;
  FourProducts vectors[kTogether];
#pragma unroll
  for (int k = 0; k < kTogether; ++k) vectors[k].read(cache, tile, 4 * k);
  while (tile.exists()) {
    features.start(tile);
    HiddenSums<H> sums;
    sums.start(numbers);
#pragma unroll 1
    for (int product = 0; product < last; product += kAhead) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        vectors[k].add_to(sums, weights, product + 4 * k);
        vectors[k].read(cache, tile, product + kAhead + 4 * k);
      }
    }
    const EntryTile following = tiles.next();
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      vectors[k].add_to(sums, weights, last + 4 * k);
      if (following.exists()) vectors[k].read(cache, following, 4 * k);
    }
    features.add_to(sums, weights);
    const float y = sums.output(numbers) + numbers.output_bias;
    const int slot = tile.first + lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
    if (slot < tile.count) args.output.row(tile.row)[slot] = y;
    tile = following;
  }
}

template <int H>
size_t tensor_bytes(const EntryNetwork& network) {
  return Fragments<H>::bytes(network) + kTensorWarps * StagedFeatures::bytes(network);
}

// Every kv_heads-th block is of the same head.
template <int H, int kTogether>
__global__ void __launch_bounds__(kTensorThreads, kTensorBlocks<H>)
    tensor_kernel(RateEntriesArgs args, int tiles_a_row) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ UnitNumbers<H> numbers;
  let_next_start();
  wait_for_previous();
  const EntryNetwork& network = args.network;
  const int head = static_cast<int>(blockIdx.x) % args.cache.kv_heads;
  const Parameters of = parameters_of(network.parameters + head * network.parameter_count(), network.inputs(), H);
  const Fragments<H> weights{reinterpret_cast<uint4*>(memory)};
  weights.cut(network, of.weights);
  numbers.read(of);
  __syncthreads();
  unsigned char* features = memory + Fragments<H>::bytes(network) + threadIdx.x / 32 * StagedFeatures::bytes(network);
  rate_tiles<H, kTogether>(args, {args, tiles_a_row}, weights, numbers, {network, reinterpret_cast<float*>(features)});
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

// As many blocks as run at a time, or fewer that have entries for each warp.
template <int H, int kTogether>
void rate_on_tensor_cores(const RateEntriesArgs& args) {
  const int64_t heads = args.cache.kv_heads;
  const int64_t tiles_a_row = ceil_div(std::max<int64_t>(args.cache.max_length - args.drop_newest, 0), kEntriesAWarp);
  KV_CHECK(args.cache.rows * tiles_a_row <= std::numeric_limits<int>::max() / 2);
  const int64_t at_once = std::max<int64_t>(kTensorBlocks<H> * multiprocessors() / heads, 1);
  const int64_t blocks = std::min(at_once, ceil_div(args.cache.rows / heads * tiles_a_row, kTensorWarps));
  launch_early(tensor_kernel<H, kTogether>, heads * blocks, kTensorThreads, tensor_bytes<H>(args.network), args,
               static_cast<int>(tiles_a_row));
}

template <int H>
void rate_with(const RateEntriesArgs& args) {
  const EntryNetwork& network = args.network;
  if (network.entry_dim > 0 && network.entry_dim % (2 * kDepth) == 0 &&
      tensor_bytes<H>(network) + sizeof(UnitNumbers<H>) <= shared_bytes_a_block()) {
    return network.entry_dim % (4 * kDepth) == 0 ? rate_on_tensor_cores<H, 2>(args) : rate_on_tensor_cores<H, 1>(args);
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
