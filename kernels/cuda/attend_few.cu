#include "kernels/cuda/attend.cuh"

// Memory is the limit here, so all multiprocessors have to stream pages from the first moment to the last, however
// ragged the rows are. The pages of all rows form one list, which is cut into equal runs, one a thread block, one block
// a multiprocessor; a row that the cuts fall into is joined by whichever of its blocks finishes last, in the order of
// its pieces. Where the cuts fall follows from the lengths in device memory alone: the grid and the scratch memory do
// not depend on them, so a launch can be captured in a graph and replayed while the rows grow.

namespace kv::cuda {

namespace {

constexpr int kMaxWarps = 8;
constexpr int kMaxThreads = kMaxWarps * 32;
constexpr int kMaxBlocks = 1024;
constexpr size_t kStaticBytes = 1024;  // more than the kernel's fixed shared variables take
constexpr int kLeastPages = 8;         // of a block: below that, joining costs more than it saves

// The part of a row that lies in a block's run of pages.
struct Part {
  int32_t start;       // its first page, counted from the first of the window
  int32_t first_page;  // the same page, counted in the row
  int32_t ordinal;     // of the row's first page in the list of all pages
  int32_t row;         // of the cache
  int32_t length;      // of the row
  int32_t segment;
  int32_t first_token;  // of the segment
  int32_t count;        // of the segment

  __device__ int pages() const { return (length + kPageTokens - 1) / kPageTokens; }
  // Of the row, in the window: the first page and the one after the last.
  __device__ int row_first() const { return start - first_page; }
  __device__ int row_end() const { return row_first() + pages(); }

  // In the packed tensors, times head_dim.
  __device__ int64_t vector(const AttendArgs& args, int group, int pair) const {
    return head_of(args, group, pair) + int64_t{first_token + pair / group} * args.q_heads;
  }
  // In work.softmax, which leaves room for max_count queries a segment.
  __device__ int64_t scratch(const AttendArgs& args, int group, int pair) const {
    return head_of(args, group, pair) + (segment * args.max_count + pair / group) * args.q_heads;
  }
  __device__ int head_of(const AttendArgs& args, int group, int pair) const {
    return row % args.cache.kv_heads * group + pair % group;
  }
};

// The list of all pages is cut into shares, one a block.
struct Shares {
  int pages = 0;  // of each but the last

  // The first block that has a part of the row, and how many have one.
  __device__ int first_of(const Part& part) const { return part.ordinal / pages; }
  __device__ int count_of(const Part& part) const {
    return (part.ordinal + part.pages() - 1) / pages - first_of(part) + 1;
  }
};

// The run of one warp, an equal share of its block's pages, and what it makes of it. Rows that lie in one run are done
// with there; of the others each warp leaves its piece in shared memory. A run has two at most: the end of a row that
// began earlier, and the beginning of one that goes on (or the middle of one that does both), which comes last.
struct Run {
  int first;
  int end;

  __device__ bool holds(const Part& part) const { return first <= part.row_first() && part.row_end() <= end; }
};

// A block's share is worked off in windows of at most kParts parts: of pages [first, end) of the list.
constexpr int kParts = 128;
struct Window {
  int first = 0;
  int end = 0;
  int parts = 0;
  bool is_last = true;
  int run_pages = 0;  // of a warp; 0 in a window without pages

