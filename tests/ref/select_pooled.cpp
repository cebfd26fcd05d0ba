#include "tests/ref/select_pooled.h"

#include <algorithm>
#include <tuple>

#include "tests/ref/select_top.h"

namespace kv::ref {

std::vector<std::vector<uint8_t>> select_pooled(const std::vector<PooledRow>& rows, int count, int sinks, int recent) {
  std::vector<std::vector<uint8_t>> keep;
  using Entry = std::tuple<double, double, int, int, int, size_t, int>;  // the order, then row and slot
  std::vector<Entry> order;
  for (const PooledRow& row : rows) {
    const int length = static_cast<int>(row.positions.size());
    const auto is_spared = [&](int slot) { return row.positions[slot] < sinks || slot >= length - recent; };
    int spared = 0;
    for (int slot = 0; slot < length; ++slot) spared += is_spared(slot);
    const int kept = std::min(length, std::max(spared, row.least));
    keep.push_back(select_top(row.scores, row.ties, row.positions, kept, sinks, recent));
    count -= kept;
    for (int slot = 0; slot < length; ++slot) {
      if (keep.back()[slot]) continue;
      order.emplace_back(-double(row.scores[slot]), row.ties.empty() ? 0 : -double(row.ties[slot]),
                         -row.positions[slot], row.head, row.layer, keep.size() - 1, slot);
    }
  }
  std::sort(order.begin(), order.end());
  for (int i = 0; i < std::min(count, static_cast<int>(order.size())); ++i) {
    keep[std::get<5>(order[i])][std::get<6>(order[i])] = 1;
  }
  return keep;
}

}  // namespace kv::ref
