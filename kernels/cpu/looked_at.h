#pragma once

#include <cstdint>

#ifdef KVLAB_LOOKS_AT_ROWS
#include <sanitizer/asan_interface.h>
#endif

// For a source whose inner loops the sanitizers' build leaves alone (CMakeLists.txt), because a check at each load
// makes them most of its tests' time: it has the rows that it is about to touch looked at as a whole. Each source has
// functions of its own, as some look and some do not.

namespace kv::cpu {

// With AddressSanitizer: ends the program with its report where not all of those numbers may be touched.
[[maybe_unused]] static void look_at(const float* first, int64_t count) {
#ifdef KVLAB_LOOKS_AT_ROWS
  void* const begin = const_cast<float*>(first);
  if (void* bad = __asan_region_is_poisoned(begin, static_cast<size_t>(count) * sizeof(float))) {
    __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0), &bad, bad, 0, 1);
  }
#else
  static_cast<void>(first), static_cast<void>(count);
#endif
}

[[maybe_unused]] static void look_at_rows(const float* first, int64_t rows, int64_t width, int64_t stride) {
#ifdef KVLAB_LOOKS_AT_ROWS
  if (stride == width) return look_at(first, rows * width);
  for (int64_t row = 0; row < rows; ++row) look_at(first + row * stride, width);
#else
  static_cast<void>(first), static_cast<void>(rows), static_cast<void>(width), static_cast<void>(stride);
#endif
}

}  // namespace kv::cpu
