#include "kernels/select_pooled.h"

#include <algorithm>

#include "kernels/cuda/select_row.cuh"

// Rows take their own entries one block a row. The cut through all that is left of a sequence is then searched by
// radix over the words (score, tie, position) of an entry's order, one digit a pass over all scores: the host launches
// every pass that may be needed, and the passes of a sequence whose cut is found return at once. What is equal in all
// words has one entry a row at most, so a rank among rows settles it.

namespace kv::cuda {

namespace {

using Layer = SelectPooledArgs::Layer;

constexpr int kThreads = kSelectThreads;
constexpr int kBins = 1 << kSelectDigit;
constexpr int kTile = 16384;  // slots a block
constexpr int kWords = 3;     // score, tie, position

// The digits of a word, from the top.
constexpr int kDigits = 3;
__device__ constexpr int digit_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ constexpr uint32_t digit_mask(int digit) { return digit == 2 ? 0x3ffu : 0x7ffu; }

// A cut of a sequence: entries whose masked words lie above `word` stay; of those that equal it all, or `missing` by
// their row.
struct PooledCut {
  uint32_t word[kWords];
  uint32_t mask[kWords];
  uint32_t missing;
  bool all_equals;
  bool found;
};

struct Work {
  const Layer* layers;  // on the device
  int64_t layer_count;
  int64_t rows;  // of a layer
  int64_t tiles;
  int kv_heads;
  int* sure;          // [sequences], entries that rows keep as their own
  int* entries;       // [sequences]
  PooledCut* cuts;    // [sequences]
  uint32_t* bins;     // [sequences, kBins]
  uint8_t* is_equal;  // [sequences, kv_heads, layer_count]: whether the row has an entry on the cut
};

// A block's place: one tile of one row of one layer.
struct Place {
  int64_t layer_index;
  int64_t row;
  int64_t sequence;
  const Layer& layer;
  const float* scores;  // of the row's slot 0, as are the next two
  const float* ties;
  uint8_t* keep;
  int64_t first;
  int64_t end;

  __device__ explicit Place(const Work& work)
      : layer_index(blockIdx.x / work.tiles / work.rows),
        row(blockIdx.x / work.tiles % work.rows),
        sequence(row / work.kv_heads),
        layer(work.layers[layer_index]),
        scores(layer.scores.row(row)),
        ties(layer.ties ? layer.ties.row(row) : nullptr),
        keep(layer.keep.row(row)),
        first(blockIdx.x % work.tiles * kTile),
        end(min(int64_t{layer.cache.lengths[row]}, first + kTile)) {}

  // Rank of the row among those of its sequence, for entries that are equal in all words.
  __device__ int64_t rank(const Work& work) const {
    return (sequence * work.kv_heads + row % work.kv_heads) * work.layer_count + layer_index;
  }

  // Calls visit(slot, score) for this thread's slots that are not kept yet. Reads come in batches, or each would wait
  // for the one before.
  template <class Visit>
  __device__ void visit_open(const Visit& visit) const {
    constexpr int kBatch = 8;
    for (int64_t base = first + threadIdx.x; base < end; base += kThreads * kBatch) {
      float score[kBatch];
      bool is_open[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t slot = base + i * kThreads;
        is_open[i] = slot < end && !keep[slot];
        score[i] = slot < end ? scores[slot] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (is_open[i]) visit(base + i * kThreads, score[i]);
      }
    }
  }

  // One word of an entry's order.
  __device__ uint32_t word(int index, int64_t slot, float score) const {
    if (index == 0) return ordered(score);
    if (index == 1) return ordered(ties[slot]);
    return static_cast<uint32_t>(layer.cache.positions[place_of(layer.cache, row, slot)]);
  }

