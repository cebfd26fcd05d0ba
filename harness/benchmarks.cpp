#include "harness/benchmarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "kernels/error.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

using Json = nlohmann::json;

// Quotients of any two are finite.
struct NumberRange {
  double least, most;
};
constexpr NumberRange kSeconds{1e-12, 1e9};
constexpr NumberRange kRate{1, 1e30};   // bytes or FLOPs a second
constexpr NumberRange kWork{0, 1e30};   // bytes or FLOPs
constexpr NumberRange kCount{1, 1e15};  // timings

// One JSON object of the file; every error names the file and the place in it.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("expected an object");
  }

  const Json& at(const std::string& key) {
    known_.push_back(key);
    if (!object_.contains(key)) fail(fmt::format("lacks the key '{}'", key));
    return object_.at(key);
  }
  std::string text(const std::string& key) {
    const Json& value = at(key);
    if (!value.is_string() || value.get<std::string>().empty()) refuse(key, value, "a text");
    return value.get<std::string>();
  }
  double number(const std::string& key, NumberRange range) {
    const Json& value = at(key);
    const bool in_range = value.is_number() && value.get<double>() >= range.least && value.get<double>() <= range.most;
    if (!in_range) refuse(key, value, fmt::format("a number from {} to {}", range.least, range.most));
    return value.get<double>();
  }
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      fail(fmt::format("unknown key {}, expected one of {}", in_quotes(key), fmt::join(known_, ", ")));
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw UserError(where_ + ": " + what); }

 private:
  [[noreturn]] void refuse(const std::string& key, const Json& value, const std::string& expected) const {
    fail(fmt::format("{} is {}, expected {}", key, shown_json(value), expected));
  }

  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

Benchmark parse_benchmark(const Json& json, const std::string& where) {
  Reader reader(json, where);
  Benchmark benchmark{.by = reader.text("by"),
                      .kernel = reader.text("kernel"),
                      .shape = reader.text("shape"),
                      .median_s = reader.number("median_s", kSeconds),
                      .low_s = reader.number("low_s", kSeconds),
                      .high_s = reader.number("high_s", kSeconds),
                      .samples = static_cast<int64_t>(reader.number("samples", kCount)),
                      .bytes = reader.number("bytes", kWork),
                      .flops = reader.number("flops", kWork)};
  reader.finish();
  if (benchmark.low_s > benchmark.median_s || benchmark.high_s < benchmark.median_s) {
    reader.fail(fmt::format("median_s {} is not between low_s {} and high_s {}", benchmark.median_s, benchmark.low_s,
                            benchmark.high_s));
  }
  return benchmark;
}

bool is_backend(const std::string& by) { return by == "cpu" || by == "cuda"; }

Row row_of(const std::string& experiment, const Benchmark& benchmark) {
  Row row{.experiment = experiment, .axes = {benchmark.kernel, benchmark.shape, benchmark.by}};
  if (is_backend(benchmark.by)) row.device = benchmark.by;
  return row;
}

void add(std::vector<Row>& rows, Row row, const std::string& metric, double value, const std::string& unit) {
  row.metric = metric;
  row.value = value;
  row.unit = unit;
  rows.push_back(std::move(row));
}

void add_rates(std::vector<Row>& rows, const Row& row, const Benchmark& benchmark, const BenchmarkFile& file) {
  const double bound = std::max(benchmark.bytes / file.copy_bytes_per_s, benchmark.flops / file.gemm_flops_per_s);
  add(rows, row, "bandwidth", benchmark.bytes / benchmark.median_s * 1e-12, "TB/s");
  add(rows, row, "compute", benchmark.flops / benchmark.median_s * 1e-12, "TFLOP/s");
  if (benchmark.bytes > 0 && benchmark.flops > 0)
    add(rows, row, "intensity", benchmark.flops / benchmark.bytes, "FLOP/byte");
  add(rows, row, "bound_share", 100 * bound / benchmark.median_s, "%");
}

void add_peers(std::vector<Row>& rows, const Row& row, const Benchmark& benchmark, const BenchmarkFile& file) {
  for (const Benchmark& other : file.benchmarks) {
    if (is_backend(other.by) || other.kernel != benchmark.kernel || other.shape != benchmark.shape) continue;
    add(rows, row, "vs_" + other.by, other.median_s / benchmark.median_s, "");
  }
}

}  // namespace

BenchmarkFile parse_benchmarks(std::string_view json, std::string_view owner) {
  const Json root = parse_strict_json(json, owner);
  const std::string name(owner);
  Reader reader(root, name);
  BenchmarkFile file;
  const Json& manifest = reader.at("manifest");
  if (!manifest.is_object()) reader.fail("manifest: expected an object");
  file.manifest = manifest.dump();
  Reader peaks(reader.at("peaks"), name + ": peaks");
  file.copy_bytes_per_s = peaks.number("copy_bytes_per_s", kRate);
  file.gemm_flops_per_s = peaks.number("gemm_flops_per_s", kRate);
  peaks.finish();
  const Json& list = reader.at("benchmarks");
  if (!list.is_array() || list.empty()) reader.fail("benchmarks: expected a list of at least one");
  reader.finish();
  std::set<std::tuple<std::string, std::string, std::string>> operations;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: benchmarks[{}]", name, i);
    Benchmark benchmark = parse_benchmark(list[i], where);
    if (!operations.emplace(benchmark.by, benchmark.kernel, benchmark.shape).second) {
      throw UserError(fmt::format("{}: {} appears twice", where,
                                  in_quotes(fmt::format("{}/{}/{}", benchmark.by, benchmark.kernel, benchmark.shape))));
    }
    file.benchmarks.push_back(std::move(benchmark));
  }
  return file;
}

std::span<const std::string> benchmark_axes() {
  static const std::array<std::string, 3> kAxes = {"kernel", "shape", "by"};
  return kAxes;
}

std::vector<Row> benchmark_rows(const BenchmarkFile& file, const std::string& experiment) {
  std::vector<Row> rows;
  const Row peaks{.experiment = experiment, .axes = {"", "", ""}};
  add(rows, peaks, "copy_peak", file.copy_bytes_per_s * 1e-12, "TB/s");
  add(rows, peaks, "gemm_peak", file.gemm_flops_per_s * 1e-12, "TFLOP/s");
  for (const Benchmark& benchmark : file.benchmarks) {
    const Row row = row_of(experiment, benchmark);
    add(rows, row, "median_time", benchmark.median_s * 1e6, "µs");
    add(rows, row, "spread", 100 * (benchmark.high_s - benchmark.low_s) / benchmark.median_s, "%");
    add(rows, row, "timings", static_cast<double>(benchmark.samples), "");
    if (benchmark.bytes > 0 || benchmark.flops > 0) add_rates(rows, row, benchmark, file);
    if (is_backend(benchmark.by)) add_peers(rows, row, benchmark, file);
  }
  return rows;
}

}  // namespace kv
