#pragma once

#include "kernels/cuda/attend/decode/row.cuh"
#include "kernels/cuda/scan.cuh"

// The list of all rows' pages that decode attention (decode.cu) streams, and what part of it belongs to whom: a
// share to a block, of which a run to each warp. All of it follows from the lengths, which every block reads for
// itself.

namespace kv::cuda::decode {

inline constexpr int kMaxWarps = 8;
inline constexpr int kLeastPages = 8;  // of a block: below that, joining costs more than it saves

// The part of a row that lies in a block's window of pages.
struct Part : Row {
  int32_t start;       // its first page, counted from the first of the window
  int32_t first_page;  // the same page, counted in the row

  // The whole row's pages, counted like `start`: the first, and the one after the last.
  __device__ int row_first() const { return start - first_page; }
  __device__ int row_end() const { return row_first() + pages(); }
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
inline constexpr int kParts = 128;
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

struct Blocks {
  int first;
  int count;
};

// The list of all pages is cut into shares, one a block.
struct Shares {
  int pages = 0;  // of each but the last

  // The blocks that have a part of the row.
  __device__ Blocks of(const Part& part, const Window& window) const {
    const int first_page = window.first + part.row_first();
    const int first = first_page / pages;
    return {first, (first_page + part.pages() - 1) / pages - first + 1};
  }
};

// Which of the listed parts a page of the window belongs to.
__device__ inline int part_at(const Part* parts, const Window& window, int page) {
  int low = 0, high = window.parts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (parts[middle].start <= page ? low : high) = middle;
  }
  return low;
}

// Calls visit(part, pages) for (segment, KV head) `begin` to `end`, in this order; no pages when the sequence has
// ended.
template <int kUnroll, class Visit>
__device__ void visit_rows(const AttendArgs& args, int begin, int end, const Visit& visit) {
  const int kv_heads = args.cache.kv_heads;
  Part part;
  part.segment = begin / kv_heads;
  part.kv_head = begin - part.segment * kv_heads;
#pragma unroll kUnroll
  for (int r = begin; r < end; ++r) {
    part.read(args);
    visit(part, part.count == 0 ? 0 : part.pages());
    if (++part.kv_head == kv_heads) {
      part.kv_head = 0;
      ++part.segment;
    }
  }
}

// Pages in the low half, rows that have any in the high half: both are summed at once.
__device__ inline uint64_t page_count(int pages) { return static_cast<uint32_t>(pages) | uint64_t{pages > 0} << 32; }

// Sum over the lower threads of the block; `total` over all of them.
__device__ inline uint64_t sum_before(uint64_t value, uint64_t& total) {
  __shared__ uint64_t warps[kMaxWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t until = warp_sum_until(value);
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

// Has the lengths on their way to the L2 cache while the segments, which say whose are needed, are being read, and the
// page table (all blocks together, if it is small) while the lengths are.
__device__ inline void prefetch_tables(const PagedView& cache) {
  constexpr int kSector = 32 / sizeof(int32_t);
  const auto prefetch = [](const int32_t* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); };
  for (int64_t at = threadIdx.x * kSector; at < cache.rows; at += blockDim.x * kSector) prefetch(cache.lengths + at);
  const int64_t entries = cache.rows * cache.max_pages, all_threads = int64_t{gridDim.x} * blockDim.x;
  const int64_t at = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kSector;
  if (entries <= all_threads * kSector && at < entries) prefetch(cache.page_table + at);
}

// Lists the parts of the block's share from its page `done` on. All threads have to meet between two calls.
__device__ inline Window list_parts(const AttendArgs& args, int rows_a_thread, int done, Part* parts, Shares& shares) {
  __shared__ int first_row, listed, listed_end;
  const int rows = static_cast<int>(args.segment_count) * args.cache.kv_heads;
  const int begin = min(rows, static_cast<int>(threadIdx.x) * rows_a_thread), end = min(rows, begin + rows_a_thread);
  uint64_t thread_pages = 0, total = 0;
  constexpr int kAtOnce = 4;  // reads that wait for no other
  visit_rows<kAtOnce>(args, begin, end, [&](const Part&, int pages) { thread_pages += page_count(pages); });
  const uint64_t before = sum_before(thread_pages, total);
  const int all = static_cast<int>(static_cast<uint32_t>(total));
  const int share = max(kLeastPages, static_cast<int>((all + gridDim.x - 1) / gridDim.x));
  shares.pages = share;
  // There may be more blocks than shares: theirs begin beyond the list.
  const int64_t share_begin = int64_t{blockIdx.x} * share;
  Window window{.first = static_cast<int>(min(share_begin + done, int64_t{all})),
                .end = static_cast<int>(min(share_begin + share, int64_t{all}))};
  if (window.first >= window.end) return window;

  // Calls for this thread's rows that reach into the window: with the row's number among those that have pages, its
  // first page in the list, and the one after its last.
  const auto reaches = [&](int first, int pages) {
    return pages > 0 && first < window.end && first + pages > window.first;
  };
  const auto visit_window = [&](const auto& visit) {
    uint64_t at = before;
    if (!reaches(static_cast<int>(static_cast<uint32_t>(before)),
                 static_cast<int>(static_cast<uint32_t>(thread_pages))))
      return;
    visit_rows<1>(args, begin, end, [&](Part& part, int pages) {
      const int first = static_cast<int>(static_cast<uint32_t>(at));
      if (reaches(first, pages)) visit(part, static_cast<int>(at >> 32), first, first + pages);
      at += page_count(pages);
    });
  };
  visit_window([&](const Part&, int row, int first, int) {
    if (first <= window.first) first_row = row;
  });
  __syncthreads();
  visit_window([&](Part& part, int row, int first, int row_end) {
    const int k = row - first_row;
    if (k >= kParts) return;
    KV_DEVICE_CHECK(part.length >= part.count);
    const int from = max(first, window.first);
    part.start = from - window.first;
    part.first_page = from - first;
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

}  // namespace kv::cuda::decode
