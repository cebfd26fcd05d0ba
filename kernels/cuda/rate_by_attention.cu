#include "kernels/rate_by_attention.h"

#include <algorithm>

#include "kernels/cuda/entry_network.cuh"
#include "kernels/cuda/window_probabilities.cuh"

// A thread block has a tile of keys, whose warps hold them in registers: the window's queries stream by for the sums of
// their probabilities, then the weights of the network, as rows beside which a query's look the same. Meanwhile the
// values come to where the queries were. Keys are read twice in all, since the softmax wants its sums first
// (window_normalisers.cuh), values once, and features stay in shared memory.

namespace kv::cuda {

namespace {

constexpr int kFeaturesOfHead = 6;  // three suffixes, the interval, all, decayed

// Weights of keys and values, cut into parts, as tiles of rows: [KV head, key or value, part · H + unit, D].
template <int D, int H>
__global__ void cut_weights(EntryNetwork network, int kv_heads, bf16* tiles) {
  const int d = static_cast<int>(threadIdx.x), unit = static_cast<int>(blockIdx.x) % H;
  const int half = static_cast<int>(blockIdx.x) / H % 2, head = static_cast<int>(blockIdx.x) / H / 2;
  float rest = network.parameters[head * network.parameter_count() + int64_t{half * D + d} * H + unit];
  bf16* tile = tiles + int64_t{head * 2 + half} * kParts * H * D;
  for (int part = 0; part < kParts; ++part) tile[(part * H + unit) * D + d] = cut_part(rest);
}

template <int D, int H>
struct Shape {
  using Tile = KeyTile<D>;
  static constexpr int kRows = kParts * H;  // of weights
  static constexpr size_t kWeightBytes = 2 * kRows * D * sizeof(bf16);
  static constexpr size_t kValueBytes = Tile::kKeys * D * sizeof(bf16);
  // The values take the place of keys and queries, which is larger.
  static constexpr size_t kTileBytes = Logits<D, GroupMax::kNone>::kSharedBytes;
  static_assert(kTileBytes >= kValueBytes);

