#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kv {

// What one head (a layer and KV head) gains from its entries, in the order in which its policy would keep them:
// gains[i] is the importance that keeping i + 1 entries instead of i saves. The loss of keeping b entries is
// L(b) = Σ_{i >= b} gains[i] (002 Eq. 6).
struct HeadGains {
  std::span<const float> gains;  // [entries] finite, >= 0
  int32_t least = 0;             // the first so many entries always stay: minimum retention, protected entries
};

// Pool adjacent violators (non-increasing isotonic regression, unit weights, sums in double): where a gain is larger
// than the mean before it, the two are pooled into their mean. Equals the marginal gains of the lower convex hull of L.
// The paper states the algorithm on L itself, where it would change nothing: L never rises.
std::vector<double> pool_adjacent_violators(std::span<const float> gains);

// The vertices of the lower convex hull of L over b in [least, entries]; block i lies between vertices i and i + 1.
// Equal neighbours are not pooled, so that every point of L that lies on its hull is a vertex. 20 bytes a block, and at
// most a block an entry.
struct LossHull {
  std::vector<int32_t> counts;  // [blocks + 1] entries kept at a vertex: least, …, entries
  std::vector<double> losses;   // [blocks + 1] L at a vertex, ends with 0
  std::vector<double> gains;    // [blocks] mean gain of a block's entries: the hull's negated slope, non-increasing

  size_t blocks() const { return gains.size(); }
};

// Requires 0 <= least <= entries.
LossHull loss_hull(const HeadGains& head);

}  // namespace kv
