#include "tests/bench/timing.h"

#include "kernels/cuda/launch.cuh"

namespace kv::bench {

namespace {

// Reads everything once. A flush that writes would leave the L2 full of lines that the measured kernel must evict to
// memory first.
__global__ void read_all(const float4* data, int64_t count, float* never) {
  float sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float4 value = data[i];
    sum += value.x + value.y + value.z + value.w;
  }
  if (sum == 1) *never = sum;  // memory is all zeros: the sum is 0, but the compiler cannot know
}

// Events on the backend's stream. The flush before them also keeps the GPU busy while the host enqueues the work, so
// the host's part of a launch is not timed, as it is not in a model whose launches run ahead.
class CudaEvents final : public Timing {
 public:
  CudaEvents() : flush_(flush_bytes() / static_cast<int64_t>(sizeof(float4))) {
    flush_.fill_zero();
    KV_CUDA_CHECK(cudaEventCreate(&begin_));
    KV_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~CudaEvents() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  double seconds(const std::function<void()>& work) override {
    const int64_t count = flush_bytes() / static_cast<int64_t>(sizeof(float4));
    cuda::launch(read_all, int64_t{8} * cuda::multiprocessors(), 256, 0, flush_.data(), count,
                 reinterpret_cast<float*>(flush_.data()));
    KV_CUDA_CHECK(cudaEventRecord(begin_, cuda::stream()));
    work();
    KV_CUDA_CHECK(cudaEventRecord(end_, cuda::stream()));
    KV_CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    KV_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds * 1e-3;
  }

 private:
  static int64_t flush_bytes() {
    int id = 0, l2 = 0;
    KV_CUDA_CHECK(cudaGetDevice(&id));
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, id));
    return int64_t{4} * l2;  // twice would do for a cache that replaces the oldest line; the H200's does not say
  }

  cuda::Scratch<float4> flush_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

const bool kRegistered = register_timing("cuda", [] { return std::unique_ptr<Timing>(new CudaEvents); });

}  // namespace

}  // namespace kv::bench
