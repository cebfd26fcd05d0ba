#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/timing.h"

// The registry of benchmarks. A family of ops is a file that registers its shapes for each device:
//   const Family kNorms{[](Device& device) {
//     device.add("rms_norm/8192x4096", [](Device& device, Samples& samples) { … samples.take(work, op); });
//   }};
// A benchmark's name is <device>/<kernel>/<shape>.

namespace kv::bench {

// What the algorithm must at least move and compute; formulas stand where they are used. A multiply-add is 2 FLOPs,
// causal pairs count once, and bytes count every operand once: from and to memory, not caches.
struct Work {
  double bytes = 0;
  double flops = 0;
};

// The rates that every benchmark of a run is held against, measured by the same backend in the same run.
struct Peaks {
  double copy_bytes_per_s = 0;  // read and written bytes of a large device-to-device copy
  double gemm_flops_per_s = 0;  // a large square product of random numbers in the activation type
};

class Device;

// The timings of one operation.
class Samples {
 public:
  Samples(benchmark::State& state, Device& device) : state_(state), device_(device) {}
  // Measures: warm-up, then samples, each from cold caches. Adds the counters: median_s, quartiles low_s and high_s,
  // samples, bytes, flops, their rates and shares of the peaks.
  void take(const Work& work, const std::function<void()>& op) { take_in_a_row(1, work, op); }
  // The same of so many in a row, the first from cold caches, of which a sample is the mean: what one does beside the
  // next counts once.
  void take_in_a_row(int times, const Work& work, const std::function<void()>& op);
  // The same for what times itself.
  void add(const Work& work, const std::vector<double>& seconds);
  // One more counter.
  void count(const std::string& name, double value) { state_.counters[name] = value; }

 private:
  benchmark::State& state_;
  Device& device_;
};

class Device {
 public:
  // Throws UserError where the backend is not in this build or cannot run here.
  explicit Device(std::string name);

  Backend& backend() { return *backend_; }
  Timing& timing() { return *timing_; }
  std::string_view name() const { return name_; }
  bool is_cpu() const { return name_ == "cpu"; }
  // Bytes of an activation.
  double activation() const { return static_cast<double>(bytes_of(backend_->activation_type())); }
  // The CPU gets shapes that it can finish; everything else the real ones.
  template <class T>
  const T& pick(const T& cpu, const T& accelerator) const {
    return is_cpu() ? cpu : accelerator;
  }

  // Measured at the first call.
  const Peaks& peaks();

  void add(const std::string& name, std::function<void(Device&, Samples&)> run);

 private:
  std::string name_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Timing> timing_;
  std::optional<Peaks> peaks_;
};

// Registers a family at namespace scope; add_families calls every one of them with the device.
struct Family {
  explicit Family(void (*add)(Device&));
};
void add_families(Device& device);

// Measures the peaks: peaks.cpp.
Peaks measure_peaks(Device& device);

}  // namespace kv::bench
