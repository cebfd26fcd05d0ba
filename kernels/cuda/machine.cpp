#include "kernels/cuda/machine.h"

namespace kv::cuda {

namespace {

constexpr int kAmpere = 80;
constexpr int kHopper = 90;

std::string expected(const Machine& machine) {
  return "expected a GPU and a driver for CUDA " + version_text(machine.runtime) + " or later";
}

std::string drivers(const Machine& machine) {
  return " (driver for CUDA " + version_text(machine.driver) + "; " + expected(machine) + ")";
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string why_unusable(const Machine& machine) {
  // CUDA's own word for that is a driver of an insufficient version.
  if (machine.driver == 0) return "no driver (" + expected(machine) + ")";
  if (!machine.error.empty()) return machine.error + drivers(machine);
  if (machine.devices == 0) return "no GPU" + drivers(machine);
  if (machine.capability < kAmpere) {
    return "the GPU has compute capability " + std::to_string(machine.capability / 10) + "." +
           std::to_string(machine.capability % 10) + " (expected 8.0 or later)";
  }
  // Only Hopper's code is in the build. For other cards the driver compiles PTX, and none newer than itself.
  if (machine.capability != kHopper && machine.driver < machine.runtime) {
    return "the driver is too old to compile the kernels for this GPU" + drivers(machine);
  }
  return "";
}

}  // namespace kv::cuda
