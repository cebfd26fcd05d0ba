#pragma once

#include <algorithm>
#include <cstdint>

namespace kv {

// How full a cache may become, and what leaves when it is fuller (004, Appendix K). Entries older than the newest
// `window` tokens are counted; once those of a sequence are more than `entries` a (layer, KV head), on average, every
// head is asked for int(drop · its own older ones), but not for its sinks. Entries in the window always stay.
struct Capacity {
  int entries = 0;
  double drop = 0;  // in (0, 1)
  int window = 0;
  int sinks = 0;  // that the scorer protects; the paper has none

  // Of a head with `length` entries after that many tokens. What is in the window is always there.
  int32_t older(int32_t length, int32_t tokens_seen) const { return length - std::min({window, tokens_seen, length}); }
  int32_t dropped(int32_t older) const {
    return std::min(static_cast<int32_t>(drop * older), std::max(0, older - sinks));
  }
  // Whether an event takes more than a token brings, however unevenly the heads hold what is there: what is asked of
  // them is rounded down, less than one entry each. Else a cache could stay too full for good.
  bool holds() const { return drop * (entries - sinks) >= 2; }
  // What this comes to where heads are alike: the mean that an event leaves, and the tokens from one to the next.
  int kept() const { return window + entries + 1 - dropped(entries + 1); }
  int interval() const { return std::max(1, dropped(entries + 1)); }
};

}  // namespace kv
