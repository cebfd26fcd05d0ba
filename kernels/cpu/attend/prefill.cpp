#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// Rows of a score tile: (query head of the group, query), stacked so that one pass over the keys serves all of them.
constexpr int64_t kTileRows = 48;
// Tiles of a row are dealt in turn to this many tasks, which evens out the causal triangle. Each keeps its own column
// statistics, added in the order of the tasks: their number is fixed, so the results are too.
constexpr int64_t kShares = 16;
// Slots whose values stay in the L1 cache while all rows of a tile use them.
constexpr int64_t kValueSlots = 128;

// One (sequence, KV head) with more than one new token.
struct RowJob {
  Segment segment;
  int64_t kv_head = 0;
  int64_t row = 0;
  int64_t length = 0;
  float* keys = nullptr;    // [ceil(length / kPanelWidth)] panels [head_dim, kPanelWidth], zeros beyond the length
  float* values = nullptr;  // [length, value_stride]
  float* sums = nullptr;    // [kShares, group, length]; null if not wanted
  float* maxima = nullptr;  // [kShares, group, length]; null if not wanted
  int64_t shares = 0;       // tasks that have at least one tile
  std::vector<int32_t> expires{};  // of the newest slots; empty where none of the row's entries expires
};

struct Shape {
  int64_t dim;
  int64_t value_stride;  // head_dim, padded with zeros to whole panels
  int64_t group;
  int64_t tile_queries;
  int64_t score_stride;
};

// Memory of one thread.
struct TileScratch {
  float* queries;  // [kTileRows.., dim]
  float* scores;   // [tile rows, score_stride]
  float* output;   // [tile rows, value_stride]
};

int64_t tiles_of(const RowJob& job, const Shape& shape) {
  return (job.segment.count + shape.tile_queries - 1) / shape.tile_queries;
}

void pack_keys(const AttendArgs& args, const RowJob& job, int64_t first, int64_t end) {
  const int64_t dim = args.cache.head_dim;
  std::vector<float> rows(static_cast<size_t>(kPanelWidth * dim));
  for (int64_t slot = first; slot < end; slot += kPanelWidth) {
    const int64_t count = std::min<int64_t>(kPanelWidth, end - slot);
    gather_keys(args.cache, job.row, slot, count, rows.data());
    pack_transposed(rows.data(), count, dim, dim, job.keys + slot * dim);
  }
}

void copy_values(const AttendArgs& args, const RowJob& job, const Shape& shape, int64_t first, int64_t end) {
  float* values = job.values + first * shape.value_stride;
  if (shape.value_stride == shape.dim) {
    gather_values(args.cache, job.row, first, end - first, values);
    return;
  }
  for (int64_t slot = first; slot < end; ++slot, values += shape.value_stride) {
    gather_values(args.cache, job.row, slot, 1, values);
    std::fill(values + shape.dim, values + shape.value_stride, 0.0f);
  }
}

// Queries [first, first + count) of the job's segment, head by head: row g · count + i.
class Tile {
 public:
  Tile(const AttendArgs& args, const RowJob& job, const Shape& shape, const TileScratch& scratch, int64_t first,
       int64_t count)
      : args_(args), job_(job), shape_(shape), scratch_(scratch), first_(first), count_(count) {}

  // Largest number of slots that a query of the tile sees.
  int64_t visible() const { return visible_to(count_ - 1); }

  void run() {
    qk();
    softmax();
    pv();
  }

  // Adds the tile's probabilities to the sums, and raises the maxima, of one share: [group, length] each.
  void add_columns(float* sums, float* maxima) const {
    for (int64_t g = 0; g < shape_.group; ++g) {
      if (sums) add_columns_of(g, sums + g * job_.length, [](Vec a, Vec b) { return a + b; });
      if (maxima) add_columns_of(g, maxima + g * job_.length, [](Vec a, Vec b) { return a > b ? a : b; });
    }
  }

