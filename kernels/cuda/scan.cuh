#pragma once

#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

// Sums over the lower lanes of a warp and the lower threads of a block.

namespace kv::cuda {

// Over this lane and the lower ones. Every lane takes part.
template <class T>
__device__ T warp_sum_until(T value) {
  using Scan = cub::WarpScan<T>;
  typename Scan::TempStorage none;  // a whole warp shuffles, without shared memory
  static_assert(sizeof(none) == 1);
  Scan(none).InclusiveSum(value, value);
  return value;
}

// Over the lower threads, without this one; `total` gets the sum over the block. Every thread of the block takes part.
template <int kThreads>
__device__ int block_sum_before(int value, int& total) {
  using Scan = cub::BlockScan<int, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename Scan::TempStorage storage;
  int before;
  __syncthreads();  // readers of the previous call are done
  Scan(storage).ExclusiveSum(value, before, total);
  return before;
}

}  // namespace kv::cuda
