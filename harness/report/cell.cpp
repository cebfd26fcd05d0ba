#include "harness/report/cell.h"

#include "harness/rows.h"

namespace kv {

bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto left = parse_number(a);
  const auto right = parse_number(b);
  return left && right && *left == *right;
}

}  // namespace kv