 private:
  int64_t rows() const { return shape_.group * count_; }
  int64_t visible_to(int64_t query) const { return job_.length - job_.segment.count + first_ + query + 1; }
  // Scores are computed for whole panels; what a query may not see becomes 0 after the softmax.
  int64_t padded() const { return round_up(visible(), kPanelWidth); }
  float* scores(int64_t row) const { return scratch_.scores + row * shape_.score_stride; }

  int64_t token_offset(int64_t g, int64_t query) const {
    const int64_t token = job_.segment.first_token + first_ + query;
    return (token * args_.q_heads + job_.kv_head * shape_.group + g) * shape_.dim;
  }

  void qk() {
    const auto bytes = static_cast<size_t>(shape_.dim) * sizeof(float);
    const auto* queries = args_.queries.as<float>();
    for (int64_t g = 0; g < shape_.group; ++g) {
      for (int64_t i = 0; i < count_; ++i) {
        std::memcpy(scratch_.queries + (g * count_ + i) * shape_.dim, queries + token_offset(g, i), bytes);
      }
    }
    for (int64_t slot = 0; slot < visible(); slot += kPanelWidth) {
      panel_product({.a = scratch_.queries,
                     .lda = shape_.dim,
                     .b = job_.keys + slot * shape_.dim,
                     .k = shape_.dim,
                     .c = scratch_.scores + slot,
                     .ldc = shape_.score_stride,
                     .alpha = args_.scale},
                    rows());
    }
  }

  // The mask is in how far a row is read. Scores become e^(score − largest), not yet divided by their sum: the output
  // and the column statistics are scaled instead, which saves a pass over the tile.
  void softmax() {
    for (int64_t r = 0; r < rows(); ++r) {
      const int64_t seen = visible_to(r % count_);
      float* row = scores(r);
      hide_expired(row, seen, job_.segment.first_position + static_cast<int32_t>(first_ + r % count_));
      const float most = largest(row, seen), sum = exp_row(row, seen, most);
      inverse_sums_[r] = 1.0f / sum;
      if (args_.log_sums) args_.log_sums[token_offset(r / count_, r % count_) / shape_.dim] = most + std::log(sum);
      std::fill(row + seen, row + padded(), 0.0f);
    }
  }

  // Entries that have expired get no attention. No query is left without an entry, since it sees its own.
  void hide_expired(float* row, int64_t seen, int32_t position) const {
    const int64_t first = job_.length - std::ssize(job_.expires);
    for (int64_t slot = first; slot < seen; ++slot) {
      if (job_.expires[slot - first] <= position) row[slot] = -std::numeric_limits<float>::infinity();
    }
  }

  void pv() {
    for (int64_t slot = 0; slot < visible(); slot += kValueSlots) {
      for (int64_t d = 0; d < shape_.value_stride; d += kPanelWidth) {
        panel_product({.a = scratch_.scores + slot,
                       .lda = shape_.score_stride,
                       .b = job_.values + slot * shape_.value_stride + d,
                       .ldb = shape_.value_stride,
                       .k = std::min(kValueSlots, visible() - slot),
                       .c = scratch_.output + d,
                       .ldc = shape_.value_stride,
                       .write = slot == 0 ? Write::kReplace : Write::kAdd},
                      rows());
      }
    }
    auto* output = args_.output.as<float>();
    for (int64_t r = 0; r < rows(); ++r) {
      const float* from = scratch_.output + r * shape_.value_stride;
      float* to = output + token_offset(r / count_, r % count_);
      for (int64_t d = 0; d < shape_.dim; ++d) to[d] = from[d] * inverse_sums_[r];
    }
  }

