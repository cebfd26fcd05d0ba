#include "kernels/cuda/launch.cuh"

#include <cstdlib>
#include <string>

#include "kernels/error.h"

namespace kv::cuda {

namespace {

struct Device {
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  int multiprocessors = 0;
  MemoryUse use;

  Device() {
    int id = 0;
    KV_CUDA_CHECK(cudaGetDevice(&id));
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id));
    KV_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    KV_CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, id));
    // Freed memory stays in the pool, so that a policy's per-block tensors cost no driver call.
    uint64_t keep_all = UINT64_MAX;
    KV_CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all));
  }
};

// Ops are free functions of their arguments, so what belongs to the device belongs to the process. It is never torn
// down: at exit the driver may be gone before static objects are.
Device& device() {
  static Device& instance = *new Device;
  return instance;
}

std::string memory_line(size_t bytes) {
  size_t free = 0, total = 0;
  KV_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  uint64_t reserved = 0, used = 0;
  KV_CUDA_CHECK(cudaMemPoolGetAttribute(device().pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  KV_CUDA_CHECK(cudaMemPoolGetAttribute(device().pool, cudaMemPoolAttrUsedMemCurrent, &used));
  return "device memory: " + std::to_string(bytes) + " bytes do not fit (" + std::to_string(free + (reserved - used)) +
         " of " + std::to_string(total) + " are free)";
}

}  // namespace

void cuda_failed(const char* file, int line, const char* call, cudaError_t error) {
  std::fprintf(stderr, "%s:%d: internal error: %s: %s (%s)\n", file, line, call, cudaGetErrorName(error),
               cudaGetErrorString(error));
  std::abort();
}

cudaStream_t stream() { return device().stream; }

int multiprocessors() { return device().multiprocessors; }

MemoryUse& memory_use() { return device().use; }

void* allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocAsync(&data, std::max<size_t>(bytes, 1), stream());
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the context stays usable
    throw UserError(memory_line(bytes));
  }
  KV_CUDA_CHECK(error);
  MemoryUse& use = device().use;
  use.now += bytes;
  use.peak = std::max(use.peak, use.now);
  return data;
}

void release(void* data, size_t bytes) noexcept {
  device().use.now -= bytes;
  KV_CUDA_CHECK(cudaFreeAsync(data, stream()));
}

}  // namespace kv::cuda
