#include "kernels/cuda/staging.cuh"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

namespace {

// A ring of slots, each filled from its beginning. A slot is free again once the stream has come to its event, which is
// behind the last copy that it serves.
class Ring {
 public:
  static constexpr size_t kSlot = size_t{2} << 20;

  Ring() {
    KV_CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&memory_), kSlots * kSlot, cudaHostAllocDefault));
    for (cudaEvent_t& event : served_) KV_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    KV_CUDA_CHECK(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
  }

  // At most kSlot bytes, until the copy that is launched next has been served.
  std::byte* take(size_t bytes) {
    if (used_ + bytes > kSlot) next_slot();
    std::byte* taken = memory_ + slot_ * kSlot + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }
  // Behind what was launched until now, and the wait for that.
  void mark_arrived() { KV_CUDA_CHECK(cudaEventRecord(arrived_, stream())); }
  void wait_for_arrived() { KV_CUDA_CHECK(cudaEventSynchronize(arrived_)); }

 private:
  static constexpr size_t kSlots = 8, kAlignment = 256;

  void next_slot() {
    KV_CUDA_CHECK(cudaEventRecord(served_[slot_], stream()));
    slot_ = (slot_ + 1) % kSlots;
    KV_CUDA_CHECK(cudaEventSynchronize(served_[slot_]));  // one that was never recorded is no wait
    used_ = 0;
  }

  std::byte* memory_ = nullptr;
  cudaEvent_t served_[kSlots] = {};
  cudaEvent_t arrived_ = {};
  size_t slot_ = 0, used_ = 0;
};

// As the stream, never torn down (kernels/cuda/launch.cu).
Ring& ring() {
  static Ring& instance = *new Ring;
  return instance;
}

// Calls with each piece that a slot has room for.
template <class Call>
void for_pieces(size_t bytes, const Call& call) {
  for (size_t first = 0; first < bytes; first += Ring::kSlot) call(first, std::min(Ring::kSlot, bytes - first));
}

// Bytes of a task: a thread alone copies a large piece more slowly than the device does.
constexpr int64_t kBlock = 128 << 10;
void copy_on_host(void* to, const void* from, size_t bytes) {
  cpu::parallel_blocks(static_cast<int64_t>(bytes), kBlock, [=](int64_t first, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first,
                static_cast<size_t>(end - first));
  });
}

}  // namespace

void upload(void* to, const void* host, size_t bytes) {
  KV_CHECK(!is_capturing());  // a recording would read the ring anew each time
  for_pieces(bytes, [&](size_t first, size_t count) {
    std::byte* staged = ring().take(count);
    copy_on_host(staged, static_cast<const std::byte*>(host) + first, count);
    KV_CUDA_CHECK(
        cudaMemcpyAsync(static_cast<std::byte*>(to) + first, staged, count, cudaMemcpyHostToDevice, stream()));
  });
}

// A piece is on its way while the one before it is copied on, long before the ring comes to its slot again.
void download(void* host, const void* from, size_t bytes) {
  auto* to = static_cast<std::byte*>(host);
  const std::byte* before = nullptr;  // of kSlot bytes
  for_pieces(bytes, [&](size_t first, size_t count) {
    std::byte* staged = ring().take(count);
    KV_CUDA_CHECK(
        cudaMemcpyAsync(staged, static_cast<const std::byte*>(from) + first, count, cudaMemcpyDeviceToHost, stream()));
    if (before) {
      ring().wait_for_arrived();
      copy_on_host(to + first - Ring::kSlot, before, Ring::kSlot);
    }
    if (first + count < bytes) {
      ring().mark_arrived();
    } else {
      KV_CUDA_CHECK(cudaStreamSynchronize(stream()));
      copy_on_host(to + first, staged, count);
    }
    before = staged;
  });
}

}  // namespace kv::cuda