  template <class Combine>
  void add_columns_of(int64_t g, float* columns, const Combine& combine) const {
    constexpr int kVecs = 4;
    int64_t slot = 0;
    for (; slot + kVecs * kLanes <= visible(); slot += kVecs * kLanes) {
      Vec total[kVecs];
      for (int j = 0; j < kVecs; ++j) total[j] = load(columns + slot + j * kLanes);
      for (int64_t i = 0; i < count_; ++i) {
        const float* row = scores(g * count_ + i) + slot;
        const float inverse = inverse_sums_[g * count_ + i];
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) total[j] = combine(total[j], load(row + j * kLanes) * inverse);
      }
      for (int j = 0; j < kVecs; ++j) store(columns + slot + j * kLanes, total[j]);
    }
    // The tail, through one Vec whose other lanes are thrown away (the tile is padded; the columns are not).
    for (; slot < visible(); slot += kLanes) {
      const auto bytes = static_cast<size_t>(std::min<int64_t>(kLanes, visible() - slot)) * sizeof(float);
      Vec total = {};
      std::memcpy(&total, columns + slot, bytes);
      for (int64_t i = 0; i < count_; ++i) {
        total = combine(total, load(scores(g * count_ + i) + slot) * inverse_sums_[g * count_ + i]);
      }
      std::memcpy(columns + slot, &total, bytes);
    }
  }

  const AttendArgs& args_;
  const RowJob& job_;
  const Shape& shape_;
  const TileScratch& scratch_;
  int64_t first_;
  int64_t count_;
  std::vector<float> inverse_sums_ = std::vector<float>(static_cast<size_t>(rows()));
};

void run_share(const AttendArgs& args, const RowJob& job, const Shape& shape, int64_t share,
               const TileScratch& scratch) {
  const int64_t columns = shape.group * job.length;
  float* sums = job.sums ? job.sums + share * columns : nullptr;
  float* maxima = job.maxima ? job.maxima + share * columns : nullptr;
  // Probabilities are >= 0, so 0 starts both the sums and the maxima.
  if (sums) std::fill_n(sums, columns, 0.0f);
  if (maxima) std::fill_n(maxima, columns, 0.0f);
  for (int64_t tile = share; tile < tiles_of(job, shape); tile += job.shares) {
    const int64_t first = tile * shape.tile_queries;
    Tile work(args, job, shape, scratch, first, std::min(shape.tile_queries, job.segment.count - first));
    work.run();
    if (sums || maxima) work.add_columns(sums, maxima);
  }
}

// Adds up the shares of one query head, into the caller's statistics.
void reduce_columns(const AttendArgs& args, const RowJob& job, const Shape& shape, int64_t g) {
  const int64_t columns = shape.group * job.length;
  const int64_t vector = job.row * shape.group + g;
  if (job.sums) {
    float* sums = args.column_sums.row(vector);
    std::copy_n(job.sums + g * job.length, job.length, sums);
    for (int64_t share = 1; share < job.shares; ++share) {
      const float* from = job.sums + share * columns + g * job.length;
      for (int64_t slot = 0; slot < job.length; ++slot) sums[slot] += from[slot];
    }
  }
  if (job.maxima) {
    float* maxima = args.column_max.row(vector);
    std::copy_n(job.maxima + g * job.length, job.length, maxima);
    for (int64_t share = 1; share < job.shares; ++share) {
      const float* from = job.maxima + share * columns + g * job.length;
      for (int64_t slot = 0; slot < job.length; ++slot) {
        maxima[slot] = std::max(maxima[slot], from[slot]);
      }
    }
  }
}

// What each job has of the memory they share, in floats.
struct JobFloats {
  int64_t keys;
  int64_t values;
  int64_t sums;
  int64_t maxima;

  JobFloats(const AttendArgs& args, const Shape& shape) {
    const int64_t slots = round_up(args.cache.max_length, 2 * kPanelWidth);
    const int64_t columns = round_up(kShares * shape.group * args.cache.max_length, 16);
    keys = slots * shape.dim;
    values = slots * shape.value_stride;
    sums = args.column_sums ? columns : 0;
    maxima = args.column_max ? columns : 0;
  }
  int64_t total() const { return keys + values + sums + maxima; }
};

