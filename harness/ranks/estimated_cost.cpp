#include "harness/ranks/estimated_cost.h"

#include <algorithm>

namespace kv {
namespace {

// At about this length a model's attention takes as long as its products.
constexpr double kBalance = 8192;

double cost_of_text(double tokens) { return tokens * (1 + tokens / kBalance); }

}  // namespace

double estimated_cost(const Workload& workload) {
  double cost = 0;
  for (const Case& one : workload.cases) {
    const int own = one.count("context") + one.count("new_tokens");  // where the workload has no texts
    cost += cost_of_text(std::max({1, workload.tokens, own}));
  }
  return cost * workload.samples;
}

}  // namespace kv