  __device__ int pages() const { return end - first; }
  __device__ Run run_of(int warp) const {
    return {min(warp * run_pages, pages()), min((warp + 1) * run_pages, pages())};
  }
  __device__ static int warps() { return static_cast<int>(blockDim.x / 32); }
};

// Which of the listed parts a page of the window belongs to.
__device__ int part_at(const Part* parts, const Window& window, int page) {
  int low = 0, high = window.parts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (parts[middle].start <= page ? low : high) = middle;
  }
  return low;
}

struct FewWork {
  size_t piece_bytes;      // that a warp's piece takes in shared memory
  float* piece_outputs;    // [2 · blocks, max_pairs, head_dim], not divided by the sum
  Softmax* piece_softmax;  // [2 · blocks, max_pairs]
  int max_pairs;
};

// How many blocks have added their piece to a row, by the row's first block. Always back at 0 after a launch.
__device__ unsigned int arrived[kMaxBlocks];

// Of the index-th (segment, KV head). Returns how many pages it has; none when the sequence has ended.
__device__ int pages_of(const AttendArgs& args, int index, Part& part) {
  const int kv_heads = args.cache.kv_heads;
  part.segment = index / kv_heads;
  const Segment segment = args.segments[part.segment];
  part.row = segment.sequence * kv_heads + index % kv_heads;
  part.length = args.cache.lengths[part.row];
  part.first_token = segment.first_token;
  part.count = segment.count;
  return part.count == 0 ? 0 : (part.length + kPageTokens - 1) / kPageTokens;
}

// Pages in the low half, rows that have any in the high half: both are summed at once.
__device__ uint64_t page_count(int pages) { return static_cast<uint32_t>(pages) | uint64_t{pages > 0} << 32; }

// Sum over the lower threads of the block; `total` over all of them.
__device__ uint64_t sum_before(uint64_t value, uint64_t& total) {
  __shared__ uint64_t warps[kMaxWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t until = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t other = __shfl_up_sync(kWarp, until, offset);
    if (lane >= offset) until += other;
  }
  __syncthreads();  // readers of the previous call are done
  if (lane == 31) warps[warp] = until;
  __syncthreads();
  uint64_t before = until - value;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return before;
}

// Has the lengths on their way to the L2 cache while the segments, which say whose are needed, are being read.
__device__ void prefetch_lengths(const PagedView& cache) {
  constexpr int kSector = 32 / sizeof(int32_t);
  for (int64_t at = threadIdx.x * kSector; at < cache.rows; at += blockDim.x * kSector) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(cache.lengths + at));
  }
}

// Lists the parts of the block's share from its page `done` on.
__device__ Window list_parts(const AttendArgs& args, int done, Part* parts, Shares& shares) {
  __shared__ int first_row, listed, listed_end;
  const int rows = static_cast<int>(args.segment_count) * args.cache.kv_heads;
  const int per_thread = (rows + blockDim.x - 1) / blockDim.x;
  const int begin = threadIdx.x * per_thread, end = min(rows, begin + per_thread);
  Part part;
  uint64_t own = 0, total = 0;
#pragma unroll 4
  for (int r = begin; r < end; ++r) own += page_count(pages_of(args, r, part));  // reads that wait for no other
  const uint64_t before = sum_before(own, total);
  const int all = static_cast<int>(static_cast<uint32_t>(total));
  const int share = max(kLeastPages, static_cast<int>((all + gridDim.x - 1) / gridDim.x));
  shares.pages = share;
  // There may be more blocks than shares: theirs begin beyond the list.
  const int64_t share_begin = int64_t{blockIdx.x} * share;
  Window window{.first = static_cast<int>(min(share_begin + done, int64_t{all})),
                .end = static_cast<int>(min(share_begin + share, int64_t{all}))};
  if (window.first >= window.end) return window;

  // Calls for this thread's rows that reach into the window.
  const auto visit_rows = [&](const auto& visit) {
    uint64_t at = before;
    for (int r = begin; r < end; ++r) {
      const int pages = pages_of(args, r, part);
      const int ordinal = static_cast<int>(static_cast<uint32_t>(at));
      if (pages > 0 && ordinal < window.end && ordinal + pages > window.first) {
        visit(static_cast<int>(at >> 32), ordinal, ordinal + pages);
      }
      at += page_count(pages);
    }
  };
  visit_rows([&](int row, int ordinal, int) {
    if (ordinal <= window.first) first_row = row;
  });
  __syncthreads();
  visit_rows([&](int row, int ordinal, int row_end) {
    const int k = row - first_row;
    if (k >= kParts) return;
    KV_DEVICE_CHECK(part.length >= part.count);
    const int from = max(ordinal, window.first);
    part.start = from - window.first;
    part.first_page = from - ordinal;
    part.ordinal = ordinal;
    parts[k] = part;
    if (row_end >= window.end || k == kParts - 1) {
      listed = k + 1;
      listed_end = min(window.end, row_end);
    }
  });
  __syncthreads();
  window.is_last = listed_end == window.end;
  window.end = listed_end;
  window.parts = listed;
  window.run_pages = (window.pages() + Window::warps() - 1) / Window::warps();
  return window;
}

