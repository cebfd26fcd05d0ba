#include "kernels/select_top.h"

#include "kernels/cuda/select_row.cuh"

namespace kv::cuda {

namespace {

// One block a row.
template <class Key>
__global__ void __launch_bounds__(kSelectThreads, 2) select_top_kernel(SelectTopArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t count = args.counts[row];
  KV_DEVICE_CHECK(count >= 0);
  const Spared spared = spared_of(args.cache, row, args.sinks, args.recent);
  const KeyOf<Key> key{args.scores.row(row), args.ties ? args.ties.row(row) : nullptr, args.may_be_nan};
  select_row<Key>(args.cache.lengths[row], count, spared, key, args.keep.row(row));
}

}  // namespace

void select_top(const SelectTopArgs& args) {
  launch_early(args.ties ? select_top_kernel<uint64_t> : select_top_kernel<uint32_t>, args.cache.rows, kSelectThreads,
               0, args);
}

}  // namespace kv::cuda
