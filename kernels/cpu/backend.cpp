#include "kernels/backend.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/advance.h"
#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/attention_mass.h"
#include "kernels/blend.h"
#include "kernels/check_pages.h"
#include "kernels/column_add.h"
#include "kernels/compact.h"
#include "kernels/cpu/memory.h"
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

// Calls its work at each run, and holds it to what a recording may do.
class CpuRecording final : public Recording {
 public:
  CpuRecording(const std::function<void()>& work, const size_t& in_use, bool& running)
      : work_(work), in_use_(in_use), running_(running) {}
  void run() override {
    const size_t before = in_use_;
    running_ = true;
    try {
      work_();
    } catch (...) {
      running_ = false;
      throw;
    }
    running_ = false;
    KV_CHECK(in_use_ == before);
  }

 private:
  std::function<void()> work_;
  const size_t& in_use_;
  bool& running_;
};

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  Facts accelerator() const override { return {}; }
  DType activation_type() const override { return DType::f32; }

  void* allocate(size_t bytes) override {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* data = std::aligned_alloc(64, rounded ? rounded : 64);
    if (!data) throw MemoryError("memory: " + std::to_string(bytes) + " bytes do not fit");
    std::memset(data, 0xFF, rounded);
    in_use_ += bytes;
    if (in_use_ > peak_) peak_ = in_use_;
    return data;
  }
  void release(void* data, size_t bytes) override {
    in_use_ -= bytes;
    std::free(data);
  }
  void upload(void* to, const void* host, size_t bytes) override {
    KV_CHECK(!recording_);
    if (bytes > 0) std::memcpy(to, host, bytes);  // nothing may come from nowhere, which memcpy forbids
  }
  void download(void* host, const void* from, size_t bytes) override {
    KV_CHECK(!recording_);
    if (bytes > 0) std::memcpy(host, from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  void fill_zero(void* data, size_t bytes) override { std::memset(data, 0, bytes); }
  void synchronize() override { KV_CHECK(!recording_); }
  size_t bytes_in_use() const override { return in_use_; }
  size_t peak_bytes() const override { return peak_; }
  void reset_peak() override { peak_ = in_use_; }
  Memory memory() const override { return cpu::memory(); }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    return std::make_unique<CpuRecording>(work, in_use_, recording_);
  }

  void linear(const LinearArgs& args) override { run(cpu::linear, args); }
  void rms_norm(const RmsNormArgs& args) override { run(cpu::rms_norm, args); }
  void rope(const RopeArgs& args) override { run(cpu::rope, args); }
  void silu_mul(const SiluMulArgs& args) override { run(cpu::silu_mul, args); }
  void embed(const EmbedArgs& args) override { run(cpu::embed, args); }
  void token_loss(const TokenLossArgs& args) override { run(cpu::token_loss, args); }
  void sample(const SampleArgs& args) override { run(cpu::sample, args); }
  void attend(const AttendArgs& args) override { run(cpu::attend, args); }
  void advance(const AdvanceArgs& args) override { run(cpu::advance, args); }
  void append(const AppendArgs& args) override { run(cpu::append, args); }
  void compact(const CompactArgs& args) override { run(cpu::compact, args); }
  void column_add(const ColumnAddArgs& args) override { run(cpu::column_add, args); }
  void column_mean(const ColumnMeanArgs& args) override { run(cpu::column_mean, args); }
  void keep_recent(const KeepRecentArgs& args) override { run(cpu::keep_recent, args); }
  void window_attention(const WindowAttentionArgs& args) override { run(cpu::window_attention, args); }
  void pool(const PoolArgs& args) override { run(cpu::pool, args); }
  void group_mean(const GroupMeanArgs& args) override { run(cpu::group_mean, args); }
  void redundancy(const RedundancyArgs& args) override { run(cpu::redundancy, args); }
  void key_difference(const KeyDifferenceArgs& args) override { run(cpu::key_difference, args); }
  void layer_mean(const LayerMeanArgs& args) override { run(cpu::layer_mean, args); }
  void query_moments(const QueryMomentsArgs& args) override { run(cpu::query_moments, args); }
  void expected_attention(const ExpectedAttentionArgs& args) override { run(cpu::expected_attention, args); }
  void blend(const BlendArgs& args) override { run(cpu::blend, args); }
  void future_scores(const FutureScoresArgs& args) override { run(cpu::future_scores, args); }
  void future_table(const FutureTableArgs& args) override { run(cpu::future_table, args); }
  void select_top(const SelectTopArgs& args) override { run(cpu::select_top, args); }
  void select_pooled(const SelectPooledArgs& args) override { run(cpu::select_pooled, args); }
  void projected_norms(const ProjectedNormsArgs& args) override { run(cpu::projected_norms, args); }
  void attention_mass(const AttentionMassArgs& args) override { run(cpu::attention_mass, args); }
  void retained_mass(const RetainedMassArgs& args) override { run(cpu::retained_mass, args); }
  void survival(const SurvivalArgs& args) override { run(cpu::survival, args); }
  void row_cosine(const RowCosineArgs& args) override { run(cpu::row_cosine, args); }
  void visibility(const VisibilityArgs& args) override { run(cpu::visibility, args); }
  void random_normal(const RandomNormalArgs& args) override { run(cpu::random_normal, args); }
  void random_uniform(const RandomUniformArgs& args) override { run(cpu::random_uniform, args); }

  void check_pages(const PagedView& cache) override {
    KV_CHECK(!recording_);
    cpu::check_pages(cache);
  }

 private:
  // Every op comes through here.
  template <class Args>
  void run(void (*op)(const Args&), const Args& args) {
    if (checks_every_op()) for_each_view(args, cpu::check_pages);
    op(args);
  }

  size_t in_use_ = 0;
  size_t peak_ = 0;
  bool recording_ = false;  // a recording runs
};

[[maybe_unused]] const bool registered =
    register_backend("cpu", [] { return std::unique_ptr<Backend>(std::make_unique<CpuBackend>()); });

}  // namespace

}  // namespace kv
