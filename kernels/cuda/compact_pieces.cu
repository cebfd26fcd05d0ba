#include "kernels/cuda/compact_pieces.cuh"

#include <algorithm>

#include "kernels/cuda/device.cuh"

// A piece of every row at a time, from the oldest on: what stays of it goes to scratch memory, one block for each part
// of the piece, and from there to its place, which may lie in the same piece.

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kPart = 128;              // slots that a block has
constexpr int64_t kPieceSlots = 65536;  // of all rows together
constexpr int kWhole = 1 << 16;         // added to what a part keeps: none of it moves

template <class Word>
struct Piece {
  Word* pool_keys;
  Word* pool_values;
  int words;      // of a vector
  int64_t slots;  // of a row, a multiple of kPart
  int64_t index;
  // Scratch memory.
  Word* vectors;       // [rows, slots, 2, words], keys and values
  int32_t* positions;  // [rows, slots]
  int32_t* expires;    // [rows, slots]
  float* columns;      // [rows, slots, column_width]
  int* kept;           // [rows, parts]
  int* ends;           // [2, rows]: where what stays of the pieces before ends, by the piece's index

  __device__ int64_t parts() const { return slots / kPart; }
};

// A part's slots [first, first + count) of its row; count may be 0.
struct Part {
  int64_t row, index;
  int64_t oldest;  // slot that may leave
  int64_t piece, first;
  int count;

  template <class Word>
  __device__ Part(const CompactArgs& args, const Piece<Word>& of)
      : row(blockIdx.x / of.parts()), index(blockIdx.x % of.parts()) {
    const int64_t length = args.cache.lengths[row];
    oldest = max(int64_t{0}, length - args.newest);
    piece = oldest + of.index * of.slots;
    first = piece + index * kPart;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{kPart}, length - first)));
  }
};

template <class Word>
__device__ int64_t end_before(const CompactArgs& args, const Piece<Word>& piece, const Part& part) {
  return piece.index == 0 ? part.oldest : piece.ends[piece.index % 2 * args.cache.rows + part.row];
}

