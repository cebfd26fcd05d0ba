#include "kernels/backend.h"

#include <cstdlib>
#include <string>

#include "kernels/advance.h"
#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/attention_mass.h"
#include "kernels/blend.h"
#include "kernels/column_add.h"
#include "kernels/compact.h"
#include "kernels/cuda/facts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/machine.h"
#include "kernels/cuda/record.cuh"
#include "kernels/embed.h"
#include "kernels/error.h"
#include "kernels/expected_attention.h"
#include "kernels/future_scores.h"
#include "kernels/keep_recent.h"
#include "kernels/key_difference.h"
#include "kernels/layer_mean.h"
#include "kernels/linear.h"
#include "kernels/pool.h"
#include "kernels/projected_norms.h"
#include "kernels/random_normal.h"
#include "kernels/redundancy.h"
#include "kernels/retained_mass.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/row_cosine.h"
#include "kernels/sample.h"
#include "kernels/select_pooled.h"
#include "kernels/select_top.h"
#include "kernels/silu_mul.h"
#include "kernels/survival.h"
#include "kernels/token_loss.h"
#include "kernels/visibility.h"
#include "kernels/window_attention.h"

namespace kv {

namespace {

// One a process: the stream, the memory pool and its counters belong to the device (kernels/cuda/launch.cu).
class CudaBackend final : public Backend {
 public:
  CudaBackend() : before_(cuda::memory_use().now) { cuda::memory_use().peak = before_; }

  std::string_view name() const override { return "cuda"; }
  Facts accelerator() const override { return cuda::facts(); }
  DType activation_type() const override { return DType::bf16; }

  void* allocate(size_t bytes) override {
    void* data = cuda::allocate(bytes);
    KV_CUDA_CHECK(cudaMemsetAsync(data, 0xFF, bytes, cuda::stream()));
    return data;
  }
  void release(void* data, size_t bytes) override { cuda::release(data, bytes); }
  void upload(void* to, const void* host, size_t bytes) override {
    KV_CUDA_CHECK(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, cuda::stream()));
    synchronize();  // the caller may change its memory at once
  }
  void download(void* host, const void* from, size_t bytes) override {
    KV_CUDA_CHECK(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, cuda::stream()));
    synchronize();
  }
  void copy(void* to, const void* from, size_t bytes) override {
    KV_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::stream()));
  }
  void fill_zero(void* data, size_t bytes) override { KV_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, cuda::stream())); }
  void synchronize() override { KV_CUDA_CHECK(cudaStreamSynchronize(cuda::stream())); }
  size_t bytes_in_use() const override { return cuda::memory_use().now - before_; }
  size_t peak_bytes() const override { return cuda::memory_use().peak - before_; }
  void reset_peak() override { cuda::memory_use().peak = cuda::memory_use().now; }
  Memory memory() const override { return cuda::device_memory(); }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override { return cuda::record(work); }

  void linear(const LinearArgs& args) override { cuda::linear(args); }
  void rms_norm(const RmsNormArgs& args) override { cuda::rms_norm(args); }
  void rope(const RopeArgs& args) override { cuda::rope(args); }
  void silu_mul(const SiluMulArgs& args) override { cuda::silu_mul(args); }
  void embed(const EmbedArgs& args) override { cuda::embed(args); }
  void token_loss(const TokenLossArgs& args) override { cuda::token_loss(args); }
  void sample(const SampleArgs& args) override { cuda::sample(args); }
  void attend(const AttendArgs& args) override { cuda::attend(args); }
  void advance(const AdvanceArgs& args) override { cuda::advance(args); }
  void append(const AppendArgs& args) override { cuda::append(args); }
  void compact(const CompactArgs& args) override { cuda::compact(args); }
  void column_add(const ColumnAddArgs& args) override { cuda::column_add(args); }
  void column_mean(const ColumnMeanArgs& args) override { cuda::column_mean(args); }
  void keep_recent(const KeepRecentArgs& args) override { cuda::keep_recent(args); }
  void window_attention(const WindowAttentionArgs& args) override { cuda::window_attention(args); }
  void pool(const PoolArgs& args) override { cuda::pool(args); }
  void group_mean(const GroupMeanArgs& args) override { cuda::group_mean(args); }
  void redundancy(const RedundancyArgs& args) override { cuda::redundancy(args); }
  void key_difference(const KeyDifferenceArgs& args) override { cuda::key_difference(args); }
  void layer_mean(const LayerMeanArgs& args) override { cuda::layer_mean(args); }
  void query_moments(const QueryMomentsArgs& args) override { cuda::query_moments(args); }
  void expected_attention(const ExpectedAttentionArgs& args) override { cuda::expected_attention(args); }
  void blend(const BlendArgs& args) override { cuda::blend(args); }
  void future_scores(const FutureScoresArgs& args) override { cuda::future_scores(args); }
  void future_table(const FutureTableArgs& args) override { cuda::future_table(args); }
  void select_top(const SelectTopArgs& args) override { cuda::select_top(args); }
  void select_pooled(const SelectPooledArgs& args) override { cuda::select_pooled(args); }
  void projected_norms(const ProjectedNormsArgs& args) override { cuda::projected_norms(args); }
  void attention_mass(const AttentionMassArgs& args) override { cuda::attention_mass(args); }
  void retained_mass(const RetainedMassArgs& args) override { cuda::retained_mass(args); }
  void survival(const SurvivalArgs& args) override { cuda::survival(args); }
  void row_cosine(const RowCosineArgs& args) override { cuda::row_cosine(args); }
  void visibility(const VisibilityArgs& args) override { cuda::visibility(args); }
  void random_normal(const RandomNormalArgs& args) override { cuda::random_normal(args); }

 private:
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
