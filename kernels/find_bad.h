#pragma once

#include "kernels/element.h"
#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Bad is what is not finite: a NaN or an infinity. Both ops lower *first to the number of the first bad value, if that
// is lower than what stands there. So several calls share a word, which fresh memory (all ones) begins and one download
// reads. Where nothing is bad, *first is not written.
inline constexpr uint64_t kNothingBad = ~uint64_t{0};

// Looks at what a selection would read (kernels/select_top.h): the scores, and the ties where there are ties, of due
// rows' slots [0, length) that are not protected. Slot s of row r has the number  number + r · scores.pitch + s.
struct FindBadScoreArgs {
  PagedView cache;
  Slots<const float> scores;  // slots of protected entries are not read
  Slots<const float> ties;    // of the same pitch, or null
  int32_t sinks = 0;
  int32_t recent = 0;
  const uint8_t* rows_due = nullptr;  // [rows], 0 = skip; null = all
  uint64_t number = 0;
  uint64_t* first = nullptr;
};

// Looks at all values. The i-th has the number  number + i.
struct FindBadValueArgs {
  ConstRef values;  // [count], f32 or activations
  int64_t count = 0;
  uint64_t number = 0;
  uint64_t* first = nullptr;
};

namespace cpu {
void find_bad_score(const FindBadScoreArgs& args);
void find_bad_value(const FindBadValueArgs& args);
}  // namespace cpu
namespace cuda {
void find_bad_score(const FindBadScoreArgs& args);
void find_bad_value(const FindBadValueArgs& args);
}  // namespace cuda

}  // namespace kv
