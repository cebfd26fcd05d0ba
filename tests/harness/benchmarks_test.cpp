#include "harness/benchmarks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/error.h"

namespace kv {
namespace {

// Made up, so that the arithmetic can be done by hand: a copy of 4 TB/s and products of 800 TFLOP/s, ridge at 200
// FLOP/byte.
constexpr const char* kFile = R"({
  "manifest": {"gpu": "made up"},
  "peaks": {"copy_bytes_per_s": 4e12, "gemm_flops_per_s": 8e14},
  "benchmarks": [
    {"by": "cuda", "kernel": "prefill", "shape": "8K", "median_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3,
     "samples": 10, "bytes": 1e9, "flops": 8e11},
    {"by": "cuda", "kernel": "append", "shape": "8K", "median_s": 5e-4, "low_s": 5e-4, "high_s": 5e-4,
     "samples": 50, "bytes": 1e9, "flops": 0},
    {"by": "cudnn", "kernel": "prefill", "shape": "8K", "median_s": 1e-3, "low_s": 1e-3, "high_s": 1e-3,
     "samples": 10, "bytes": 1e9, "flops": 8e11}]})";

std::string with(const std::string& old, const std::string& text) {
  std::string file = kFile;
  const size_t at = file.find(old);
  EXPECT_NE(at, file.npos) << old;
  return file.replace(at, old.size(), text);
}

std::string error_of(const std::string& json) {
  try {
    parse_benchmarks(json, "b.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

// The values of one benchmark, by metric.
std::map<std::string, double> values_of(const std::vector<Row>& rows, const std::string& kernel,
                                        const std::string& by) {
  std::map<std::string, double> values;
  for (const Row& row : rows) {
    if (row.axes[0] == kernel && row.axes[2] == by) values[row.metric] = *row.value;
  }
  return values;
}

TEST(Benchmarks, BecomeRatesAndSharesOfTheRoofline) {
  const std::vector<Row> rows = benchmark_rows(parse_benchmarks(kFile, "b.json"), "kernels");
  EXPECT_EQ(rows[0].metric, "copy_peak");
  EXPECT_DOUBLE_EQ(*rows[0].value, 4);
  EXPECT_EQ(rows[1].metric, "gemm_peak");
  EXPECT_DOUBLE_EQ(*rows[1].value, 800);
  // 800 FLOP/byte, beyond the ridge: at least 8e11 / 8e14 = 1 ms, taken 2.
  const auto prefill = values_of(rows, "prefill", "cuda");
  EXPECT_DOUBLE_EQ(prefill.at("median_time"), 2000);
  EXPECT_NEAR(prefill.at("spread"), 10, 1e-9);
  EXPECT_DOUBLE_EQ(prefill.at("timings"), 10);
  EXPECT_DOUBLE_EQ(prefill.at("bandwidth"), 0.5);
  EXPECT_DOUBLE_EQ(prefill.at("compute"), 400);
  EXPECT_DOUBLE_EQ(prefill.at("intensity"), 800);
  EXPECT_DOUBLE_EQ(prefill.at("bound_share"), 50);
  EXPECT_DOUBLE_EQ(prefill.at("vs_cudnn"), 0.5);
  // Bytes alone: 1e9 / 4e12 = 0.25 ms, taken 0.5.
  const auto append = values_of(rows, "append", "cuda");
  EXPECT_DOUBLE_EQ(append.at("bound_share"), 50);
  EXPECT_FALSE(append.contains("intensity"));
  EXPECT_FALSE(append.contains("vs_cudnn"));
  const auto peer = values_of(rows, "prefill", "cudnn");
  EXPECT_DOUBLE_EQ(peer.at("compute"), 800);
  EXPECT_FALSE(peer.contains("vs_cudnn"));
}

TEST(Benchmarks, HaveATimeAloneWhereNoWorkIsKnown) {
  const std::string whole_task = with("\"bytes\": 1e9, \"flops\": 0", "\"bytes\": 0, \"flops\": 0");
  const auto append = values_of(benchmark_rows(parse_benchmarks(whole_task, "b.json"), "kernels"), "append", "cuda");
  EXPECT_DOUBLE_EQ(append.at("median_time"), 500);
  EXPECT_EQ(append.size(), 3) << "with spread and timings";
}

TEST(Benchmarks, RowsNameTheDeviceOfOursOnly) {
  for (const Row& row : benchmark_rows(parse_benchmarks(kFile, "b.json"), "kernels")) {
    EXPECT_EQ(row.experiment, "kernels");
    EXPECT_EQ(row.device, row.axes[2] == "cuda" ? "cuda" : "") << row.metric;
  }
}

TEST(Benchmarks, MistakesAreOneLine) {
  EXPECT_EQ(error_of(kFile), "accepted");
  EXPECT_TRUE(error_of("{").starts_with("b.json: ")) << error_of("{");
  EXPECT_EQ(error_of("{").find('\n'), std::string::npos);
  EXPECT_EQ(error_of("[]"), "b.json: expected an object");
  EXPECT_EQ(error_of(with("\"peaks\"", "\"peak\"")), "b.json: lacks the key 'peaks'");
  EXPECT_EQ(error_of(with("4e12", "0")), "b.json: peaks: copy_bytes_per_s is 0, expected a number from 1 to 1e+30");
  EXPECT_EQ(error_of(with("8e14}", "8e14, \"l2\": 1}")),
            "b.json: peaks: unknown key \"l2\", expected one of copy_bytes_per_s, gemm_flops_per_s");
  EXPECT_EQ(error_of(with("\"median_s\": 2e-3", "\"median_s\": \"2 ms\"")),
            "b.json: benchmarks[0]: median_s is \"2 ms\", expected a number from 1e-12 to 1000000000");
  EXPECT_EQ(error_of(with("1.9e-3", "2.05e-3")),
            "b.json: benchmarks[0]: median_s 0.002 is not between low_s 0.00205 and high_s 0.0021");
  EXPECT_EQ(error_of(with("\"cudnn\"", "\"cuda\"")), "b.json: benchmarks[2]: \"cuda/prefill/8K\" appears twice");
}

// Their quotients would be infinite.
TEST(Benchmarks, NumbersWithoutMeasureAreRefused) {
  for (const auto& [from, to] : {std::pair("\"bytes\": 1e9", "\"bytes\": 1e308"), std::pair("4e12", "1e-300"),
                                 std::pair("2.1e-3", "1e300"), std::pair("\"flops\": 0", "\"flops\": 1e301")}) {
    EXPECT_NE(error_of(with(from, to)).find("expected a number from "), std::string::npos) << to;
  }
}

}  // namespace
}  // namespace kv