std::vector<RowJob> jobs_of(const AttendArgs& args, const Shape& shape) {
  const PagedView& cache = args.cache;
  std::vector<RowJob> jobs;
  for (int64_t s = 0; s < args.segment_count; ++s) {
    const Segment& segment = args.segments[s];
    if (segment.count <= 1) continue;
    for (int64_t head = 0; head < cache.kv_heads; ++head) {
      const int64_t row = int64_t{segment.sequence} * cache.kv_heads + head;
      RowJob job{.segment = segment, .kv_head = head, .row = row, .length = cache.lengths[row]};
      KV_CHECK(segment.count <= job.length && job.length <= cache.max_length);
      job.shares = std::min(kShares, tiles_of(job, shape));
      if (cache.expires) {
        const int64_t newest = std::min(job.length, cache.expiring);
        job.expires.resize(static_cast<size_t>(newest));
        gather_expires(cache, row, job.length - newest, newest, job.expires.data());
      }
      jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

void give_memory(std::vector<RowJob>& jobs, const JobFloats& floats, float* memory) {
  for (RowJob& job : jobs) {
    job.keys = memory;
    job.values = job.keys + floats.keys;
    float* columns = job.values + floats.values;
    job.sums = floats.sums > 0 ? columns : nullptr;
    job.maxima = floats.maxima > 0 ? columns + floats.sums : nullptr;
    memory += floats.total();
  }
}

void pack(const AttendArgs& args, const Shape& shape, const std::vector<RowJob>& jobs) {
  constexpr int64_t kPackSlots = 256;
  const int64_t blocks = (args.cache.max_length + kPackSlots - 1) / kPackSlots;
  parallel_for(std::ssize(jobs) * blocks, [&](int64_t task) {
    const RowJob& job = jobs[task / blocks];
    const int64_t first = task % blocks * kPackSlots;
    const int64_t end = std::min(job.length, first + kPackSlots);
    if (first >= end) return;
    pack_keys(args, job, first, end);
    copy_values(args, job, shape, first, end);
  });
}

void run_tiles(const AttendArgs& args, const Shape& shape, const std::vector<RowJob>& jobs) {
  const int64_t tile_rows = shape.tile_queries * shape.group;
  const int64_t scratch_floats = tile_rows * (shape.dim + shape.score_stride + shape.value_stride);
  const Scratch scratch(scratch_floats * thread_count());
  parallel_for(std::ssize(jobs) * kShares, [&](int64_t task, int thread) {
    const RowJob& job = jobs[task / kShares];
    if (task % kShares >= job.shares) return;
    float* base = scratch.data() + thread * scratch_floats;
    const TileScratch tile{.queries = base,
                           .scores = base + tile_rows * shape.dim,
                           .output = base + tile_rows * (shape.dim + shape.score_stride)};
    run_share(args, job, shape, task % kShares, tile);
  });
}

}  // namespace

void attend_prefill(const AttendArgs& args) {
  const PagedView& cache = args.cache;
  const int64_t group = args.q_heads / cache.kv_heads;
  const Shape shape{.dim = cache.head_dim,
                    .value_stride = round_up(cache.head_dim, kPanelWidth),
                    .group = group,
                    .tile_queries = std::max<int64_t>(1, kTileRows / group),
                    // One cache line beyond whole panels: rows of a power of two would share their cache sets.
                    .score_stride = round_up(cache.max_length, 2 * kPanelWidth) + 16};
  std::vector<RowJob> jobs = jobs_of(args, shape);
  const JobFloats floats(args, shape);
  const Scratch memory(std::ssize(jobs) * floats.total());
  give_memory(jobs, floats, memory.data());
  pack(args, shape, jobs);
  run_tiles(args, shape, jobs);
  if (!args.column_sums && !args.column_max) return;
  parallel_for(std::ssize(jobs) * group,
               [&](int64_t task) { reduce_columns(args, jobs[task / group], shape, task % group); });
}

}  // namespace kv::cpu
