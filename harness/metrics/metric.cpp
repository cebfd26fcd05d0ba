#include "harness/metrics/metric.h"

#include <fmt/format.h>

#include <map>

#include "kernels/error.h"

namespace kv {

namespace {

std::map<std::string, MetricEntry, std::less<>>& registry() {
  static std::map<std::string, MetricEntry, std::less<>> map;
  return map;
}

const MetricEntry& find_metric(std::string_view name) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : registry()) known += (known.empty() ? "" : ", ") + other;
  throw UserError(fmt::format("unknown metric '{}' (expected one of: {})", name, known));
}

}  // namespace

RegisterMetric::RegisterMetric(MetricEntry entry) {
  const std::string name = entry.name;
  KV_CHECK(registry().emplace(name, std::move(entry)).second);
}

std::vector<const MetricEntry*> metrics() {
  std::vector<const MetricEntry*> all;
  for (const auto& [name, entry] : registry()) all.push_back(&entry);
  return all;
}

std::unique_ptr<Metric> make_metric(std::string_view name, std::vector<GivenParam> options) {
  const MetricEntry& entry = find_metric(name);
  Params params(entry.name, std::move(options));
  auto metric = entry.make(params);
  params.finish();
  return metric;
}

std::vector<DeclaredParam> describe_metric(std::string_view name) {
  const MetricEntry& entry = find_metric(name);
  Params params(entry.name);
  entry.make(params);
  return params.declared();
}

}  // namespace kv
