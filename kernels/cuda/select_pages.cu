#include "kernels/select_pages.h"

#include "kernels/cuda/radix.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kDigit = 11;  // as kernels/cuda/select_row.cuh

// A row of what is written, and the row of the cache that it reads.
struct ChoiceRow {
  Segment segment;
  int64_t written, row, first_head, heads;
};

__device__ ChoiceRow choice_row(const SelectPagesArgs& args, int64_t index) {
  const PagedView& cache = args.cache;
  const int64_t group = args.q_heads / cache.kv_heads, rows = args.per_query_head ? args.q_heads : cache.kv_heads;
  const Segment segment = args.segments[index / rows];
  const int64_t head = index % rows, sequence = segment.sequence;
  if (args.per_query_head) {
    return {segment, sequence * rows + head, sequence * cache.kv_heads + head / group, head, 1};
  }
  return {segment, sequence * rows + head, sequence * rows + head, head * group, group};
}

__device__ int64_t pages_of(int64_t length) { return (length + kPageTokens - 1) / kPageTokens; }

// One thread a page; the sums go on in the order of d, as on the CPU.
__global__ void bound_kernel(SelectPagesArgs args, uint32_t* scores, int64_t tiles) {
  const RowTile at = row_tile(tiles, kThreads);
  const PagedView& cache = args.cache;
  const ChoiceRow choice = choice_row(args, at.row);
  const int64_t page = at.first + threadIdx.x;
  if (choice.segment.count != 1 || page >= pages_of(cache.lengths[choice.row])) return;
  const int dim = cache.head_dim;
  const int64_t pool_page = cache.page_table[choice.row * cache.max_pages + page];
  const bf16* low = static_cast<const bf16*>(cache.bounds.data) + pool_page * 2 * dim;
  const bf16* query = static_cast<const bf16*>(args.queries.data) +
                      (int64_t{choice.segment.first_token} * args.q_heads + choice.first_head) * dim;
  uint32_t largest = 0;
  for (int64_t head = 0; head < choice.heads; ++head, query += dim) {
    float sum = 0;
    for (int d = 0; d < dim; ++d) {
      const float q = to_f32(query[d]);
      sum += fmaxf(__fmul_rn(q, to_f32(low[d])), __fmul_rn(q, to_f32(low[dim + d])));
    }
    largest = max(largest, ordered(isnan(sum) ? kInfinity : sum));
  }
  scores[at.row * cache.max_pages + page] = largest;
}

// One block a row. Of the pages at the least score that is read only the newest are.
__global__ void __launch_bounds__(kThreads) choose_kernel(SelectPagesArgs args, const uint32_t* all_scores) {
  const PagedView& cache = args.cache;
  const ChoiceRow choice = choice_row(args, blockIdx.x);
  const int64_t length = cache.lengths[choice.row], pages = pages_of(length);
  const int32_t* table = cache.page_table + choice.row * cache.max_pages;
  int32_t* chosen = args.page_table + choice.written * cache.max_pages;
  const uint32_t* scores = all_scores + int64_t{blockIdx.x} * cache.max_pages;
  const bool all = choice.segment.count != 1 || pages <= args.pages;
  const int64_t first_newest = all ? 0 : max(int64_t{0}, length - args.newest) / kPageTokens;
  const int others = static_cast<int>(min(max(int64_t{0}, args.pages - (pages - first_newest)), first_newest));

  Cut<uint32_t, unsigned> cut{};
  int spare = 0;  // the oldest at the cut, which are too many
  if (others > 0) {
    const auto score = [&](int64_t page) { return scores[page]; };
    cut = radix_cut<kDigit, uint32_t, unsigned>(first_newest, static_cast<unsigned>(others), score,
                                                [](int64_t) { return 1u; });
    int at_cut = 0;
    for (int64_t page = threadIdx.x; page < first_newest; page += kThreads) at_cut += scores[page] == cut.key;
    spare = max(0, block_reduce(at_cut, 0, Add()) - static_cast<int>(cut.missing));
  }
  int written = 0, equals = 0;  // in the pages before the current ones
  for (int64_t first = 0; first < pages; first += kThreads) {
    const int64_t page = first + threadIdx.x;
    const bool is_candidate = page < first_newest && others > 0;
    const bool is_equal = is_candidate && scores[page] == cut.key;
    int all_equals = 0, all_read = 0;
    const int equals_before = equals + block_sum_before<kThreads>(is_equal, all_equals);
    const bool is_chosen = is_candidate && (scores[page] > cut.key || (is_equal && equals_before >= spare));
    const bool reads = is_chosen || (page >= first_newest && page < pages);
    const int at = written + block_sum_before<kThreads>(reads, all_read);
    if (reads) chosen[at] = table[page];
    written += all_read;
    equals += all_equals;
  }
  if (threadIdx.x == 0) {
    args.lengths[choice.written] =
        static_cast<int32_t>(int64_t{written} * kPageTokens - (pages * kPageTokens - length));
  }
  for (int64_t page = written + threadIdx.x; page < cache.max_pages; page += kThreads) chosen[page] = -1;
  has_settled();
}

}  // namespace

void select_pages(const SelectPagesArgs& args) {
  const PagedView& cache = args.cache;
  check_cache(cache);
  KV_CHECK(cache.bounds.data && args.pages >= 1 && args.newest >= 1);
  const int64_t rows = args.segment_count * (args.per_query_head ? args.q_heads : cache.kv_heads);
  const Scratch<uint32_t> scores(rows * cache.max_pages);
  const int64_t tiles = ceil_div(cache.max_pages, int64_t{kThreads});
  launch(bound_kernel, rows * tiles, kThreads, 0, args, scores.data(), tiles);
  launch(choose_kernel, rows, kThreads, 0, args, scores.data());
}

}  // namespace kv::cuda
