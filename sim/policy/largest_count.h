#pragma once

namespace kv {

// The most tokens, entries or pages that an option or an axis may ask for: no text is as long, and a position and a few
// of them add up to an int.
inline constexpr int kLargestCount = 1 << 24;

}  // namespace kv
