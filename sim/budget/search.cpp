#include "sim/budget/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Partial excess by deviation, from `first` on; kNever where no choice within the cap leads there.
struct States {
  int64_t first = 0;
  std::vector<double> excess;

  double at(int64_t deviation) const {
    const int64_t i = deviation - first;
    return i < 0 || i >= static_cast<int64_t>(excess.size()) ? kNever : excess[static_cast<size_t>(i)];
  }
};

// The states of one head more: each state and each option within [first, last] and the cap.
States extend(const States& states, std::span<const Option> options, int64_t first, int64_t last, double cap) {
  const auto width = static_cast<int64_t>(states.excess.size());
  first = std::max(first, states.first + options.back().deviation);
  last = std::min(last, states.first + width - 1 + options.front().deviation);
  States result{.first = first,
                .excess = std::vector<double>(static_cast<size_t>(std::max<int64_t>(0, last - first + 1)), kNever)};
  for (const Option& option : options) {
    const int64_t shift = states.first + option.deviation - first;
    const int64_t begin = std::max<int64_t>(0, -shift);
    const int64_t end = std::min(width, static_cast<int64_t>(result.excess.size()) - shift);
    if (begin >= end) continue;
    const double* from = states.excess.data() + begin;
    double* to = result.excess.data() + begin + shift;
    for (int64_t i = 0; i < end - begin; ++i) to[i] = std::min(to[i], from[i] + option.excess);
  }
  for (double& excess : result.excess) excess = excess <= cap ? excess : kNever;
  const auto reached = [](double excess) { return excess < kNever; };
  const auto begin = std::find_if(result.excess.begin(), result.excess.end(), reached);
  const auto end = std::find_if(result.excess.rbegin(), std::make_reverse_iterator(begin), reached).base();
  result.first += begin - result.excess.begin();
  result.excess.erase(end, result.excess.end());
  result.excess.erase(result.excess.begin(), begin);
  return result;
}

void check_limits(double steps, int64_t states, const ExactLimits& limits) {
  if (steps <= limits.steps && states <= limits.states) return;
  throw UserError(fmt::format(
      "budget: the exact split has too many near-optimal rivals: expected at most {:.0f} steps and {} partial sums; "
      "the hull's split has no such limit",
      limits.steps, limits.states));
}

}  // namespace

std::vector<int64_t> search_capped(const Options& options, int64_t target, double cap, const ExactLimits& limits) {
  const size_t heads = options.size();
  // What the heads before h can add.
  std::vector<int64_t> smallest(heads + 1, 0);
  std::vector<int64_t> largest(heads + 1, 0);
  for (size_t h = 0; h < heads; ++h) {
    smallest[h + 1] = smallest[h] + options[h].back().deviation;
    largest[h + 1] = largest[h] + options[h].front().deviation;
  }
  std::vector<States> states(heads + 1);  // states[h]: of heads h, h + 1, …
  states[heads].excess = {0.0};
  double steps = 0;
  int64_t stored = 0;
  for (size_t h = heads; h-- > 0;) {
    steps += static_cast<double>(states[h + 1].excess.size()) * static_cast<double>(options[h].size());
    check_limits(steps, stored, limits);
    states[h] = extend(states[h + 1], options[h], target - largest[h], target - smallest[h], cap);
    stored += static_cast<int64_t>(states[h].excess.size());
    check_limits(steps, stored, limits);
    if (states[h].excess.empty()) return {};
  }
  std::vector<int64_t> deviations;
  for (size_t h = 0; h < heads; ++h) {
    const auto leads_on = [&](const Option& option) {  // the same sum as in extend, so equal to the bit
      return states[h + 1].at(target - option.deviation) + option.excess == states[h].at(target);
    };
    const auto chosen = std::find_if(options[h].begin(), options[h].end(), leads_on);
    KV_CHECK(chosen != options[h].end());
    deviations.push_back(chosen->deviation);
    target -= chosen->deviation;
  }
  return deviations;
}

}  // namespace kv
