#include "harness/protocols/lanes.h"

#include "kernels/check.h"

namespace kv {

Lanes::Turn::Lane Lanes::take() {
  const std::lock_guard lock(mutex_);
  if (own_is_free_) {
    Source& source = batch_.subject.source(first_, count_);  // asked again, since another runner may have used it
    own_is_free_ = false;
    return {.backend = &batch_.backend, .source = &source};
  }
  if (free_twins_.empty()) {
    Twin twin{.backend = make_backend(batch_.backend.name()), .source = nullptr};
    twin.source = batch_.subject.source(first_, count_).twin(*twin.backend);
    KV_CHECK(twin.source != nullptr);
    twins_.push_back(std::move(twin));
    return {.backend = twins_.back().backend.get(), .source = twins_.back().source.get()};
  }
  const Turn::Lane lane = free_twins_.back();
  free_twins_.pop_back();
  return lane;
}

void Lanes::give_back(Turn::Lane lane) {
  const std::lock_guard lock(mutex_);
  if (lane.backend == &batch_.backend) {
    own_is_free_ = true;
  } else {
    free_twins_.push_back(lane);
  }
}

}  // namespace kv
