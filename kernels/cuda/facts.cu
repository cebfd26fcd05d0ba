#include "kernels/cuda/facts.cuh"

#include <cublasLt.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/machine.h"

namespace kv::cuda {

Facts facts() {
  int id = 0, driver = 0;
  cudaDeviceProp properties;
  KV_CUDA_CHECK(cudaGetDevice(&id));
  KV_CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
  KV_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return {{"gpu", properties.name},
          {"gpu_multiprocessors", std::to_string(properties.multiProcessorCount)},
          {"gpu_memory_bytes", std::to_string(properties.totalGlobalMem)},
          {"cuda_driver", version_text(driver)},
          {"cuda_runtime", version_text(CUDART_VERSION)},
          {"cublaslt", std::to_string(cublasLtGetVersion())}};
}

std::string device_identity() {
  constexpr char kDigits[] = "0123456789abcdef";
  int id = 0;
  cudaDeviceProp properties;
  KV_CUDA_CHECK(cudaGetDevice(&id));
  KV_CUDA_CHECK(cudaGetDeviceProperties(&properties, id));
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace kv::cuda