template <int D>
struct Few {
  static constexpr int kStages = D <= 32 ? 8 : D <= 64 ? 6 : 3;
  static constexpr int kPageValues = kPageTokens * kStride<D>;
  static constexpr int kStageValues = 2 * kPageValues;  // keys, then values
  static constexpr size_t kWarpBytes = kStages * kStageValues * sizeof(bf16);
  static constexpr size_t kPartBytes = kParts * sizeof(Part);
  // The stages take a warp's last piece.
  static_assert(kWarpBytes >= kFewPairs * (D * sizeof(float) + sizeof(Softmax)));
};

// The 16 pairs of a part as the left operand, read straight from memory.
template <int D>
__device__ void load_queries(HeldRows<D, 1>& queries, const AttendArgs& args, const AttendWork& work, const Part& part,
                             int dim, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = lane / 4 + 8 * half;
    const bool there = pair < part.count * work.group;
    const bf16* from = work.queries + part.vector(args, work.group, pair) * dim;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int d = step * 16 + right * 8 + lane % 4 * 2;
        queries.a[0][step][half + 2 * right] = there && d < dim ? *reinterpret_cast<const uint32_t*>(from + d) : 0;
      }
    }
  }
}

// What some pieces of a pair make together, for as many values of the output as Values has.
template <class Values>
struct Joined {
  Softmax softmax{-kInfinity, 0};
  Values values{};

  __device__ void add(Softmax piece, const Values& of_piece) {
    const float largest = fmaxf(softmax.largest, piece.largest);
    const float from = largest == -kInfinity ? 0.0f : largest;
    const float before = exp2_fast(softmax.largest - from), weight = exp2_fast(piece.largest - from);
    softmax = {largest, before * softmax.sum + weight * piece.sum};
    auto* own = reinterpret_cast<float*>(&values);
    const auto* other = reinterpret_cast<const float*>(&of_piece);
#pragma unroll
    for (size_t e = 0; e < sizeof(Values) / sizeof(float); ++e) own[e] = before * own[e] + weight * other[e];
  }
};

// Writes two values of one pair's output, and its softmax once.
__device__ void write_joined(const AttendArgs& args, const AttendWork& work, const Part& part, int dim, int pair, int d,
                             Softmax softmax, float2 values) {
  const float inverse = 1 / softmax.sum;
  write_output(work, part.vector(args, work.group, pair) * dim + d, values.x * inverse, values.y * inverse);
  if (d == 0 && work.softmax) work.softmax[part.scratch(args, work.group, pair)] = {softmax.largest, inverse};
}

// Joins what the blocks have of a row, for the block that came last: a warp joins 64 values of a pair, two a lane. All
// pieces, or kAtOnce of more, are read together.
__device__ void join_blocks(const AttendArgs& args, const AttendWork& work, const FewWork& few, const Part& part,
                            const Shares& shares, int dim) {
  constexpr int kAtOnce = 24;  // at most 32, one a lane
  const int lane = threadIdx.x % 32, slices = (dim + 63) / 64;
  const int first_block = shares.first_of(part), pieces = shares.count_of(part);
  for (int i = threadIdx.x / 32; i < part.count * work.group * slices; i += Window::warps()) {
    const int pair = i / slices, d = i % slices * 64 + lane * 2;
    Joined<float2> joined;
    for (int first = 0; first < pieces; first += kAtOnce) {
      const int count = min(kAtOnce, pieces - first);
      const auto place = [&](int p) {
        return int64_t{2 * (first_block + first + p) + (first + p == 0)} * few.max_pairs + pair;
      };
      const float2 own = lane < count ? __ldcg(reinterpret_cast<const float2*>(few.piece_softmax + place(lane)))
                                      : float2{-kInfinity, 0};
      float2 values[kAtOnce];
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (p >= count) break;
        values[p] =
            d < dim ? __ldcg(reinterpret_cast<const float2*>(few.piece_outputs + place(p) * dim + d)) : float2{};
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        if (p >= count) break;
        joined.add({__shfl_sync(kWarp, own.x, p), __shfl_sync(kWarp, own.y, p)}, values[p]);
      }
    }
    if (d < dim) write_joined(args, work, part, dim, pair, d, joined.softmax, joined.values);
  }
}

