#include "harness/metrics/metric.h"

#include <utility>

namespace kv {

std::vector<const MetricEntry*> metrics() { return registry_of<Metric>().all(); }

std::unique_ptr<Metric> make_metric(std::string_view name, std::vector<GivenParam> options) {
  return make_part<Metric>(name, std::move(options));
}

std::vector<DeclaredParam> describe_metric(std::string_view name) { return describe_part<Metric>(name); }

}  // namespace kv
