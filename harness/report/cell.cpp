#include "harness/report/cell.h"

#include <algorithm>

#include "harness/rows.h"
#include "kernels/check.h"

namespace kv {

std::size_t place_among(const std::vector<std::string>& columns, const std::string& column) {
  const auto found = std::find(columns.begin(), columns.end(), column);
  KV_CHECK(found != columns.end());
  return static_cast<std::size_t>(found - columns.begin());
}

bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto left = parse_number(a);
  const auto right = parse_number(b);
  return left && right && *left == *right;
}

}  // namespace kv
