#include "kernels/cuda/launch.cuh"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/arena.cuh"
#include "kernels/error.h"

namespace kv::cuda {

namespace {

struct Device {
  cudaStream_t stream = nullptr;
  cudaStream_t side = nullptr;  // allocates while `stream` is being captured
  Arena* arena = nullptr;
  cudaMemPool_t pool = nullptr;
  int multiprocessors = 0;
  int compute_capability = 0;
  int shared_bytes_a_block = 0;
  MemoryUse use;

  Device() {
    int id = 0;
    KV_CUDA_CHECK(cudaGetDevice(&id));
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id));
    int major = 0, minor = 0;
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id));
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id));
    compute_capability = 10 * major + minor;
    KV_CUDA_CHECK(cudaDeviceGetAttribute(&shared_bytes_a_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, id));
    KV_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    KV_CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
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

}  // namespace

void cuda_failed(const char* file, int line, const char* call, cudaError_t error) {
  std::fprintf(stderr, "%s:%d: internal error: %s: %s (%s)\n", file, line, call, cudaGetErrorName(error),
               cudaGetErrorString(error));
  std::abort();
}

cudaStream_t stream() { return device().stream; }

int multiprocessors() { return device().multiprocessors; }

int compute_capability() { return device().compute_capability; }
size_t shared_bytes_a_block() { return static_cast<size_t>(device().shared_bytes_a_block); }

MemoryUse& memory_use() { return device().use; }

Memory device_memory() {
  Memory memory;
  KV_CUDA_CHECK(cudaMemGetInfo(&memory.free, &memory.total));
  uint64_t reserved = 0, used = 0;
  KV_CUDA_CHECK(cudaMemPoolGetAttribute(device().pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
  KV_CUDA_CHECK(cudaMemPoolGetAttribute(device().pool, cudaMemPoolAttrUsedMemCurrent, &used));
  memory.free += reserved - used;
  return memory;
}

void throw_memory_error(size_t bytes) {
  const Memory memory = device_memory();
  throw MemoryError("device memory: " + std::to_string(bytes) + " bytes do not fit (" + std::to_string(memory.free) +
                    " of " + std::to_string(memory.total) + " are free)");
}

void give_back_reserve() {
  KV_CUDA_CHECK(cudaStreamSynchronize(stream()));  // until then what was freed counts as used
  KV_CUDA_CHECK(cudaMemPoolTrimTo(device().pool, 0));
}

namespace {

void* allocate_on(cudaStream_t on, size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocAsync(&data, std::max<size_t>(bytes, 1), on);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the context stays usable
    throw_memory_error(bytes);
  }
  KV_CUDA_CHECK(error);
  MemoryUse& use = device().use;
  use.now += bytes;
  use.peak = std::max(use.peak, use.now);
  return data;
}

void free_on(cudaStream_t on, void* data, size_t bytes) {
  device().use.now -= bytes;
  KV_CUDA_CHECK(cudaFreeAsync(data, on));
}

}  // namespace

void* allocate(size_t bytes) { return device().arena ? device().arena->take(bytes) : allocate_on(stream(), bytes); }

void release(void* data, size_t bytes) noexcept {
  device().arena ? device().arena->give_back(data) : free_on(stream(), data, bytes);
}

void* allocate_for_good(size_t bytes) {
  void* data = allocate_on(device().side, bytes);
  KV_CUDA_CHECK(cudaStreamSynchronize(device().side));  // a stream that is being captured cannot wait for another
  return data;
}

void set_arena(Arena* arena) { device().arena = arena; }
bool is_capturing() { return device().arena != nullptr; }

void* Arena::take(size_t bytes) {
  for (Block& block : blocks_) {
    if (block.in_use || block.bytes < bytes || block.bytes > 2 * bytes) continue;
    block.in_use = true;
    return block.data;
  }
  void* data = allocate_for_good(bytes);
  blocks_.push_back({data, bytes, true});
  return data;
}

void Arena::give_back(void* data) {
  for (Block& block : blocks_) {
    if (block.data != data) continue;
    block.in_use = false;
    return;
  }
  KV_CHECK(false);  // memory from before the recording
}

bool Arena::is_idle() const {
  return std::none_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.in_use; });
}

Arena::~Arena() {
  for (const Block& block : blocks_) free_on(stream(), block.data, block.bytes);
}

}  // namespace kv::cuda
