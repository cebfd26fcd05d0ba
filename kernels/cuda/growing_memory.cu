#include "kernels/cuda/growing_memory.cuh"

#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/error.h"

namespace kv::cuda {

namespace {

template <class Function>
void look_up(Function& function, const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KV_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found));
  KV_CHECK(found == cudaDriverEntryPointSuccess);
  function = reinterpret_cast<Function>(entry);
}

// From the driver at run time, so that nothing links against it.
struct Driver {
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free;
  PFN_cuMemGetAllocationGranularity_v10020 granularity;
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuGetErrorName_v6000 name_of;

  Driver() {
    look_up(reserve, "cuMemAddressReserve", 10020);
    look_up(free, "cuMemAddressFree", 10020);
    look_up(granularity, "cuMemGetAllocationGranularity", 10020);
    look_up(create, "cuMemCreate", 10020);
    look_up(release, "cuMemRelease", 10020);
    look_up(map, "cuMemMap", 10020);
    look_up(unmap, "cuMemUnmap", 10020);
    look_up(set_access, "cuMemSetAccess", 10020);
    look_up(name_of, "cuGetErrorName", 6000);
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

// Ends the process with the place and the reason, as KV_CUDA_CHECK does.
void check(CUresult result, const char* call, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (driver().name_of(result, &name) != CUDA_SUCCESS || !name) name = "an unknown error";
  std::fprintf(stderr, "%s:%d: internal error: %s: %s\n", __FILE__, line, call, name);
  std::abort();
}

#define KV_DRIVER_CHECK(call) check((call), #call, __LINE__)

CUmemAllocationProp on_this_device() {
  int id = 0;
  KV_CUDA_CHECK(cudaGetDevice(&id));
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, id};
  return prop;
}

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

class CudaGrowingMemory final : public GrowingMemory {
 public:
  CudaGrowingMemory() : prop_(on_this_device()) {
    KV_DRIVER_CHECK(driver().granularity(&granularity_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    range_ = round_up(device_memory().total, granularity_);
    KV_DRIVER_CHECK(driver().reserve(&first_, range_, 0, 0, 0));
  }
  ~CudaGrowingMemory() override {
    KV_CUDA_CHECK(cudaStreamSynchronize(stream()));  // ops may still be at work in it
    if (mapped_ > 0) KV_DRIVER_CHECK(driver().unmap(first_, mapped_));
    for (const CUmemGenericAllocationHandle piece : pieces_) KV_DRIVER_CHECK(driver().release(piece));
    KV_DRIVER_CHECK(driver().free(first_, range_));
    memory_use().now -= bytes_;
  }
  CudaGrowingMemory(const CudaGrowingMemory&) = delete;
  CudaGrowingMemory& operator=(const CudaGrowingMemory&) = delete;

  void* grow(size_t bytes) override {
    KV_CHECK(bytes >= bytes_ && !is_capturing());
    if (bytes > mapped_) add_piece(round_up(bytes - mapped_, granularity_));
    memory_use().now += bytes - bytes_;
    memory_use().peak = std::max(memory_use().peak, memory_use().now);
    bytes_ = bytes;
    return reinterpret_cast<void*>(first_);
  }

 private:
  void add_piece(size_t size) {
    CUresult result = try_piece(size);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      give_back_reserve();
      result = try_piece(size);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_memory_error(size);
    KV_DRIVER_CHECK(result);
    KV_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(first_ + mapped_), 0xFF, size, stream()));
    mapped_ += size;
  }

  // Behind what is mapped; leaves nothing where it fails.
  CUresult try_piece(size_t size) {
    if (mapped_ + size > range_) return CUDA_ERROR_OUT_OF_MEMORY;
    CUmemGenericAllocationHandle piece{};
    CUresult result = driver().create(&piece, size, &prop_, 0);
    if (result != CUDA_SUCCESS) return result;
    const CUdeviceptr at = first_ + mapped_;
    result = driver().map(at, size, 0, piece, 0);
    if (result == CUDA_SUCCESS) {
      const CUmemAccessDesc access{prop_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      result = driver().set_access(at, size, &access, 1);
      if (result != CUDA_SUCCESS) KV_DRIVER_CHECK(driver().unmap(at, size));
    }
    if (result != CUDA_SUCCESS) {
      KV_DRIVER_CHECK(driver().release(piece));
    } else {
      pieces_.push_back(piece);
    }
    return result;
  }

  CUmemAllocationProp prop_;
  size_t granularity_ = 0;
  CUdeviceptr first_ = 0;
  size_t range_ = 0;   // of addresses
  size_t mapped_ = 0;  // of them have memory
  size_t bytes_ = 0;   // asked for
  std::vector<CUmemGenericAllocationHandle> pieces_;
};

}  // namespace

std::unique_ptr<GrowingMemory> growing_memory() { return std::make_unique<CudaGrowingMemory>(); }

}  // namespace kv::cuda
