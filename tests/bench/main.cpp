#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>

#include "harness/build_info.h"
#include "harness/rows.h"
#include "kernels/error.h"
#include "tests/bench/bench.h"

// kvlab_bench [--device=cpu|cuda] [GOOGLE BENCHMARK OPTIONS]: every benchmark of one device; without --device of all
// that this machine has, and a line for one that it lacks.

namespace kv::bench {
namespace {

constexpr const char* kDevices[] = {"cpu", "cuda"};

// Takes --device=NAME out of the arguments; empty without one.
std::string take_device(int& argc, char** argv) {
  constexpr std::string_view kOption = "--device=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) continue;
    std::copy(argv + i + 1, argv + argc, argv + i);
    --argc;
    return std::string(argument.substr(kOption.size()));
  }
  return {};
}

void open_devices(const std::string& device_name, std::deque<Device>& devices) {
  if (!device_name.empty()) {
    devices.emplace_back(device_name);
    return;
  }
  for (const char* name : kDevices) {
    try {
      devices.emplace_back(name);
    } catch (const UserError& error) {
      fmt::print(stderr, "kvlab_bench: without the benchmarks of {}: {}\n", name, error.what());
    }
  }
}

// What the report of the numbers must say beside them.
void describe(Device& device) {
  const std::string name(device.name());
  for (const auto& [key, value] : device.backend().accelerator()) benchmark::AddCustomContext(key, value);
  benchmark::AddCustomContext(name + "_copy_bytes_per_s", shortest(device.peaks().copy_bytes_per_s));
  benchmark::AddCustomContext(name + "_gemm_flops_per_s", shortest(device.peaks().gemm_flops_per_s));
}

int run(int argc, char** argv) {
  const std::string device_name = take_device(argc, argv);
  const bool only_names = std::any_of(argv, argv + argc, [](const char* argument) {
    return std::string_view(argument).starts_with("--benchmark_list_tests");
  });
  benchmark::Initialize(&argc, argv);
  if (argc > 1) throw UserError(fmt::format("unknown option '{}', expected --device=NAME or --benchmark_*", argv[1]));
  std::deque<Device> devices;  // their addresses stay
  open_devices(device_name, devices);
  benchmark::AddCustomContext("commit", std::string(build_info().commit));
  benchmark::AddCustomContext("changes", build_info().dirty ? "uncommitted" : "none");
  for (Device& device : devices) {
    add_families(device);
    if (!only_names) describe(device);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace kv::bench

int main(int argc, char** argv) {
  try {
    return kv::bench::run(argc, argv);
  } catch (const kv::UserError& error) {
    fmt::print(stderr, "kvlab_bench: {}\n", error.what());
    return 2;
  }
}
