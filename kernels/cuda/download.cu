#include "kernels/cuda/download.cuh"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/error.h"

namespace kv::cuda {

namespace {

// Pinned memory takes long to come by, so it is kept, and never torn down (kernels/cuda/launch.cu). One who takes it
// over copies behind whoever had it: on the stream.
struct Pinned {
  std::byte* data = nullptr;
  size_t bytes = 0;
  cudaEvent_t arrived = nullptr;
};

std::vector<Pinned>& idle() {
  static std::vector<Pinned>& blocks = *new std::vector<Pinned>;
  return blocks;
}

Pinned make_pinned(size_t bytes) {
  Pinned made{.bytes = bytes};
  const cudaError_t error =
      cudaHostAlloc(reinterpret_cast<void**>(&made.data), std::max<size_t>(bytes, 1), cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky
    throw MemoryError("memory: " + std::to_string(bytes) + " pinned bytes of a download do not fit");
  }
  KV_CUDA_CHECK(error);
  KV_CUDA_CHECK(cudaEventCreateWithFlags(&made.arrived, cudaEventDisableTiming));
  return made;
}

// The smallest that is large enough; not one of more than twice that, which larger downloads will want.
Pinned take(size_t bytes) {
  std::vector<Pinned>& blocks = idle();
  auto best = blocks.end();
  for (auto block = blocks.begin(); block != blocks.end(); ++block) {
    if (block->bytes >= bytes && block->bytes / 2 <= bytes && (best == blocks.end() || block->bytes < best->bytes))
      best = block;
  }
  if (best == blocks.end()) return make_pinned(bytes);
  const Pinned taken = *best;
  blocks.erase(best);
  return taken;
}

class PinnedDownload final : public Download {
 public:
  PinnedDownload(const void* from, size_t bytes) : to_(take(bytes)), bytes_(bytes) {
    KV_CUDA_CHECK(cudaMemcpyAsync(to_.data, from, bytes, cudaMemcpyDeviceToHost, stream()));
    KV_CUDA_CHECK(cudaEventRecord(to_.arrived, stream()));
  }
  ~PinnedDownload() override { idle().push_back(to_); }
  PinnedDownload(const PinnedDownload&) = delete;
  PinnedDownload& operator=(const PinnedDownload&) = delete;

  std::span<const std::byte> wait() override {
    KV_CUDA_CHECK(cudaEventSynchronize(to_.arrived));
    return {to_.data, bytes_};
  }

 private:
  Pinned to_;
  size_t bytes_;
};

}  // namespace

std::unique_ptr<Download> begin_download(const void* from, size_t bytes) {
  KV_CHECK(!is_capturing());
  return std::make_unique<PinnedDownload>(from, bytes);
}

}  // namespace kv::cuda
