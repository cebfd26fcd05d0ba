#pragma once

#include "kernels/paged.h"
#include "kernels/slots.h"

namespace kv {

// Which entries of each row stay: the protected ones (the oldest entries with position < sinks, then the newest
// `recent` slots), then the highest scores until counts[row] entries are kept. Total order (design.md, ties): score,
// then `ties` (higher first), then newer position. A NaN score is an internal error, unless it may be. counts[row] >=
// length keeps all. If counts[row] (>= 0) is smaller than the protected set, sinks win over recents, older sinks over
// newer, and newer recents over older. −0 and +0 are equal scores.
struct SelectTopArgs {
  PagedView cache;
  Slots<const float> scores;        // slots of protected entries are not read
  Slots<const float> ties;          // or null
  const int32_t* counts = nullptr;  // [rows]
  int32_t sinks = 0;
  int32_t recent = 0;
  bool may_be_nan = false;  // a NaN gets some place: whoever selects so has the scores looked at later
  const uint8_t* rows_due = nullptr;
  Slots<uint8_t> keep;  // written for slots [0, length)
};

namespace cpu {
void select_top(const SelectTopArgs& args);
}
namespace cuda {
void select_top(const SelectTopArgs& args);
}

}  // namespace kv