  static size_t bytes(int group) {
    const int features = kFeaturesOfHead * group;
    return kTileBytes + kWeightBytes + (Tile::kKeys + H) * features * sizeof(float);
  }
};

// The columns of a thread's own key, and the features that come of them, of [feature, key].
template <int D>
__device__ void fold_columns(const AttentionColumnsFoldArgs& args, int64_t row, int64_t slot, float* features) {
  constexpr int kKeys = KeyTile<D>::kKeys;
  const int group = args.group, key = static_cast<int>(threadIdx.x);
  float* columns = args.pool_columns + place_of(args.cache, row, slot) * args.cache.column_width;
  const bool is_counted = args.rows_counted && args.rows_counted[row];
  float* recents = features + 3 * group * kKeys + key;
  for (int h = 0; h < group; ++h) {
    float recent;
    if (args.has_recent) {
      recent = columns[2 * group + h];
      columns[2 * group + h] = 0;
    } else {
      recent = recents[h * kKeys];
    }
    const float counted = is_counted ? recent : 0;
    const float cumulative = columns[h] + (recent - counted);
    const float decayed = args.decay * (columns[group + h] - counted) + recent;
    columns[h] = cumulative;
    columns[group + h] = decayed;
    recents[h * kKeys] = recent;
    recents[(group + h) * kKeys] = cumulative;
    recents[(2 * group + h) * kKeys] = decayed;
  }
}

template <int D, int H, int Suffixes>
__global__ void __launch_bounds__(KeyTile<D>::kThreads, 2)
    rate_tile(RateByAttentionArgs args, ProbabilityWork work, const bf16* weight_tiles) {
  using Shape = Shape<D, H>;
  using Tile = KeyTile<D>;
  constexpr int kM = Tile::kM, kKeys = Tile::kKeys;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) float shifts[2][Tile::kQueries];
  const PagedView& cache = args.rate.cache;
  int64_t row, tile;
  int head_tile;
  if (!place_block<D, GroupMax::kNone>(args.window, work, row, tile, head_tile)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto length = static_cast<int>(cache.lengths[row]), first_slot = static_cast<int>(tile) * kKeys;
  const EntryNetwork& network = args.rate.network;
  const int features_count = kFeaturesOfHead * work.group;
  auto* staged = reinterpret_cast<bf16*>(shared);
  auto* weights = reinterpret_cast<bf16*>(shared + Shape::kTileBytes);
  auto* features = reinterpret_cast<float*>(shared + Shape::kTileBytes + Shape::kWeightBytes);  // [feature, key]
  float* feature_weights = features + features_count * kKeys;                                   // [feature, H]
  const int64_t head = row % cache.kv_heads;
  const Parameters of = parameters_of(network.parameters + head * network.parameter_count(), network.inputs(), H);

  Logits<D, GroupMax::kNone> logits{args.window, work, staged, shifts, row, first_slot, head_tile, {}};
  logits.hold_keys(length);
  // On their way while the queries pass by: the first of these waits for them, too.
  stage_rows<D>(weights, 2 * Shape::kRows, D, threadIdx.x, Tile::kThreads,
                [&](int r) { return weight_tiles + (head * 2 * Shape::kRows + r) * D; });
  commit_copies();
  for (int i = static_cast<int>(threadIdx.x); i < features_count * H; i += Tile::kThreads) {
    feature_weights[i] = of.weights[2 * D * H + i];
  }
  SuffixSums<kM, Suffixes> statistics;
  take_window(logits, statistics);  // its last barrier: nobody needs the queries any more

  // Values of the tile, from the pages of its keys.
  PagedView values = cache;
  values.keys = cache.values;
  stage_keys<D, kKeys>(staged, values, row, first_slot, length, threadIdx.x, Tile::kThreads);
  commit_copies();
  visit_statistics<SuffixSums<kM, Suffixes>, kM>(
      statistics, work.heads(), [&](int k, int m, int half, int h, float value) {
        if (h < work.group)
          features[(k * work.group + h) * kKeys + warp * 16 * kM + m * 16 + half * 8 + lane / 4] = value;
      });
  __syncwarp();  // a warp folds its own keys
  const int slot = first_slot + static_cast<int>(threadIdx.x);
  if (slot < length) fold_columns<D>(args.fold, row, slot, features);
  __syncwarp();

  HiddenSums<H> sums;
  sums.start(of.bias);
  float products[kM][kParts * H / 8][4];
  logits.keys.template times<kParts * H / 8>(weights, lane, products);
  sums.add_products(products);
  wait_copies<0>();
  __syncthreads();
  logits.keys.load(staged, warp * 16 * kM, lane);  // the values' turn
  logits.keys.template times<kParts * H / 8>(weights + Shape::kRows * D, lane, products);
  sums.add_products(products);
  for (int f = 0; f < features_count; ++f) {
    const float* of_warp = features + f * kKeys + warp * 16 * kM + lane / 4;
    sums.add_feature_of([&](int r) { return of_warp[8 * r]; }, feature_weights + f * H);
  }
  const int rated = length - args.rate.drop_newest;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const float y = sums.output(r, of.output_weights);
    const int at = first_slot + warp * 16 * kM + 8 * r + lane / 4;
    if (lane % 4 == 0 && at < rated) args.rate.output.row(row)[at] = y + *of.output_bias;
  }
}

template <int D, int H, int Suffixes>
void run(const RateByAttentionArgs& args) {
  const PagedView& cache = args.rate.cache;
  ProbabilityWork work = probability_work<D, GroupMax::kNone>(args.window);
  const Scratch<float> shifts(cache.rows * work.vectors);
  find_shifts<D, GroupMax::kNone>(args.window, shifts.data());
  work.shifts = shifts.data();
  const Scratch<bf16> weights(int64_t{cache.kv_heads} * 2 * kParts * H * D);
  launch(cut_weights<D, H>, int64_t{cache.kv_heads} * 2 * H, D, 0, args.rate.network, cache.kv_heads, weights.data());
  launch(rate_tile<D, H, Suffixes>, cache.rows * work.tiles, KeyTile<D>::kThreads, Shape<D, H>::bytes(work.group), args,
         work, static_cast<const bf16*>(weights.data()));
}

// Of a block of the tile's kernel, those that are its own at any group included.
size_t shared_bytes(int dim, int group) {
  constexpr size_t kOwn = 1024;
  return kOwn + (dim == 64 ? Shape<64, 16>::bytes(group) : Shape<128, 16>::bytes(group));
}

// Where the tile's kernel serves: the paper's features, which nobody else wants, of keys and values of these widths.
bool fits_tile(const RateByAttentionArgs& args) {
  const EntryNetwork& network = args.rate.network;
  const int dim = args.rate.cache.head_dim, group = args.fold.group;
  return args.window.mode == WindowAttentionArgs::Mode::kSuffixSums && !args.fold.features &&
         (dim == 64 || dim == 128) && network.entry_dim == dim && network.hidden == 16 && group <= 8 &&
         network.feature_count == kFeaturesOfHead * group && args.fold.first_plane == 3 * group &&
         args.fold.recent_planes == 1 && args.window.suffix_count == (args.fold.has_recent ? 3 : 4) &&
         shared_bytes(dim, group) <= shared_bytes_a_block();
}

template <int D>
void run_tiles(const RateByAttentionArgs& args) {
  args.window.suffix_count == 3 ? run<D, 16, 3>(args) : run<D, 16, 4>(args);
}

void run_apart(const RateByAttentionArgs& args) {
  const PagedView& cache = args.rate.cache;
  RateByAttentionArgs parts = args;
  const int64_t vectors = cache.rows * args.fold.planes;
  const Scratch<float> own(args.fold.features ? 0 : vectors * cache.max_length);
  if (!args.fold.features) parts.fold.features = {own.data(), vectors, cache.max_length};
  parts.window.scores = parts.fold.features;
  parts.rate.network.features = parts.fold.features;
  window_attention(parts.window);
  attention_columns_fold(parts.fold);
  rate_entries(parts.rate);
}

}  // namespace

void rate_by_attention(const RateByAttentionArgs& args) {
  check_cache(args.rate.cache);
  check_parts(args);
  if (!fits_tile(args)) return run_apart(args);
  check_vectors(args.window.queries.as<bf16>(), args.rate.cache.head_dim);
  args.rate.cache.head_dim == 64 ? run_tiles<64>(args) : run_tiles<128>(args);
}

}  // namespace kv::cuda
