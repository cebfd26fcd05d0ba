#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/expiry.h"

namespace kv::cuda {

// Until when the entries of a row are seen. Only its newest slots can have expired (PagedView::expiring): kernels ask
// here in the steps that may() names, and go through all others as if nothing ever did.
struct Expiries {
  const PagedView& cache;
  int64_t row;
  int first, end;  // slots that can have; none where first >= end

  __device__ Expiries(const PagedView& of, int64_t of_row, int64_t length)
      : cache(of),
        row(of_row),
        first(of.expires ? static_cast<int>(max(int64_t{0}, length - of.expiring)) : INT_MAX),
        end(of.expires ? static_cast<int>(length) : 0) {}

  __device__ bool may(int begin, int until) const { return begin < end && until > first; }
  // The position from which on queries no longer see the slot.
  __device__ int32_t of(int slot) const {
    return slot >= first && slot < end ? cache.expires[place_of(cache, row, slot)] : kNeverExpires;
  }
};

}  // namespace kv::cuda