// Where warps leave their pieces: [max_pairs, D], then the softmax of each pair.
template <int D>
struct Piece {
  float* outputs;
  Softmax* softmax;
  __device__ Piece(void* at, int max_pairs)
      : outputs(static_cast<float*>(at)), softmax(reinterpret_cast<Softmax*>(outputs + max_pairs * D)) {}
};
template <int D>
__host__ __device__ constexpr size_t piece_bytes(int max_pairs) {
  constexpr size_t kFourValues = 16;  // which are read at once where a piece begins
  return (max_pairs * (D * sizeof(float) + sizeof(Softmax)) + kFourValues - 1) / kFourValues * kFourValues;
}

// As copy_async(), of what lies in one piece: the L2 cache fetches 256 bytes at once.
__device__ void copy_stream(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n" ::"r"(shared_address(to)), "l"(from));
}

// The pages of a warp's run, streamed through the warp's stages. Reading runs ahead over the ends of rows.
template <int D>
struct Pages {
  using Shape = Few<D>;
  // Of one page: its number in the pool, and how many of its slots are filled.
  struct Ahead {
    int32_t page = 0;
    int32_t filled = 0;
  };

  const PagedView& cache;
  const Part* parts;
  const Window& window;
  Run run;
  bf16* stages;
  int dim;
  int lane;
  Ahead current{}, next{};  // of the run's pages from t − t % 32 on and of the 32 after those, one a lane

  __device__ Ahead look_up(int t) const {
    Ahead ahead;
    const int at = run.first + t + lane;
    if (at >= run.end) return ahead;
    const Part& part = parts[part_at(parts, window, at)];
    const int page = at - part.row_first();
    ahead.page = cache.page_table[part.row * cache.max_pages + page];
    ahead.filled = min(kPageTokens, part.length - page * kPageTokens);
#ifndef NDEBUG
    KV_DEVICE_CHECK(ahead.page >= 0);
#endif
    return ahead;
  }

  __device__ void begin() {
    next = look_up(0);
#pragma unroll
    for (int t = 0; t < Shape::kStages - 1; ++t) stage(t);
  }

  // Starts copying the keys or the values of a page. Nearly all pages are full, and then lie in one piece: nothing has
  // to be asked about their rows.
  __device__ void stage_half(bf16* to, const bf16* from, int filled) const {
    if (filled < kPageTokens || dim < D) {
      return stage_rows<D>(to, kPageTokens, dim, lane, 32,
                           [&](int r) { return r < filled ? from + r * dim : nullptr; });
    }
    constexpr int kRow = D / 8;  // words of 16 bytes
#pragma unroll
    for (int i = 0; i < kPageTokens * kRow / 32; ++i) {
      const int word = lane + 32 * i;
      copy_stream(to + word / kRow * kStride<D> + word % kRow * 8, from + word * 8);
    }
  }

  // Starts copying the run's page t.
  __device__ void stage(int t) {
    if (t % 32 == 0) {
      current = next;
      next = look_up(t + 32);
    }
    const int32_t page = __shfl_sync(kWarp, current.page, t % 32);
    const int32_t filled = __shfl_sync(kWarp, current.filled, t % 32);
    if (filled > 0) {
      bf16* keys = stages + t % Shape::kStages * Shape::kStageValues;
      const int64_t from = int64_t{page} * kPageTokens * dim;
      const auto* pool_keys = static_cast<const bf16*>(cache.keys.data) + from;
      const auto* pool_values = static_cast<const bf16*>(cache.values.data) + from;
      stage_half(keys, pool_keys, filled);
      stage_half(keys + Shape::kPageValues, pool_values, filled);
    }
    commit_copies();  // also when empty, so that the count of groups in flight stays the same
  }

