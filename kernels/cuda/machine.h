#pragma once

#include <string>

namespace kv::cuda {

// What decides whether a machine can run the kernels of this build. Versions of CUDA as the runtime gives them:
// 1000 · major + 10 · minor.
struct Machine {
  std::string error;  // why the runtime finds no devices; empty where it could look
  int devices = 0;
  int driver = 0;      // newest CUDA that the driver is for; 0 = no driver
  int runtime = 0;     // CUDA of this build
  int capability = 0;  // of the device, 10 · major + minor
};

// "13.0", of such a number.
std::string version_text(int version);

// Why it cannot, in one line; empty where it can.
std::string why_unusable(const Machine& machine);

}  // namespace kv::cuda
