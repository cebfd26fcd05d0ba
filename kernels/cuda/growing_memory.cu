#include "kernels/cuda/growing_memory.cuh"

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>
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

  Driver() {
    look_up(reserve, "cuMemAddressReserve", 10020);
    look_up(free, "cuMemAddressFree", 10020);
    look_up(granularity, "cuMemGetAllocationGranularity", 10020);
    look_up(create, "cuMemCreate", 10020);
    look_up(release, "cuMemRelease", 10020);
    look_up(map, "cuMemMap", 10020);
    look_up(unmap, "cuMemUnmap", 10020);
    look_up(set_access, "cuMemSetAccess", 10020);
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

void check(CUresult result) { KV_CHECK(result == CUDA_SUCCESS); }

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
    check(driver().granularity(&granularity_, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    range_ = round_up(device_memory().total, granularity_);
    check(driver().reserve(&first_, range_, 0, 0, 0));
  }
  ~CudaGrowingMemory() override {
    KV_CUDA_CHECK(cudaStreamSynchronize(stream()));  // ops may still be at work in it
    if (mapped_ > 0) check(driver().unmap(first_, mapped_));
    for (const CUmemGenericAllocationHandle piece : pieces_) check(driver().release(piece));
    check(driver().free(first_, range_));
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
    CUmemGenericAllocationHandle piece{};
    CUresult created = create(piece, size);
    if (created == CUDA_ERROR_OUT_OF_MEMORY) {
      give_back_reserve();
      created = create(piece, size);
    }
    if (created == CUDA_ERROR_OUT_OF_MEMORY) throw_memory_error(size);
    check(created);
    const CUdeviceptr at = first_ + mapped_;
    check(driver().map(at, size, 0, piece, 0));
    const CUmemAccessDesc access{prop_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(driver().set_access(at, size, &access, 1));
    pieces_.push_back(piece);
    mapped_ += size;
    KV_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(at), 0xFF, size, stream()));
  }

  CUresult create(CUmemGenericAllocationHandle& piece, size_t size) const {
    return mapped_ + size > range_ ? CUDA_ERROR_OUT_OF_MEMORY : driver().create(&piece, size, &prop_, 0);
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
