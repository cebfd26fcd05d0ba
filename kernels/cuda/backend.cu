#include "kernels/backend.h"

#include <cstdlib>
#include <string>

#include "kernels/check_pages.h"
#include "kernels/cuda/download.cuh"
#include "kernels/cuda/facts.cuh"
#include "kernels/cuda/growing_memory.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/machine.h"
#include "kernels/cuda/moment.cuh"
#include "kernels/cuda/record.cuh"
#include "kernels/cuda/staging.cuh"
#include "kernels/error.h"
#include "kernels/every_op.h"

namespace kv {

namespace {

// One a process: the stream, the memory pool and its counters belong to the device (kernels/cuda/launch.cu).
class CudaBackend final : public Backend {
 public:
  CudaBackend() : before_(cuda::memory_use().now) { cuda::memory_use().peak = before_; }
  ~CudaBackend() override { cuda::give_back_reserve(); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string_view name() const override { return "cuda"; }
  Facts accelerator() const override { return cuda::facts(); }
  std::string device_identity() const override { return cuda::device_identity(); }
  DType activation_type() const override { return DType::kBF16; }

  void* allocate(size_t bytes) override {
    void* data = cuda::allocate(bytes);
    KV_CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, cuda::stream()));
    return data;
  }
  void release(void* data, size_t bytes) override { cuda::release(data, bytes); }
  std::unique_ptr<GrowingMemory> growing_memory() override { return cuda::growing_memory(); }
  void upload(void* to, const void* host, size_t bytes) override { cuda::upload(to, host, bytes); }
  void download(void* host, const void* from, size_t bytes) override { cuda::download(host, from, bytes); }
  std::unique_ptr<Download> begin_download(const void* from, size_t bytes) override {
    return cuda::begin_download(from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    KV_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::stream()));
  }
  void fill_zero(void* data, size_t bytes) override { KV_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, cuda::stream())); }
  void synchronize() override { KV_CUDA_CHECK(cudaStreamSynchronize(cuda::stream())); }
  std::unique_ptr<Moment> mark() override { return cuda::mark(); }
  size_t bytes_in_use() const override { return cuda::memory_use().now - before_; }
  size_t peak_bytes() const override { return cuda::memory_use().peak - before_; }
  void reset_peak() override { cuda::memory_use().peak = cuda::memory_use().now; }
  Memory memory() const override { return cuda::device_memory(); }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override { return cuda::record(work); }

#define KV_METHOD(op, Args) \
  void op(const Args& args) override { run(cuda::op, args); }
  KV_FOR_EACH_OP(KV_METHOD)
#undef KV_METHOD

  void check_pages(const PagedView& cache) override { cuda::check_pages(cache); }

 private:
  // Every op comes through here. While a recording is captured nothing runs yet, so there is nothing to check: the
  // steps that a graph repeats go unchecked.
  template <class Args>
  void run(void (*op)(const Args&), const Args& args) {
    static_assert(sizeof(Args) > 0);  // of an incomplete type for_each_view() would see no view
    if (checks_every_op() && !cuda::is_capturing()) for_each_view(args, cuda::check_pages);
    op(args);
  }

  size_t before_;
};

cuda::Machine this_machine() {
  cuda::Machine machine;
  machine.runtime = CUDART_VERSION;
  const cudaError_t error = cudaGetDeviceCount(&machine.devices);
  if (error != cudaSuccess) {
    machine.error = cudaGetErrorString(error);
    machine.devices = 0;
    cudaGetLastError();
  }
  cudaDriverGetVersion(&machine.driver);
  if (machine.devices == 0) return machine;
  int id = 0, major = 0, minor = 0;
  KV_CUDA_CHECK(cudaGetDevice(&id));
  KV_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id));
  KV_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id));
  machine.capability = 10 * major + minor;
  return machine;
}

// Throws UserError where this machine cannot run the kernels of this build.
std::unique_ptr<Backend> make_cuda_backend() {
  const std::string why = cuda::why_unusable(this_machine());
  if (!why.empty()) throw UserError("device 'cuda': " + why);
  return std::make_unique<CudaBackend>();
}

[[maybe_unused]] const bool registered = register_backend("cuda", make_cuda_backend);

}  // namespace

}  // namespace kv
