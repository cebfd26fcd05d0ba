#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/report/plan.h"
#include "harness/rows.h"
#include "harness/statistics.h"

namespace kv {

struct CompareOptions {
  // A difference within this share of |mean of a| is none worth telling, however certain it is.
  double tolerance = 0.01;
  std::map<std::string, Better> better{};  // metric -> direction, before the known ones
  bool timings = false;                    // unit s or tokens/s: they differ between any two machines
};

// kSame: the whole interval lies within the tolerance. kBetter, kWorse: b against a; the interval excludes zero and is
// not kSame. kDiffers: so, too, but nobody knows which direction is better. kAmbiguous: the interval holds zero and
// more than the tolerance, or there is a single sample: more samples would tell.
enum class Verdict { kSame, kBetter, kWorse, kDiffers, kAmbiguous };

struct Comparison {
  std::string metric, policy, data;
  std::vector<std::string> axes;  // of CompareResult::axes
  std::string unit;
  double mean_a = 0, mean_b = 0;
  Estimate difference;  // b - a, mean over paired samples, 95 % paired bootstrap from kFewestForAnInterval samples on
  Verdict verdict = Verdict::kAmbiguous;
};

struct CompareResult {
  std::vector<std::string> axes;
  std::vector<Comparison> rows;                   // in the order of a
  std::size_t pairs = 0, only_a = 0, only_b = 0;  // rows with a value
};

// Rows are pairs where policy, data, sample, seed, layer, head, x, metric and all axes agree, and the model where a
// folder has several (one model a folder may differ: that is a comparison of models). Rows that agree in all of that
// are paired in order. An axis that only one side has is left out where it has one value there; otherwise the pairs
// would be arbitrary: UserError. A sample's rows (layers, heads, x) are averaged before the bootstrap,
// which draws the documents that rows of a name (kDocumentMetric).
CompareResult compare_rows(const RowTable& a, const RowTable& b, const CompareOptions& options = {});
CompareResult compare(const std::filesystem::path& dir_a, const std::filesystem::path& dir_b,
                      const CompareOptions& options = {});

// Known by name: *loss*, *nll*, *perplexity*, *gap*, *dilution*, *bytes*, *_time and evicted_mass are better lower;
// *recall*, *cosine*, *accuracy* and *_throughput higher.
Better better_direction(const std::string& metric);

std::string to_string(Verdict verdict);
std::string to_markdown(const CompareResult& result);
std::string to_csv(const CompareResult& result);

}  // namespace kv
