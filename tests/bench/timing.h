#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace kv::bench {

// How long work takes on a device. One for each backend, registered under the backend's name beside it: on the CPU the
// wall clock, on CUDA events on the backend's stream (cuda/timing.cu).
class Timing {
 public:
  virtual ~Timing() = default;
  // Seconds from the start to the end of `work` on the device. What the caches held before is gone, where the device
  // has a cache large enough to matter.
  virtual double seconds(const std::function<void()>& work) = 0;
};

using TimingFactory = std::unique_ptr<Timing> (*)();
bool register_timing(std::string_view backend, TimingFactory factory);
// The clock of a backend that make_backend has made.
std::unique_ptr<Timing> make_timing(std::string_view backend);

}  // namespace kv::bench