  // Waits for the run's page t, and sends for the one that takes the place of the page before. Returns its keys; its
  // values follow.
  __device__ const bf16* take(int t) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();  // the page has come, for all lanes; and all are done with the one before
    stage(t + Shape::kStages - 1);
    return stages + t % Shape::kStages * Shape::kStageValues;
  }
};

// What a warp has of a part's pairs: lane / 4 and lane / 4 + 8 are its own two.
template <int D>
struct Attended {
  float output[1][D / 8][4] = {};
  Softmax state[2] = {{-kInfinity, 0}, {-kInfinity, 0}};

  // One page; pair `half` of the lane sees its first seen[half] slots.
  __device__ void add_page(const HeldRows<D, 1>& queries, const bf16* keys, const int (&seen)[2], float scale,
                           int lane) {
    float logits[1][2][4];
    queries.template times<2>(keys, lane, logits);
    if (min(seen[0], seen[1]) < kPageTokens) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (n * 8 + lane % 4 * 2 + e % 2 >= seen[e / 2]) logits[0][n][e] = -kInfinity;
        }
      }
    }
    const float shrink[2] = {online_step(logits[0], 0, scale, state[0]), online_step(logits[0], 1, scale, state[1])};
    if (__any_sync(kWarp, shrink[0] != 1 || shrink[1] != 1)) {  // a new maximum, which later pages seldom have
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) output[0][n][e] *= shrink[e / 2];
      }
    }
    const uint32_t a[4] = {pack(logits[0][0][0], logits[0][0][1]), pack(logits[0][0][2], logits[0][0][3]),
                           pack(logits[0][1][0], logits[0][1][1]), pack(logits[0][1][2], logits[0][1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      load_right_by_columns<D>(b, keys + Few<D>::kPageValues, 0, n / 2, lane);
      multiply_add(output[0][n], a, b[0], b[1]);
      multiply_add(output[0][n + 1], a, b[2], b[3]);
    }
  }

  // Of each pair of the lane, what write(pair, softmax) returns takes the outputs: (d, values).
  template <class Write>
  __device__ void visit(int pairs, int lane, const Write& write) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = lane / 4 + 8 * half;
      const float sum = sum_of_four_lanes(state[half].sum);
      if (pair >= pairs) continue;
      const auto write_values = write(pair, Softmax{state[half].largest, sum});
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        write_values(n * 8 + lane % 4 * 2, float2{output[0][n][2 * half], output[0][n][2 * half + 1]});
      }
    }
  }
};

// A block's shared memory: the list of parts, the stages of each warp, and the place of each for a piece that is done
// before its run is.
template <int D>
struct Shared {
  using Shape = Few<D>;
  unsigned char* start;
  size_t piece_bytes;
  int max_pairs;

  __device__ Part* parts() const { return reinterpret_cast<Part*>(start); }
  __device__ unsigned char* stages(int warp) const { return start + Shape::kPartBytes + warp * Shape::kWarpBytes; }
  // The last piece of a run takes the stages, which nothing comes into any more; an earlier one has its own place.
  __device__ Piece<D> piece(const Part& part, const Run& run, int warp) const {
    return Piece<D>(part.row_end() < run.end ? stages(Window::warps()) + warp * piece_bytes : stages(warp), max_pairs);
  }
};

