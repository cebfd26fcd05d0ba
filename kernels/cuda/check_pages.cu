#include "kernels/check_pages.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

using Number = unsigned long long;  // what atomics take

struct PageCheck {
  PagedView cache;
  int64_t longest;
  Number* owners;  // [pool_pages], of each page the first entry that names it
  Number* first;   // of all offenders: row · (max_pages + 1), and 1 + entry more unless the length is at fault
};

__device__ void report(const PageCheck& check, int64_t row, int64_t entry) {
  atomicMin(check.first, static_cast<Number>(row * (check.cache.max_pages + 1) + 1 + entry));
}

__device__ bool may_share(const PagedView& cache, Number owner, int64_t row) {
  if (cache.sharing_rows == 1) return false;
  return static_cast<int64_t>(owner) / cache.max_pages / cache.sharing_rows == row / cache.sharing_rows;
}

// A block a row. `claims`: pages outside the pool are reported, the others get their owners. After it, without: entries
// that are not the owner of their page are reported.
__global__ void check_kernel(PageCheck check, bool claims) {
  const PagedView& cache = check.cache;
  const int64_t row = blockIdx.x;
  const int32_t length = cache.lengths[row];
  if (length < 0 || length > check.longest) {
    if (threadIdx.x == 0) report(check, row, -1);
    return;
  }
  for (int64_t entry = threadIdx.x; entry * kPageTokens < length; entry += kThreads) {
    const int64_t number = row * cache.max_pages + entry;
    const int32_t page = cache.page_table[number];
    const bool is_dead = page < 0 || page >= cache.pool_pages;
    if (is_dead) {
      report(check, row, entry);
    } else if (claims) {
      atomicMin(&check.owners[page], static_cast<Number>(number));
    } else if (check.owners[page] != static_cast<Number>(number) && !may_share(cache, check.owners[page], row)) {
      report(check, row, entry);
    }
  }
}

template <class T>
T read(const T* from) {
  T value;
  KV_CUDA_CHECK(cudaMemcpyAsync(&value, from, sizeof(T), cudaMemcpyDeviceToHost, stream()));
  KV_CUDA_CHECK(cudaStreamSynchronize(stream()));
  return value;
}

}  // namespace

void check_pages(const PagedView& cache) {
  KV_CHECK(!is_capturing());
  constexpr Number kNone = ~Number{0};
  const Scratch<Number> numbers(cache.pool_pages + 1);
  KV_CUDA_CHECK(cudaMemsetAsync(numbers.data(), 0xFF, sizeof(Number) * (cache.pool_pages + 1), stream()));  // kNone
  const PageCheck check{cache, longest_row(cache), numbers.data() + 1, numbers.data()};
  for (const bool claims : {true, false}) launch(check_kernel, cache.rows, kThreads, 0, check, claims);
  const Number first = read(check.first);
  if (first == kNone) return;

  const auto at = static_cast<int64_t>(first);
  const int64_t row = at / (cache.max_pages + 1), entry = at % (cache.max_pages + 1) - 1;
  if (entry < 0) throw_page_error(cache, {.row = row, .value = read(cache.lengths + row)});
  const int32_t page = read(cache.page_table + row * cache.max_pages + entry);
  const bool is_dead = page < 0 || page >= cache.pool_pages;
  const int64_t owner = is_dead ? -1 : static_cast<int64_t>(read(check.owners + page));
  throw_page_error(cache, {.row = row, .entry = entry, .value = page, .owner = owner});
}

}  // namespace kv::cuda
