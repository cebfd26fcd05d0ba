#pragma once

#include <algorithm>
#include <cstdint>

namespace kv {

// How full a cache may become, and what leaves when it is fuller (004, Appendix K). Entries older than the newest
// `window` tokens are counted; once those of a sequence are more than `entries` a (layer, KV head), on average, every
// head is asked for int(drop · its own older ones). Entries in the window always stay.
struct Capacity {
  int entries = 0;
  double drop = 0;  // in (0, 1)
  int window = 0;

  // Of a head with `length` entries after that many tokens. What is in the window is always there.
  int32_t older(int32_t length, int32_t tokens_seen) const { return length - std::min({window, tokens_seen, length}); }
  int32_t dropped(int32_t older) const { return static_cast<int32_t>(drop * older); }
  // What this comes to for those who ask for a budget and an interval: the mean that an event leaves a head, and the
  // fewest tokens from one event to the next.
  int kept() const { return window + entries - dropped(entries); }
  int interval() const { return std::max(1, dropped(entries)); }
};

}  // namespace kv
