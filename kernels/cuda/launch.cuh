#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "kernels/check.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/element.h"

// What every CUDA op needs on the host: checked calls, the stream, scratch memory and checked launches.

namespace kv {
struct Memory;
}

namespace kv::cuda {

class Arena;

// A CUDA call that fails leaves the context unusable, so the process ends with the place and the reason.
[[noreturn]] void cuda_failed(const char* file, int line, const char* call, cudaError_t error);

// The one stream of the backend: ops run in the order of their calls.
cudaStream_t stream();

// Multiprocessors of the device, which sizes the split of long rows.
int multiprocessors();

// What one block may have of a multiprocessor's shared memory.
size_t shared_bytes_a_block();

// 10 · major + minor: 90 is Hopper, whose kernels run on nothing else.
int compute_capability();

// Stream-ordered memory from the device's pool, 256-byte aligned and not cleared. Throws MemoryError with the bytes
// wanted and free when it does not fit.
void* allocate(size_t bytes);
void release(void* data, size_t bytes) noexcept;
// The same, never released and no recording's: there at once, whatever the stream does.
void* allocate_for_good(size_t bytes);

// While set, allocate() and release() turn to the arena (kernels/cuda/arena.cuh), and the stream is being captured.
void set_arena(Arena* arena);
bool is_capturing();

// Bytes handed out: tensors, scratch and what stays for good alike.
struct MemoryUse {
  size_t now = 0;
  size_t peak = 0;
};
MemoryUse& memory_use();

// Free counts what the pool holds in reserve, too.
Memory device_memory();
// Throws the MemoryError of so many bytes that do not fit.
[[noreturn]] void throw_memory_error(size_t bytes);
// What the pool holds in reserve, to the device, for other processes.
void give_back_reserve();

}  // namespace kv::cuda

#define KV_CUDA_CHECK(call)                                                                              \
  do {                                                                                                   \
    const cudaError_t kv_cuda_error = (call);                                                            \
    if (kv_cuda_error != cudaSuccess) ::kv::cuda::cuda_failed(__FILE__, __LINE__, #call, kv_cuda_error); \
  } while (false)

// KV_CHECK in device code: says what failed, then stops the grid; the host sees the error at its next checked call.
#define KV_DEVICE_CHECK(condition)                                                         \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      printf("%s:%d: internal error: %s does not hold\n", __FILE__, __LINE__, #condition); \
      __trap();                                                                            \
    }                                                                                      \
  } while (false)

namespace kv::cuda {

// Memory of one op. Freed in stream order, so it may be dropped while its kernels still run.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count) : bytes_(static_cast<size_t>(count) * sizeof(T)) {
    KV_CHECK(count >= 0);
    data_ = bytes_ ? static_cast<T*>(allocate(bytes_)) : nullptr;
  }
  ~Scratch() {
    if (data_) release(data_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() const { return data_; }
  void fill_zero() {
    if (data_) KV_CUDA_CHECK(cudaMemsetAsync(data_, 0, bytes_, stream()));
  }

 private:
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  if (bytes <= 32 * 1024) return;  // of 48 KB, which static shared memory is part of
  KV_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// Launches `blocks` blocks on the stream; none when blocks is 0. Grids are flat, because only their first dimension may
// exceed 65535.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, const Args&... args) {
  if (blocks == 0) return;
  KV_CHECK(blocks > 0 && blocks <= 0x7fffffff);
  allow_shared(kernel, shared_bytes);
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes, stream()>>>(
      static_cast<Params>(args)...);
  KV_CUDA_CHECK(cudaGetLastError());
}

// The same with an attribute of the launch.
template <class... Params, class... Args>
void launch_with(cudaLaunchAttribute attribute, void (*kernel)(Params...), int64_t blocks, int threads,
                 size_t shared_bytes, const Args&... args) {
  if (blocks == 0) return;
  KV_CHECK(blocks > 0 && blocks <= 0x7fffffff);
  allow_shared(kernel, shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream();
  config.attrs = &attribute;
  config.numAttrs = 1;
  KV_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// The same for a kernel that waits in all its blocks (device.cuh): it may start while the one before is still at work,
// if that one has said let_next_start(), and has its blocks in place, or its constants on their way, when that one
// ends.
template <class... Params, class... Args>
void launch_early(void (*kernel)(Params...), int64_t blocks, int threads, size_t shared_bytes, const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch_with(early, kernel, blocks, threads, shared_bytes, args...);
}

inline bool is_aligned(const void* data, size_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

}  // namespace kv::cuda
