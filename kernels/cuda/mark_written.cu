#include "kernels/cuda/mark_written.cuh"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>
#include <nvtx3/nvToolsExtMemCudaRt.h>

#include "kernels/cuda/launch.cuh"

namespace kv::cuda {

void mark_written(const void* data, size_t bytes) {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("kvlab");
  nvtxMemVirtualRangeDesc_t range{};
  range.size = bytes;
  range.ptr = data;
  nvtxMemMarkInitializedBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof(batch);
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.regionDescCount = 1;
  batch.regionDescElementSize = sizeof(range);
  batch.regionDescElements = &range;
  nvtxMemCudaMarkInitialized(domain, stream(), 0, &batch);
}

}  // namespace kv::cuda
