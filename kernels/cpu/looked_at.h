#pragma once

#include <cstdint>

#ifdef KVLAB_LOOKS_AT_ROWS
#include <sanitizer/asan_interface.h>
#endif

// For sources whose inner loops the sanitizers' build leaves alone (CMakeLists.txt), because a check at each load makes
// them most of its tests' time: they have the rows that they are about to touch looked at as a whole.

namespace kv::cpu {

// With AddressSanitizer: ends the program with its report where not all of those numbers may be touched.
inline void look_at(const float* first, int64_t count) {
#ifdef KVLAB_LOOKS_AT_ROWS
  void* const begin = const_cast<float*>(first);
  if (void* bad = __asan_region_is_poisoned(begin, static_cast<size_t>(count) * sizeof(float))) {
    __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0), &bad, bad, 0, 1);
  }
#else
  static_cast<void>(first), static_cast<void>(count);
#endif
}

inline void look_at_rows(const float* first, int64_t rows, int64_t width, int64_t stride) {
#ifdef KVLAB_LOOKS_AT_ROWS
  if (stride == width) return look_at(first, rows * width);
  for (int64_t row = 0; row < rows; ++row) look_at(first + row * stride, width);
#else
  static_cast<void>(first), static_cast<void>(rows), static_cast<void>(width), static_cast<void>(stride);
#endif
}

}  // namespace kv::cpu