// Attends to the parts of the warp's run, and leaves what is no whole row as pieces.
template <int D>
__device__ void attend_run(const AttendArgs& args, const AttendWork& work, const Shared<D>& shared,
                           const Window& window, int dim) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Run run = window.run_of(warp);
  const float scale = args.scale * kToLog2;
  Pages<D> pages{args.cache, shared.parts(), window, run, reinterpret_cast<bf16*>(shared.stages(warp)), dim, lane};
  pages.begin();
  int k = part_at(shared.parts(), window, run.first);
  for (int t = 0; run.first + t < run.end; ++k) {
    const Part part = shared.parts()[k];
    const int pairs = part.count * work.group;
    HeldRows<D, 1> queries;
    load_queries<D>(queries, args, work, part, dim, lane);
    Attended<D> attended;
    for (const int end = min(part.row_end(), run.end) - run.first; t < end; ++t) {
      const bf16* keys = pages.take(t);
      const int first_slot = (run.first + t - part.row_first()) * kPageTokens;
      int seen[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(lane / 4 + 8 * half, pairs - 1) / work.group;
        seen[half] = part.length - part.count + query + 1 - first_slot;
      }
      attended.add_page(queries, keys, seen, scale, lane);
    }
    __syncwarp();  // all are done with the stages
    if (run.holds(part)) {
      attended.visit(pairs, lane, [&](int pair, Softmax softmax) {
        const float inverse = 1 / softmax.sum;
        if (lane % 4 == 0 && work.softmax) {
          work.softmax[part.scratch(args, work.group, pair)] = {softmax.largest, inverse};
        }
        return [&work, dim, inverse, at = part.vector(args, work.group, pair) * dim](int d, float2 values) {
          if (d < dim) write_output(work, at + d, values.x * inverse, values.y * inverse);
        };
      });
    } else {
      const Piece<D> piece = shared.piece(part, run, warp);
      attended.visit(pairs, lane, [&](int pair, Softmax softmax) {
        if (lane % 4 == 0) piece.softmax[pair] = softmax;
        return [to = piece.outputs + pair * D](int d, float2 values) { *reinterpret_cast<float2*>(to + d) = values; };
      });
    }
  }
}

// A part that several warps have a piece of, or the one that an earlier block began.
struct Split {
  int part;  // −1: none
  int first_warp;
  int last_warp;
  int piece;  // where the block leaves what it has of the row; −1: that is all of it
};

// Of each warp the part that begins in its run and goes on beyond, and last what an earlier block began. What the
// joining threads need of it is worked out once.
__device__ void find_split(const Part* parts, const Window& window, const Shares& shares,
                           Split (&split)[kMaxWarps + 1]) {
  if (threadIdx.x > kMaxWarps) return;
  const int warp = static_cast<int>(threadIdx.x);
  Split own{.part = -1, .first_warp = warp % kMaxWarps, .last_warp = 0, .piece = -1};
  if (warp == kMaxWarps) {
    if (parts[0].first_page > 0) own.part = 0;
  } else if (const Run run = window.run_of(warp); run.first < run.end) {
    const int last = part_at(parts, window, run.end - 1);
    if (parts[last].row_first() >= run.first && parts[last].row_end() > run.end) own.part = last;
  }
  if (own.part >= 0) {
    const Part& part = parts[own.part];
    own.last_warp = (min(part.row_end(), window.pages()) - 1) / window.run_pages;
    // A block's two pieces, if it has two: the end of one row and the beginning of another.
    if (shares.count_of(part) > 1) own.piece = static_cast<int>(2 * blockIdx.x + (part.first_page == 0));
  }
  split[warp] = own;
}

// Joins the warps' pieces of those parts, into the output or into the block's pieces: four values a thread, of all
// parts at once, because nothing streams while they are joined.
template <int D>
__device__ void join_warps(const AttendArgs& args, const AttendWork& work, const FewWork& few, const Shared<D>& shared,
                           const Window& window, const Split (&split)[kMaxWarps + 1], int dim) {
  constexpr int kFours = D / 4;
  for (int i = static_cast<int>(threadIdx.x); i < (kMaxWarps + 1) * few.max_pairs * kFours; i += blockDim.x) {
    const int which = i / kFours / few.max_pairs;
    const int pair = i / kFours - which * few.max_pairs, d = i % kFours * 4;
    const Split own = split[which];
    if (own.part < 0 || d >= dim) continue;
    const Part& part = shared.parts()[own.part];
    if (pair >= part.count * work.group) continue;
    Joined<float4> joined;
#pragma unroll 1
    for (int warp = own.first_warp; warp <= own.last_warp; ++warp) {
      const Piece<D> piece = shared.piece(part, window.run_of(warp), warp);
      joined.add(piece.softmax[pair], *reinterpret_cast<const float4*>(piece.outputs + pair * D + d));
    }
    const Softmax softmax = joined.softmax;
    const int64_t at = int64_t{own.piece} * few.max_pairs + pair;
    if (own.piece >= 0 && d == 0) few.piece_softmax[at] = softmax;
    float2 values{joined.values.x, joined.values.y};
#pragma unroll 1
    for (int to = d; to < min(d + 4, dim); to += 2) {
      if (own.piece >= 0) {
        *reinterpret_cast<float2*>(few.piece_outputs + at * dim + to) = values;
      } else {
        write_joined(args, work, part, dim, pair, to, softmax, values);
      }
      values = {joined.values.z, joined.values.w};
    }
  }
}