  // -1 below the cut, 1 above it, 0 equal to it.
  __device__ int compare(const PooledCut& cut, int64_t slot, float score) const {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if (cut.mask[w] == 0) continue;
      const uint32_t masked = word(w, slot, score) & cut.mask[w];
      if (masked != cut.word[w]) return masked > cut.word[w] ? 1 : -1;
    }
    return 0;
  }
};

template <class Key>
__global__ void __launch_bounds__(kSelectThreads) select_sure(SelectPooledArgs args, Work work) {
  const Layer& layer = work.layers[blockIdx.x / work.rows];
  const int64_t row = blockIdx.x % work.rows;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = layer.cache.lengths[row];
  const Spared spared = spared_of(layer.cache, row, args.sinks, args.recent);
  const int64_t least = layer.least ? layer.least[row] : 0;
  const int64_t sure = min(length, max(spared.sinks + spared.recent, least));
  select_row<Key>(length, sure, spared, {layer.scores.row(row), layer.ties ? layer.ties.row(row) : nullptr},
                  layer.keep.row(row));
  if (threadIdx.x != 0) return;
  layer.kept[row] = static_cast<int32_t>(sure);
  atomicAdd(&work.sure[row / work.kv_heads], static_cast<int>(sure));
  atomicAdd(&work.entries[row / work.kv_heads], static_cast<int>(length));
}

// One thread a sequence.
__global__ void start_cuts(SelectPooledArgs args, Work work) {
  const int64_t sequence = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (sequence >= work.rows / work.kv_heads) return;
  PooledCut cut{};
  cut.found = true;  // with no word masked everything equals the cut
  if (is_due(args.rows_due, sequence * work.kv_heads)) {
    KV_DEVICE_CHECK(args.counts[sequence] >= work.sure[sequence]);
    cut.missing = static_cast<uint32_t>(args.counts[sequence] - work.sure[sequence]);
    cut.all_equals = cut.missing >= static_cast<uint32_t>(work.entries[sequence] - work.sure[sequence]);
    cut.found = cut.all_equals || cut.missing == 0;
  }
  work.cuts[sequence] = cut;
}

// Counts the open entries that equal the cut as far as it is known, by their next digit.
__global__ void __launch_bounds__(kThreads) count_digits(SelectPooledArgs args, Work work, int word, int digit) {
  __shared__ uint32_t bins[kBins];
  const Place place(work);
  const PooledCut cut = work.cuts[place.sequence];
  if (cut.found || place.first >= place.end) return;
  for (int b = threadIdx.x; b < kBins; b += kThreads) bins[b] = 0;
  __syncthreads();
  place.visit_open([&](int64_t slot, float score) {
    if (place.compare(cut, slot, score) != 0) return;
    atomicAdd(&bins[place.word(word, slot, score) >> digit_shift(digit) & digit_mask(digit)], 1u);
  });
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += kThreads) {
    if (bins[b] > 0) atomicAdd(&work.bins[place.sequence * kBins + b], bins[b]);
  }
}

