#include "harness/protocols/pruning.h"

#include <fmt/format.h>

#include "harness/metrics/metric.h"
#include "harness/spec/places.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr std::string_view kBudget = "budget";
constexpr std::string_view kInterval = "interval";
constexpr std::string_view kCapacity = "capacity";
constexpr std::string_view kDrop = "drop";
constexpr double kUsualDrop = 0.1;  // 004, Appendix K

Capacity capacity_of(const Case& unit_case, const Policy& policy) {
  const double drop = unit_case.fraction(kDrop);
  Capacity capacity{.entries = unit_case.count(kCapacity), .drop = drop > 0 ? drop : kUsualDrop};
  const int admitted = policy.admission->window();
  capacity.window = admitted > 0 ? admitted : scorer_needs(policy).window_queries;
  capacity.sinks = policy.scorer->protects(capacity.kept(), capacity.interval()).sinks;
  return capacity;
}

void check_numbers(const CaseCheck& check, const Capacity& capacity) {
  if (capacity.entries < capacity.window) {
    check.refuse(
        fmt::format("has a capacity of {} entries, expected at least the window {}", capacity.entries, capacity.window),
        check.where_of({kCapacity}));
  }
  if (capacity.drop >= 1) check.refuse("has drop = 1, expected less", check.where_of({kDrop}));
  if (capacity.holds()) return;
  check.refuse(
      fmt::format("has a capacity of {} entries{}, of which drop = {} takes less than 2 a head, no more than a "
                  "token may bring; expected more of either",
                  capacity.entries, capacity.sinks > 0 ? fmt::format(" with {} protected sinks", capacity.sinks) : "",
                  capacity.drop),
      check.where_of({kCapacity}));
}

void check_metrics(const CaseCheck& check) {
  for (const Component& metric : check.spec.metrics) {
    if (make_metric(metric.name, metric.options)->observer_needs().takes_capacity) continue;
    throw UserError(
        fmt::format("{}: metric '{}' asks beforehand where events fall, which the axis capacity leaves to the cache",
                    metric.where, metric.name));
  }
}

void check_capacity(const CaseCheck& check, const Capacity& capacity) {
  const std::string where = check.where_of({kCapacity});
  if (check.policy.oracle()) {
    check.refuse(
        fmt::format("needs {}, which knows events by their places, expected no axis capacity", check.wish_of_oracle()),
        where);
  }
  if (scorer_needs(check.policy).even_intervals) {
    check.refuse("knows events after whole intervals only, expected the axes budget and interval", where);
  }
  check_metrics(check);
  check_numbers(check, capacity);
  at(where, [&] {
    check.policy.scorer->check_budget(capacity.kept(), capacity.interval());
    check_interval(check.policy, capacity.interval());
  });
  at(check.where_of({kAdmissionAxis}), [&] { check_admission(check.policy, capacity.interval()); });
}

}  // namespace

std::vector<ProtocolAxis> pruning_axes() {
  return {
      budget_axis(), interval_axis(),
      cutting(token_axis(std::string(kCapacity),
                         "in their place: entries older than the window that a head holds at most, on average")),
      cutting(fraction_axis(std::string(kDrop),
                            fmt::format("share of them that leaves once there are more (default {})", kUsualDrop)))};
}

bool is_pruned(const Case& unit_case) {
  return unit_case.count(kBudget) > 0 || unit_case.count(kInterval) > 0 || unit_case.count(kCapacity) > 0;
}

Pruning pruning_of(const Case& unit_case, const Policy& policy) {
  if (unit_case.count(kCapacity) == 0) {
    return {.budget = unit_case.count(kBudget), .interval = policy.scorer->interval(unit_case.count(kInterval))};
  }
  const Capacity capacity = capacity_of(unit_case, policy);
  return {.budget = capacity.kept(), .interval = capacity.interval(), .capacity = capacity};
}

void check_pruning(const CaseCheck& check) {
  const int budget = check.candidate.count(kBudget), interval = check.candidate.count(kInterval);
  const bool has_capacity = check.candidate.count(kCapacity) > 0;
  if (has_capacity && (budget > 0 || interval > 0)) {
    check.refuse("takes either the axis capacity or the axes budget and interval, not both",
                 check.where_of({kCapacity}));
  }
  if (has_capacity) return check_capacity(check, capacity_of(check.candidate, check.policy));
  if (!check.candidate.word(kDrop).empty()) {
    check.refuse("has drop without the axis capacity", check.where_of({kDrop}));
  }
  if (budget == 0 || interval == 0) {
    check.refuse("needs the axes budget and interval, or the axis capacity", check.where_of({kBudget, kInterval}));
  }
  check.check_pruning(budget, interval);
}

Schedule schedule_of(const Pruning& pruning, std::span<const int32_t> lengths, Follows follows, int prefill_chunk) {
  if (pruning.capacity) return full_schedule(lengths, prefill_chunk);
  return follows == Follows::kMore ? prompt_decode_schedule(lengths, pruning.budget, pruning.interval, prefill_chunk)
                                   : decode_schedule(lengths, pruning.budget, pruning.interval, prefill_chunk);
}

}  // namespace kv