template <class Word>
__global__ void __launch_bounds__(kThreads) gather(CompactArgs args, Piece<Word> piece) {
  let_next_start();
  wait_for_previous();
  __shared__ int rank[kPart], warp_kept[kPart / 32];
  const Part part(args, piece);
  if (!is_due(args.rows_due, part.row) || part.count == 0) return;
  const PagedView& cache = args.cache;
  const uint8_t* keep = args.keep.row(part.row);
  int before = 0;
  for (int64_t slot = part.piece + threadIdx.x; slot < part.first; slot += kThreads) before += keep[slot] != 0;
  before = block_reduce(before, 0, Add());
  const int slot = static_cast<int>(threadIdx.x);
  if (slot < kPart) {
    const bool stays = slot < part.count && keep[part.first + slot] != 0;
    const unsigned votes = __ballot_sync(kWarp, stays);
    rank[slot] = stays ? __popc(votes & ((1U << slot % 32) - 1)) : -1;
    if (slot % 32 == 0) warp_kept[slot / 32] = __popc(votes);
  }
  __syncthreads();
  int own = 0;
  for (const int of_warp : warp_kept) own += of_warp;
  const bool is_whole =
      own == part.count && before == part.index * kPart && end_before(args, piece, part) == part.piece;
  if (threadIdx.x == 0) piece.kept[part.row * piece.parts() + part.index] = own + (is_whole ? kWhole : 0);
  if (is_whole) return;
  const auto to = [&](int of_part) {
    int place = before + rank[of_part];
    for (int w = 0; w < of_part / 32; ++w) place += warp_kept[w];
    return part.row * piece.slots + place;
  };
  for (int i = static_cast<int>(threadIdx.x); i < part.count * 2 * piece.words; i += kThreads) {
    const int entry = i / (2 * piece.words), word = i % (2 * piece.words);
    if (rank[entry] < 0) continue;
    const int64_t from = place_of(cache, part.row, part.first + entry) * piece.words;
    piece.vectors[to(entry) * 2 * piece.words + word] =
        word < piece.words ? piece.pool_keys[from + word] : piece.pool_values[from + word - piece.words];
  }
  if (slot >= part.count || rank[slot] < 0) return;
  const int64_t from = place_of(cache, part.row, part.first + slot), place = to(slot);
  piece.positions[place] = args.pool_positions[from];
  if (args.pool_expires) piece.expires[place] = args.pool_expires[from];
  for (int c = 0; args.pool_columns && c < cache.column_width; ++c) {
    piece.columns[place * cache.column_width + c] = args.pool_columns[from * cache.column_width + c];
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads) scatter(CompactArgs args, Piece<Word> piece) {
  let_next_start();
  wait_for_previous();
  const Part part(args, piece);
  if (!is_due(args.rows_due, part.row)) return;
  const PagedView& cache = args.cache;
  const int64_t length = cache.lengths[part.row];
  const int64_t parts = min(piece.parts(), max(int64_t{0}, length - part.piece + kPart - 1) / kPart);
  const int* kept = piece.kept + part.row * piece.parts();
  int all = 0;
  for (int64_t p = threadIdx.x; p < parts; p += kThreads) all += kept[p] % kWhole;
  all = block_reduce(all, 0, Add());
  const int64_t end = end_before(args, piece, part);
  if (part.index == 0 && threadIdx.x == 0) {
    piece.ends[(piece.index + 1) % 2 * cache.rows + part.row] = static_cast<int>(end + all);
  }
  const int first = static_cast<int>(part.index) * kPart, count = min(kPart, all - first);
  if (count <= 0 || kept[part.index] >= kWhole) return;
  const int64_t from = part.row * piece.slots + first;
  const auto to = [&](int of_part) { return place_of(cache, part.row, end + first + of_part); };
  for (int i = static_cast<int>(threadIdx.x); i < count * 2 * piece.words; i += kThreads) {
    const int entry = i / (2 * piece.words), word = i % (2 * piece.words);
    const Word vector = piece.vectors[(from + entry) * 2 * piece.words + word];
    const int64_t place = to(entry) * piece.words;
    (word < piece.words ? piece.pool_keys[place + word] : piece.pool_values[place + word - piece.words]) = vector;
  }
  const int slot = static_cast<int>(threadIdx.x);
  if (slot >= count) return;
  const int64_t place = to(slot);
  args.pool_positions[place] = piece.positions[from + slot];
  if (args.pool_expires) args.pool_expires[place] = piece.expires[from + slot];
  for (int c = 0; args.pool_columns && c < cache.column_width; ++c) {
    args.pool_columns[place * cache.column_width + c] = piece.columns[(from + slot) * cache.column_width + c];
  }
}

// Lengths may be the cache's own, which the kernels before read.
__global__ void write_lengths(CompactArgs args, const int* ends) {
  wait_for_previous();
  const int64_t row = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (row < args.cache.rows && is_due(args.rows_due, row)) args.lengths[row] = ends[row];
  has_settled();
}

template <class Word>
void compact_words(const CompactArgs& args) {
  const PagedView& cache = args.cache;
  if (cache.rows == 0) return;
  const int64_t may_leave = std::min(args.newest, cache.max_length);
  const int64_t slots =
      std::clamp<int64_t>(ceil_div(may_leave, kPart), 1, std::max<int64_t>(1, kPieceSlots / kPart / cache.rows)) *
      kPart;
  const int words = cache.head_dim / static_cast<int>(sizeof(Word) / sizeof(bf16));
  const int64_t entries = cache.rows * slots;
  const Scratch<Word> vectors(entries * 2 * words);
  const Scratch<int32_t> positions(entries), expires(args.pool_expires ? entries : 0);
  const Scratch<float> columns(args.pool_columns ? entries * cache.column_width : 0);
  const Scratch<int> kept(entries / kPart), ends(2 * cache.rows);
  Piece<Word> piece{.pool_keys = reinterpret_cast<Word*>(args.pool_keys.as<bf16>()),
                    .pool_values = reinterpret_cast<Word*>(args.pool_values.as<bf16>()),
                    .words = words,
                    .slots = slots,
                    .index = 0,
                    .vectors = vectors.data(),
                    .positions = positions.data(),
                    .expires = expires.data(),
                    .columns = columns.data(),
                    .kept = kept.data(),
                    .ends = ends.data()};
  const int64_t pieces = std::max<int64_t>(1, ceil_div(may_leave, slots)), blocks = entries / kPart;
  for (int64_t index = 0; index < pieces; ++index) {
    piece.index = index;
    launch_early(gather<Word>, blocks, kThreads, 0, args, piece);
    launch_early(scatter<Word>, blocks, kThreads, 0, args, piece);
  }
  if (!args.lengths) return;
  launch_early(write_lengths, ceil_div(cache.rows, kThreads), kThreads, 0, args, ends.data() + pieces % 2 * cache.rows);
}

}  // namespace

void compact_pieces(const CompactArgs& args) {
  if (args.cache.head_dim % 8 == 0) {
    compact_words<uint4>(args);
  } else {
    compact_words<uint16_t>(args);
  }
}

}  // namespace kv::cuda