// One block a sequence: adds the digit in which the count is reached to the cut, and clears the bins.
__global__ void __launch_bounds__(kThreads) choose_digit(Work work, int word, int digit) {
  __shared__ uint32_t bins[kBins];
  PooledCut& cut = work.cuts[blockIdx.x];
  if (cut.found) return;
  uint32_t* of_sequence = work.bins + int64_t{blockIdx.x} * kBins;
  for (int b = threadIdx.x; b < kBins; b += kThreads) {
    bins[b] = of_sequence[b];
    of_sequence[b] = 0;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  find_bin<kBins>(bins, cut.missing, [&](Bin<uint32_t> bin) {
    cut.word[word] |= static_cast<uint32_t>(bin.index) << digit_shift(digit);
    cut.mask[word] |= digit_mask(digit) << digit_shift(digit);
    cut.missing -= bin.above;
    cut.all_equals = bins[bin.index] == cut.missing;
    cut.found = cut.all_equals;
  });
}

// Marks the rows that have an entry on the cut, where not all of these stay.
__global__ void __launch_bounds__(kThreads) mark_equals(SelectPooledArgs args, Work work) {
  const Place place(work);
  const PooledCut cut = work.cuts[place.sequence];
  if (cut.found) return;
  place.visit_open([&](int64_t slot, float score) {
    if (place.compare(cut, slot, score) == 0) work.is_equal[place.rank(work)] = 1;
  });
}

__device__ bool stays(const Work& work, const PooledCut& cut, const Place& place, int64_t slot, float score) {
  const int order = place.compare(cut, slot, score);
  if (order != 0) return order > 0;
  if (cut.all_equals || cut.found) return cut.all_equals;
  uint32_t before = 0;
  for (int64_t r = place.sequence * work.kv_heads * work.layer_count; r < place.rank(work); ++r) {
    before += work.is_equal[r];
  }
  return before < cut.missing;
}

__global__ void __launch_bounds__(kThreads) keep_above(SelectPooledArgs args, Work work) {
  const Place place(work);
  const PooledCut cut = work.cuts[place.sequence];
  if (!is_due(args.rows_due, place.row) || (cut.found && cut.missing == 0)) return;
  int kept = 0;
  place.visit_open([&](int64_t slot, float score) {
    if (!stays(work, cut, place, slot, score)) return;
    place.keep[slot] = 1;
    ++kept;
  });
  kept = warp_reduce(kept, Add());
  if (threadIdx.x % 32 == 0 && kept > 0) atomicAdd(&place.layer.kept[place.row], kept);
}

}  // namespace

void select_pooled(const SelectPooledArgs& args) {
  if (args.layer_count == 0) return;
  const PagedView& cache = args.layers[0].cache;
  const bool has_ties = args.layers[0].ties.data != nullptr;
  int64_t longest = 0;
  for (int64_t l = 0; l < args.layer_count; ++l) {
    KV_CHECK(args.layers[l].cache.rows == cache.rows && args.layers[l].cache.kv_heads == cache.kv_heads);
    KV_CHECK((args.layers[l].ties.data != nullptr) == has_ties);
    longest = std::max(longest, args.layers[l].cache.max_length);
  }
  const int64_t sequences = cache.rows / cache.kv_heads, all_rows = cache.rows * args.layer_count;
  const Scratch<Layer> layers(args.layer_count);
  KV_CUDA_CHECK(
      cudaMemcpyAsync(layers.data(), args.layers, args.layer_count * sizeof(Layer), cudaMemcpyHostToDevice, stream()));
  Scratch<int> sure(sequences), entries(sequences);
  const Scratch<PooledCut> cuts(sequences);
  Scratch<uint32_t> bins(sequences * kBins);
  Scratch<uint8_t> is_equal(all_rows);
  sure.fill_zero();
  entries.fill_zero();
  bins.fill_zero();
  is_equal.fill_zero();
  const Work work{.layers = layers.data(),
                  .layer_count = args.layer_count,
                  .rows = cache.rows,
                  .tiles = ceil_div(longest, kTile),
                  .kv_heads = cache.kv_heads,
                  .sure = sure.data(),
                  .entries = entries.data(),
                  .cuts = cuts.data(),
                  .bins = bins.data(),
                  .is_equal = is_equal.data()};
  launch(has_ties ? select_sure<uint64_t> : select_sure<uint32_t>, all_rows, kSelectThreads, 0, args, work);
  launch(start_cuts, ceil_div(sequences, 128), 128, 0, args, work);
  const int64_t blocks = all_rows * work.tiles;
  for (int word = 0; word < kWords; ++word) {
    if (word == 1 && !has_ties) continue;
    for (int digit = 0; digit < kDigits; ++digit) {
      launch(count_digits, blocks, kThreads, 0, args, work, word, digit);
      launch(choose_digit, sequences, kThreads, 0, work, word, digit);
    }
  }
  launch(mark_equals, blocks, kThreads, 0, args, work);
  launch(keep_above, blocks, kThreads, 0, args, work);
}

}  // namespace kv::cuda
