#include "tests/bench/timing.h"

#include <chrono>
#include <map>
#include <string>

#include "kernels/check.h"

namespace kv::bench {

namespace {

std::map<std::string, TimingFactory, std::less<>>& factories() {
  static std::map<std::string, TimingFactory, std::less<>> map;
  return map;
}

// The CPU's ops return when they are done. Caches stay as they are: between two ops of a model they would be warm, too.
class WallClock final : public Timing {
 public:
  double seconds(const std::function<void()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

const bool kRegistered = register_timing("cpu", [] { return std::unique_ptr<Timing>(new WallClock); });

}  // namespace

bool register_timing(std::string_view backend, TimingFactory factory) {
  return factories().emplace(std::string(backend), factory).second;
}

std::unique_ptr<Timing> make_timing(std::string_view backend) {
  const auto found = factories().find(backend);
  KV_CHECK(found != factories().end());
  return found->second();
}

}  // namespace kv::bench
