#include "kernels/cuda/moment.cuh"

#include <vector>

#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

namespace {

// Events that no moment holds: a pass makes many, and making one costs more than recording it.
std::vector<cudaEvent_t>& idle_events() {
  static std::vector<cudaEvent_t> events;
  return events;
}

cudaEvent_t take_event() {
  if (idle_events().empty()) {
    cudaEvent_t event = nullptr;
    KV_CUDA_CHECK(cudaEventCreate(&event));
    return event;
  }
  const cudaEvent_t event = idle_events().back();
  idle_events().pop_back();
  return event;
}

class EventMoment final : public Moment {
 public:
  EventMoment() : event_(take_event()) { KV_CUDA_CHECK(cudaEventRecord(event_, stream())); }
  ~EventMoment() override { idle_events().push_back(event_); }
  EventMoment(const EventMoment&) = delete;
  EventMoment& operator=(const EventMoment&) = delete;

  double seconds_since(const Moment& earlier) const override {
    KV_CUDA_CHECK(cudaEventSynchronize(event_));
    float milliseconds = 0;
    KV_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, static_cast<const EventMoment&>(earlier).event_, event_));
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_;
};

}  // namespace

std::unique_ptr<Moment> mark() {
  KV_CHECK(!is_capturing());
  return std::make_unique<EventMoment>();
}

}  // namespace kv::cuda
