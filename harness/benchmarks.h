#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/rows.h"

namespace kv {

// One operation at one shape, timed many times. `by` is the backend, or the name of a peer at the same work.
struct Benchmark {
  std::string by{}, kernel{}, shape{};
  double median_s = 0;
  double low_s = 0, high_s = 0;  // quartiles
  int64_t samples = 0;
  double bytes = 0,
         flops = 0;  // what the algorithm must move and compute; both 0: a whole task, of which none is known
};

// What `./dev bench --gpu` writes (tests/bench/gpu.py).
struct BenchmarkFile {
  std::vector<Benchmark> benchmarks{};
  double copy_bytes_per_s = 0;  // the peaks of the same run
  double gemm_flops_per_s = 0;
  std::string manifest{};  // JSON object: device, clocks, versions, commit
};

// Throws UserError "<owner>: …", one line, for whatever is not such a file: syntax, keys that lack or are unknown,
// wrong types, times and peaks that are not positive, quartiles that do not enclose the median, an operation twice.
BenchmarkFile parse_benchmarks(std::string_view json, std::string_view owner);

// The columns that benchmark rows have beside the standard ones: kernel, shape, by.
std::span<const std::string> benchmark_axes();

// Rows of every benchmark, in the file's order; two rows of the peaks first (metrics copy_peak, TB/s, and gemm_peak,
// TFLOP/s). With t the median time, the metrics of a benchmark are
//   median_time (µs), spread (quartile distance / t, %), timings (how many) and, where bytes or flops are known,
//   bandwidth (bytes / t, TB/s), compute (flops / t, TFLOP/s), intensity (flops / bytes; where both are above 0),
//   bound_share (t of the roofline, max(bytes / copy peak, flops / GEMM peak), / t, %)
// and of one that has peers vs_<peer>: the peer's t / t, above 1 where the peer is slower.
std::vector<Row> benchmark_rows(const BenchmarkFile& file, const std::string& experiment);

}  // namespace kv
