#include "kernels/backend.h"

#include <cstdlib>
#include <string>

#include "kernels/advance.h"
#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/attention_mass.h"
#include "kernels/blend.h"
#include "kernels/check_pages.h"
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
#include "kernels/random_uniform.h"
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
  ~CudaBackend() override { cuda::give_back_reserve(); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

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

  void linear(const LinearArgs& args) override { run(cuda::linear, args); }
  void rms_norm(const RmsNormArgs& args) override { run(cuda::rms_norm, args); }
  void rope(const RopeArgs& args) override { run(cuda::rope, args); }
  void silu_mul(const SiluMulArgs& args) override { run(cuda::silu_mul, args); }
  void embed(const EmbedArgs& args) override { run(cuda::embed, args); }
  void token_loss(const TokenLossArgs& args) override { run(cuda::token_loss, args); }
  void sample(const SampleArgs& args) override { run(cuda::sample, args); }
  void attend(const AttendArgs& args) override { run(cuda::attend, args); }
  void advance(const AdvanceArgs& args) override { run(cuda::advance, args); }
  void append(const AppendArgs& args) override { run(cuda::append, args); }
  void compact(const CompactArgs& args) override { run(cuda::compact, args); }
  void column_add(const ColumnAddArgs& args) override { run(cuda::column_add, args); }
  void column_mean(const ColumnMeanArgs& args) override { run(cuda::column_mean, args); }
  void keep_recent(const KeepRecentArgs& args) override { run(cuda::keep_recent, args); }
  void window_attention(const WindowAttentionArgs& args) override { run(cuda::window_attention, args); }
  void pool(const PoolArgs& args) override { run(cuda::pool, args); }
  void group_mean(const GroupMeanArgs& args) override { run(cuda::group_mean, args); }
  void redundancy(const RedundancyArgs& args) override { run(cuda::redundancy, args); }
  void key_difference(const KeyDifferenceArgs& args) override { run(cuda::key_difference, args); }
  void layer_mean(const LayerMeanArgs& args) override { run(cuda::layer_mean, args); }
  void query_moments(const QueryMomentsArgs& args) override { run(cuda::query_moments, args); }
  void expected_attention(const ExpectedAttentionArgs& args) override { run(cuda::expected_attention, args); }
  void blend(const BlendArgs& args) override { run(cuda::blend, args); }
  void future_scores(const FutureScoresArgs& args) override { run(cuda::future_scores, args); }
  void future_table(const FutureTableArgs& args) override { run(cuda::future_table, args); }
  void select_top(const SelectTopArgs& args) override { run(cuda::select_top, args); }
  void select_pooled(const SelectPooledArgs& args) override { run(cuda::select_pooled, args); }
  void projected_norms(const ProjectedNormsArgs& args) override { run(cuda::projected_norms, args); }
  void attention_mass(const AttentionMassArgs& args) override { run(cuda::attention_mass, args); }
  void retained_mass(const RetainedMassArgs& args) override { run(cuda::retained_mass, args); }
  void survival(const SurvivalArgs& args) override { run(cuda::survival, args); }
  void row_cosine(const RowCosineArgs& args) override { run(cuda::row_cosine, args); }
  void visibility(const VisibilityArgs& args) override { run(cuda::visibility, args); }
  void random_normal(const RandomNormalArgs& args) override { run(cuda::random_normal, args); }
  void random_uniform(const RandomUniformArgs& args) override { run(cuda::random_uniform, args); }

  void check_pages(const PagedView& cache) override { cuda::check_pages(cache); }

 private:
  // Every op comes through here. While a recording is captured nothing runs yet, so there is nothing to check: the
  // steps that a graph repeats go unchecked.
  template <class Args>
  void run(void (*op)(const Args&), const Args& args) {
    if (checks_every_op() && !cuda::is_capturing()) for_each_view(args, cuda::check_pages);
    op(args);
  }

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
