#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kv {

// What the units of a workload took, whichever rank ran them.
struct WorkloadTimes {
  std::string name{};             // "model/data/tokens"
  int samples = 0;                // that ran, or repetitions of each case
  std::vector<double> seconds{};  // of each case, over all samples
};

// What a run took, and where: as much as says how long it would take with more samples and more ranks. In seconds.
struct RunTimes {
  double start = 0;     // until the first unit of work could begin: checks, the device, the first model
  double open = 0;      // to open a model, mean
  double assembly = 0;  // of the first rank alone, after units that several have shared; 0: none have
  int64_t bytes = 0;    // of rows.csv
  std::vector<WorkloadTimes> workloads{};  // in the order of the grid
};

nlohmann::ordered_json to_json(const RunTimes& times);
// UserError, naming `file`, where it is not as to_json() writes it.
RunTimes run_times_from(const nlohmann::ordered_json& json, const std::string& file);

}  // namespace kv
