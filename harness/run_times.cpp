#include "harness/run_times.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

// Milliseconds are what a run is sure of.
double rounded_to_milliseconds(double seconds) { return std::round(seconds * 1e3) / 1e3; }

double seconds_from(const Json& json) {
  const double seconds = json.get<double>();
  if (!(seconds >= 0) || !std::isfinite(seconds)) throw UserError("a time below 0");
  return seconds;
}

}  // namespace

Json to_json(const RunTimes& times) {
  Json out;
  out["start"] = rounded_to_milliseconds(times.start);
  out["open"] = rounded_to_milliseconds(times.open);
  out["assembly"] = rounded_to_milliseconds(times.assembly);
  out["bytes"] = times.bytes;
  out["workloads"] = Json::array();
  for (const WorkloadTimes& workload : times.workloads) {
    Json seconds = Json::array();
    for (const double of_case : workload.seconds) seconds.push_back(rounded_to_milliseconds(of_case));
    out["workloads"].push_back({{"name", workload.name}, {"samples", workload.samples}, {"seconds", seconds}});
  }
  return out;
}

RunTimes run_times_from(const Json& json, const std::string& file) {
  try {
    RunTimes times{.start = seconds_from(json.at("start")),
                   .open = seconds_from(json.at("open")),
                   .assembly = seconds_from(json.at("assembly")),
                   .bytes = json.at("bytes").get<int64_t>()};
    for (const Json& workload : json.at("workloads")) {
      times.workloads.push_back({.name = workload.at("name").get<std::string>(),
                                 .samples = workload.at("samples").get<int>(),
                                 .seconds = {}});
      for (const Json& of_case : workload.at("seconds"))
        times.workloads.back().seconds.push_back(seconds_from(of_case));
      if (times.workloads.back().samples < 1) throw UserError("a workload without samples");
    }
    return times;
  } catch (const std::exception& error) {
    throw UserError(fmt::format("{}: times: {}", file, error.what()));
  }
}

}  // namespace kv
