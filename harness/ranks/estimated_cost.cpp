#include "harness/ranks/estimated_cost.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kv {
namespace {

// At about this length a model's attention takes as long as its products.
constexpr double kBalance = 8192;

double cost_of_text(double tokens) { return tokens * (1 + tokens / kBalance); }

}  // namespace

double estimated_cost(const Workload& workload) {
  double cost = 0;
  for (const Case& policy_case : workload.cases) {
    const int own = policy_case.count("context") + policy_case.count("new_tokens");  // where the workload has no texts
    cost += cost_of_text(std::max({1, workload.tokens, own}));
  }
  return cost;
}

std::vector<size_t> largest_first(const std::vector<Workload>& workloads) {
  std::vector<size_t> order(workloads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto rank = [&](size_t index) { return std::pair(workloads[index].model, -estimated_cost(workloads[index])); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return order;
}

}  // namespace kv