// Each warp streams the pages of its run through stages of its own, without a barrier among warps until all are done.
template <int D, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, 1) attend_few(AttendArgs args, AttendWork work, FewWork few) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Split split[kMaxWarps + 1];
  __shared__ int to_join[2];                         // parts of which this block had the last piece; −1 = none
  const int dim = kWhole ? D : args.cache.head_dim;  // known to the compiler where it can be: addresses cost time here
  const Shared<D> shared{memory, few.piece_bytes, few.max_pairs};
  const Part* parts = shared.parts();
  int done = 0;
  Shares shares;
  Window window;
  let_next_start();
  wait_for_previous();
  prefetch_lengths(args.cache);
  do {
    window = list_parts(args, done, shared.parts(), shares);
    if (window.pages() == 0) return;
    done += window.pages();
    attend_run<D>(args, work, shared, window, dim);
    find_split(parts, window, shares, split);
    __syncthreads();
    join_warps<D>(args, work, few, shared, window, split, dim);
    __threadfence();
    __syncthreads();
    // The window's first part may have begun in an earlier block, its last one may go on in a later one.
    if (threadIdx.x < 2) {
      const int k = threadIdx.x == 0 ? 0 : window.parts - 1;
      const int blocks = shares.count_of(parts[k]);
      unsigned int& count = arrived[shares.first_of(parts[k])];
      const bool is_split = blocks > 1 && (threadIdx.x == 0 || k > 0);
      const bool is_last = is_split && atomicAdd(&count, 1u) == static_cast<unsigned int>(blocks - 1);
      if (is_last) count = 0;
      to_join[threadIdx.x] = is_last ? k : -1;
    }
    __syncthreads();
    for (const int k : to_join) {
      if (k < 0) continue;
      __threadfence();
      join_blocks(args, work, few, parts[k], shares, dim);
    }
    __syncthreads();  // parts and stages are free for the next window
  } while (!window.is_last);
}

template <int D>
void run(const AttendArgs& args, const AttendWork& work) {
  using Shape = Few<D>;
  const int blocks = std::min(multiprocessors(), kMaxBlocks);
  const int max_pairs = static_cast<int>(args.max_count) * work.group;
  const size_t warp_bytes = Shape::kWarpBytes + piece_bytes<D>(max_pairs);
  const size_t bytes = shared_bytes_a_block() - kStaticBytes - Shape::kPartBytes;
  const int warps = std::min(kMaxWarps, static_cast<int>(bytes / warp_bytes));
  KV_CHECK(warps > 0);
  const int64_t pieces = 2 * int64_t{blocks} * max_pairs;
  const Scratch<float> piece_outputs(pieces * args.cache.head_dim);
  const Scratch<Softmax> piece_softmax(pieces);
  launch_early(args.cache.head_dim == D ? attend_few<D, true> : attend_few<D, false>, blocks, warps * 32,
               Shape::kPartBytes + warps * warp_bytes, args, work,
               FewWork{piece_bytes<D>(max_pairs), piece_outputs.data(), piece_softmax.data(), max_pairs});
}

}  // namespace

void run_few(const AttendArgs& args, AttendWork work) {
  KV_CHECK(args.segment_count * args.cache.kv_heads * args.cache.max_pages <= INT32_MAX);
  with_width(args.cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
