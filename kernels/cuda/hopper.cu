#include "kernels/cuda/hopper.cuh"

#include <cudaTypedefs.h>

namespace kv::cuda {

namespace {

// From the driver at run time, so that nothing links against it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    KV_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    KV_CHECK(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const bf16* data, int64_t columns, int box_rows) {
  CUtensorMap map;
  const cuuint64_t size[] = {static_cast<cuuint64_t>(columns), cuuint64_t{1} << 31};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(columns) * sizeof(bf16)};
  const cuuint32_t box[] = {kPanelColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t dense[] = {1, 1};
  KV_CHECK(encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(data), size, stride, box, dense,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  return map;
}

}  // namespace kv::cuda
