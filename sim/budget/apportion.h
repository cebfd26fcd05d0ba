#pragma once

#include <cstdint>
#include <span>

namespace kv {

// Divides `total` entries over heads in proportion to `weights` (finite, >= 0), as integers whose sum is
// min(total, Σ rooms) exactly. The ideal share of a head is λ·weight, kept between 1 and rooms[h] (0 where that is 0),
// with the λ at which the shares add up; counts are the shares' floors, and one more for those with the largest
// remainders (ties: lower head). Heads of weight 0 get more than 1 only when all others are full, then in equal shares.
// Fewer entries than heads: the first `total` heads with room get 1.
void apportion(int64_t total, std::span<const double> weights, std::span<const int32_t> rooms,
               std::span<int32_t> counts);

}  // namespace kv
