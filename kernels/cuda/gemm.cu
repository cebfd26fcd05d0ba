#include "kernels/cuda/gemm.cuh"

#include <cublasLt.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "kernels/cuda/mark_written.cuh"

namespace kv::cuda {

namespace {

[[noreturn]] void cublas_failed(const char* file, int line, const char* call, cublasStatus_t status) {
  std::fprintf(stderr, "%s:%d: internal error: %s: %s\n", file, line, call, cublasLtGetStatusString(status));
  std::abort();
}

#define KV_CUBLAS_CHECK(call)                                                                                  \
  do {                                                                                                         \
    const cublasStatus_t kv_cublas_status = (call);                                                            \
    if (kv_cublas_status != CUBLAS_STATUS_SUCCESS) cublas_failed(__FILE__, __LINE__, #call, kv_cublas_status); \
  } while (false)

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

cudaDataType_t data_type(DType type) { return type == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// One shape's descriptors and the kernel that cuBLASLt's heuristic picks for it; asked once, because asking costs as
// much as a small product. cuBLASLt's matrices are column-major: it computes outputᵀ [out, rows] = weight · inputᵀ.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Gemm& args) {
    const cudaDataType_t output_type = data_type(args.output_type);
    const bool by_outputs = args.weight_rows == WeightRows::kOutputs;
    const cublasOperation_t weight_operation = by_outputs ? CUBLAS_OP_T : CUBLAS_OP_N;
    KV_CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    KV_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &weight_operation,
                                                   sizeof(weight_operation)));
    if (args.bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      KV_CUBLAS_CHECK(
          cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
      set_bias(args.bias);
    }
    const int64_t weight_width = by_outputs ? args.in : args.out;
    const int64_t weight_rows = by_outputs ? args.out : args.in;
    KV_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&weight_, CUDA_R_16BF, weight_width, weight_rows, weight_width));
    KV_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&input_, CUDA_R_16BF, args.in, args.rows, args.in));
    KV_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&output_, output_type, args.out, args.rows, args.out));
    cublasLtMatmulPreference_t preference;
    KV_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    KV_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                         &kWorkspaceBytes, sizeof(kWorkspaceBytes)));
    // Where the sum over `in` is split, its parts stay f32.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    KV_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                         &reductions, sizeof(reductions)));
    // Tensors start anywhere inside an allocation; rows of eight values keep them on 16 bytes.
    const uint32_t alignment = 16;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      KV_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof(alignment)));
    }
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    KV_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, operation_, weight_, input_, output_, output_, preference, 1,
                                                   &found, &count));
    KV_CHECK(count == 1);
    algorithm_ = found.algo;
    KV_CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  }

  void run(cublasLtHandle_t handle, const Gemm& args, void* workspace) {
    if (args.bias) set_bias(args.bias);
    const float alpha = 1;
    const float beta = args.addend ? 1 : 0;
    const void* addend = args.addend ? args.addend : args.output;
    KV_CUBLAS_CHECK(cublasLtMatmul(handle, operation_, &alpha, args.weight, weight_, args.input, input_, &beta, addend,
                                   output_, args.output, output_, &algorithm_, workspace, kWorkspaceBytes, stream()));
    mark_written(args.output, static_cast<size_t>(args.rows * args.out) * bytes_of(args.output_type));
  }

 private:
  void set_bias(const bf16* bias) {
    KV_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, input_ = nullptr, output_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_;
};

// Lives as long as the process, as the device's stream does (launch.cu).
class Library {
 public:
  Library() {
    workspace_ = allocate_for_good(kWorkspaceBytes);  // first: it may throw, and the next product tries again
    KV_CUBLAS_CHECK(cublasLtCreate(&handle_));
    mark_written(workspace_, kWorkspaceBytes);  // what one kernel of a call writes there, the next reads
  }

  void run(const Gemm& args) {
    const auto key = std::tuple(args.rows, args.in, args.out, args.weight_rows, args.output_type, args.bias != nullptr,
                                args.addend != nullptr);
    auto found = plans_.find(key);
    if (found == plans_.end()) found = plans_.emplace(key, Plan(handle_, args)).first;
    found->second.run(handle_, args, workspace_);
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<std::tuple<int64_t, int64_t, int64_t, WeightRows, DType, bool, bool>, Plan> plans_;
};

Library& library() {
  static Library& instance = *new Library;
  return instance;
}

constexpr int kTile = 16;

__device__ float weight_at(const Gemm& args, int64_t out, int64_t in) {
  if (out >= args.out || in >= args.in) return 0.0f;
  return to_f32(args.weight[args.weight_rows == WeightRows::kOutputs ? out * args.in + in : in * args.out + out]);
}

__global__ void plain_gemm(Gemm args, int64_t row_tiles) {
  __shared__ float input[kTile][kTile + 1], weight[kTile][kTile + 1];
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  const int64_t row = blockIdx.x % row_tiles * kTile + y;
  const int64_t first_out = blockIdx.x / row_tiles * kTile;
  float sum = 0;
  for (int64_t i = 0; i < args.in; i += kTile) {
    input[y][x] = i + x < args.in && row < args.rows ? to_f32(args.input[row * args.in + i + x]) : 0.0f;
    weight[y][x] = weight_at(args, first_out + y, i + x);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) sum += input[y][k] * weight[x][k];
    __syncthreads();
  }
  const int64_t out = first_out + x;
  if (row < args.rows && out < args.out) finish(args, row, out, sum);
}

bool has_words(const Gemm& args) {
  return args.in > 0 && args.in % 8 == 0 && is_aligned(args.input, 16) && is_aligned(args.weight, 16);
}

void multiply(const Gemm& args) {
  if (args.rows == 0 || args.out == 0) return;
  if (has_words(args) && args.out % 8 == 0 && is_aligned(args.output, 16) && is_aligned(args.addend, 16) &&
      is_aligned(args.bias, 16)) {
    library().run(args);
  } else {
    const int64_t row_tiles = ceil_div(args.rows, kTile);
    launch(plain_gemm, row_tiles * ceil_div(args.out, kTile), kTile * kTile, 0, args, row_tiles);
  }
}

}  // namespace

bool streams_weights(const Gemm& args) {
  return has_words(args) && args.rows == 1 && args.weight_rows == WeightRows::kOutputs;
}

void gemm(const Gemm& args) { gemm(std::span(&args, 1)); }

void gemm(std::span<const Gemm> products) {
  Gemm streamed[kMostProducts];
  size_t count = 0;
  KV_CHECK(products.size() <= kMostProducts);
  for (const Gemm& product : products) {
    KV_CHECK(product.output_type == DType::kBF16 || (product.output_type == DType::kF32 && !product.bias));
    if (streams_weights(product)) {
      streamed[count++] = product;
    } else {
      multiply(product);
    }
  }
  gemv(std::span(streamed, count));
}

}  // namespace kv::cuda
