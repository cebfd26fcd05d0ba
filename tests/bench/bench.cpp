#include "tests/bench/bench.h"

#include <algorithm>
#include <utility>

#include "harness/statistics.h"

namespace kv::bench {

namespace {

constexpr int kMostSamples = 50;
constexpr double kEnoughSeconds = 0.25;  // of samples beyond the least

std::vector<void (*)(Device&)>& families() {
  static std::vector<void (*)(Device&)> list;
  return list;
}

// Returns how many samples fit in kEnoughSeconds, by the warm-up's time. The CPU's long runs (whole replays) get few:
// they are seconds.
int sample_count(const Device& device, double seconds) {
  const int least = device.is_cpu() ? 3 : 10;
  return std::clamp(static_cast<int>(kEnoughSeconds / std::max(seconds, 1e-9)), least, kMostSamples);
}

}  // namespace

Family::Family(void (*add)(Device&)) { families().push_back(add); }

void add_families(Device& device) {
  for (const auto add : families()) add(device);
}

Device::Device(std::string name) : name_(std::move(name)), backend_(make_backend(name_)), timing_(make_timing(name_)) {}

const Peaks& Device::peaks() {
  if (!peaks_) peaks_ = measure_peaks(*this);
  return *peaks_;
}

void Device::add(const std::string& name, std::function<void(Device&, Samples&)> run) {
  // One iteration of Google Benchmark holds all samples: it would only give their mean.
  benchmark::RegisterBenchmark((name_ + "/" + name).c_str(),
                               [this, run = std::move(run)](benchmark::State& state) {
                                 Samples samples(state, *this);
                                 run(*this, samples);
                               })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

void Samples::take_in_a_row(int times, const Work& work, const std::function<void()>& op) {
  const auto all = [&] {
    for (int i = 0; i < times; ++i) op();
  };
  device_.peaks();                // not between warm-up and samples
  device_.timing().seconds(all);  // the first call pays for plans, pools and page faults
  std::vector<double> seconds(static_cast<size_t>(sample_count(device_, device_.timing().seconds(all))));
  for (double& sample : seconds) sample = device_.timing().seconds(all) / times;
  add(work, seconds);
}

void Samples::add(const Work& work, const std::vector<double>& seconds) {
  const Peaks& peaks = device_.peaks();
  const double median = quantile(seconds, 0.5);
  for (auto _ : state_) state_.SetIterationTime(median);
  auto& counters = state_.counters;
  counters["median_s"] = median;
  counters["low_s"] = quantile(seconds, 0.25);
  counters["high_s"] = quantile(seconds, 0.75);
  counters["samples"] = static_cast<double>(seconds.size());
  counters["bytes"] = work.bytes;
  counters["flops"] = work.flops;
  counters["bytes_per_s"] = work.bytes / median;
  counters["flops_per_s"] = work.flops / median;
  counters["copy_share"] = work.bytes / median / peaks.copy_bytes_per_s;
  counters["gemm_share"] = work.flops / median / peaks.gemm_flops_per_s;
}

}  // namespace kv::bench
