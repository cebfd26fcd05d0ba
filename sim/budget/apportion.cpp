#include "sim/budget/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/check.h"

namespace kv {

namespace {

double share_of(double lambda, double weight, int32_t room) {
  return std::min<double>(room, std::max(1.0, lambda * weight));
}

// Shares that add up to `total`, at least the number of heads with room; to less where only heads of weight 0 could
// take the rest.
std::vector<double> ideal_shares(int64_t total, std::span<const double> weights, std::span<const int32_t> rooms) {
  std::vector<double> shares(weights.size());
  const auto fill = [&](double lambda) {
    for (size_t h = 0; h < shares.size(); ++h) shares[h] = share_of(lambda, weights[h], rooms[h]);
    return std::accumulate(shares.begin(), shares.end(), 0.0);
  };
  double low = 0, high = 0;
  for (size_t h = 0; h < shares.size(); ++h) {
    if (weights[h] > 0) high = std::max(high, rooms[h] / weights[h]);  // here every head is full
  }
  // Halved until low and high are neighbours.
  for (double middle = high / 2; middle > low && middle < high; middle = low + (high - low) / 2) {
    (fill(middle) < static_cast<double>(total) ? low : high) = middle;
  }
  fill(high);
  return shares;
}

void share_equally(int64_t remaining, std::span<const int32_t> rooms, std::span<int32_t> counts) {
  while (remaining > 0) {
    for (size_t h = 0; h < counts.size() && remaining > 0; ++h) {
      if (counts[h] >= rooms[h]) continue;
      ++counts[h];
      --remaining;
    }
  }
}

}  // namespace

void apportion(int64_t total, std::span<const double> weights, std::span<const int32_t> rooms,
               std::span<int32_t> counts) {
  KV_CHECK(weights.size() == counts.size() && rooms.size() == counts.size() && total >= 0);
  for (const double weight : weights) KV_CHECK(std::isfinite(weight) && weight >= 0);
  int64_t remaining = std::min(total, std::accumulate(rooms.begin(), rooms.end(), int64_t{0}));
  std::fill(counts.begin(), counts.end(), 0);
  if (remaining < std::count_if(
                      rooms.begin(), rooms.end(), [](int32_t room) { return room > 0; })) {
    for (size_t h = 0; remaining > 0; ++h) {
      if (rooms[h] > 0) remaining -= counts[h] = 1;
    }
    return;
  }
  const std::vector<double> shares = ideal_shares(remaining, weights, rooms);
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t h = 0; h < counts.size(); ++h) remaining -= counts[h] = static_cast<int32_t>(std::floor(shares[h]));
  // A share that should be whole may fall short of it, or exceed it, by a rounding.
  const auto remainder = [&](size_t h) { return shares[h] - counts[h]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return remainder(a) > remainder(b); });
  for (size_t i = 0; i < order.size() && remaining > 0; ++i) {
    const size_t h = order[i];
    if (counts[h] >= rooms[h] || remainder(h) <= 0) continue;
    ++counts[h];
    --remaining;
  }
  for (auto h = order.rbegin(); h != order.rend() && remaining < 0; ++h) {
    if (counts[*h] <= 1) continue;
    --counts[*h];
    ++remaining;
  }
  share_equally(remaining, rooms, counts);
}

}  // namespace kv
