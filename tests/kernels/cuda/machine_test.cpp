#include "kernels/cuda/machine.h"

#include <gtest/gtest.h>

namespace kv::cuda {
namespace {

const Machine kHopperMachine{.devices = 1, .driver = 13000, .runtime = 13000, .capability = 90};

TEST(CudaMachine, RunsOnAmpereAndLaterWithADriverOfItsTime) {
  EXPECT_EQ(why_unusable(kHopperMachine), "");
  Machine machine = kHopperMachine;
  machine.driver = 13020;
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    machine.capability = capability;
    EXPECT_EQ(why_unusable(machine), "") << capability;
  }
}

TEST(CudaMachine, WithoutADriverOrGpuSaysSo) {
  EXPECT_EQ(why_unusable({.error = "CUDA driver version is insufficient for CUDA runtime version", .runtime = 13000}),
            "no driver (expected a GPU and a driver for CUDA 13.0 or later)");
  EXPECT_EQ(why_unusable({.error = "no CUDA-capable device is detected", .driver = 13000, .runtime = 13000}),
            "no CUDA-capable device is detected (driver for CUDA 13.0; expected a GPU and a driver for CUDA 13.0 or "
            "later)");
  EXPECT_EQ(why_unusable({.driver = 13000, .runtime = 13000}),
            "no GPU (driver for CUDA 13.0; expected a GPU and a driver for CUDA 13.0 or later)");
}

TEST(CudaMachine, ATooOldDriverIsNamedWithTheOneThatIsExpected) {
  EXPECT_EQ(
      why_unusable(
          {.error = "CUDA driver version is insufficient for CUDA runtime version", .driver = 12040, .runtime = 13000}),
      "CUDA driver version is insufficient for CUDA runtime version (driver for CUDA 12.4; expected a GPU and a "
      "driver for CUDA 13.0 or later)");
}

// A driver runs code compiled with a newer CUDA of its major version, but does not compile that one's PTX.
TEST(CudaMachine, AnOlderDriverOfTheSameMajorVersionServesHopperAlone) {
  Machine machine = kHopperMachine;
  machine.runtime = 13020;
  EXPECT_EQ(why_unusable(machine), "");
  machine.capability = 80;
  EXPECT_EQ(why_unusable(machine),
            "the driver is too old to compile the kernels for this GPU (driver for CUDA 13.0; expected a GPU and a "
            "driver for CUDA 13.2 or later)");
}

TEST(CudaMachine, AnOlderGpuIsNamedWithTheOldestThatServes) {
  Machine machine = kHopperMachine;
  machine.capability = 75;
  EXPECT_EQ(why_unusable(machine), "the GPU has compute capability 7.5 (expected 8.0 or later)");
}

}  // namespace
}  // namespace kv::cuda
