#include "kernels/backend.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/advance.h"
#include "kernels/append.h"
#include "kernels/attend.h"
#include "kernels/attention_mass.h"
#include "kernels/blend.h"
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
    std::memcpy(to, host, bytes);
  }
  void download(void* host, const void* from, size_t bytes) override {
    KV_CHECK(!recording_);
    std::memcpy(host, from, bytes);
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

  void linear(const LinearArgs& args) override { cpu::linear(args); }
  void rms_norm(const RmsNormArgs& args) override { cpu::rms_norm(args); }
  void rope(const RopeArgs& args) override { cpu::rope(args); }
  void silu_mul(const SiluMulArgs& args) override { cpu::silu_mul(args); }
  void embed(const EmbedArgs& args) override { cpu::embed(args); }
  void token_loss(const TokenLossArgs& args) override { cpu::token_loss(args); }
  void sample(const SampleArgs& args) override { cpu::sample(args); }
  void attend(const AttendArgs& args) override { cpu::attend(args); }
  void advance(const AdvanceArgs& args) override { cpu::advance(args); }
  void append(const AppendArgs& args) override { cpu::append(args); }
  void compact(const CompactArgs& args) override { cpu::compact(args); }
  void column_add(const ColumnAddArgs& args) override { cpu::column_add(args); }
  void column_mean(const ColumnMeanArgs& args) override { cpu::column_mean(args); }
  void keep_recent(const KeepRecentArgs& args) override { cpu::keep_recent(args); }
  void window_attention(const WindowAttentionArgs& args) override { cpu::window_attention(args); }
  void pool(const PoolArgs& args) override { cpu::pool(args); }
  void group_mean(const GroupMeanArgs& args) override { cpu::group_mean(args); }
  void redundancy(const RedundancyArgs& args) override { cpu::redundancy(args); }
  void key_difference(const KeyDifferenceArgs& args) override { cpu::key_difference(args); }
  void layer_mean(const LayerMeanArgs& args) override { cpu::layer_mean(args); }
  void query_moments(const QueryMomentsArgs& args) override { cpu::query_moments(args); }
  void expected_attention(const ExpectedAttentionArgs& args) override { cpu::expected_attention(args); }
  void blend(const BlendArgs& args) override { cpu::blend(args); }
  void future_scores(const FutureScoresArgs& args) override { cpu::future_scores(args); }
  void future_table(const FutureTableArgs& args) override { cpu::future_table(args); }
  void select_top(const SelectTopArgs& args) override { cpu::select_top(args); }
  void select_pooled(const SelectPooledArgs& args) override { cpu::select_pooled(args); }
  void projected_norms(const ProjectedNormsArgs& args) override { cpu::projected_norms(args); }
  void attention_mass(const AttentionMassArgs& args) override { cpu::attention_mass(args); }
  void retained_mass(const RetainedMassArgs& args) override { cpu::retained_mass(args); }
  void survival(const SurvivalArgs& args) override { cpu::survival(args); }
  void row_cosine(const RowCosineArgs& args) override { cpu::row_cosine(args); }
  void visibility(const VisibilityArgs& args) override { cpu::visibility(args); }
  void random_normal(const RandomNormalArgs& args) override { cpu::random_normal(args); }

 private:
  size_t in_use_ = 0;
  size_t peak_ = 0;
  bool recording_ = false;  // a recording runs
};

[[maybe_unused]] const bool registered =
    register_backend("cpu", [] { return std::unique_ptr<Backend>(std::make_unique<CpuBackend>()); });

}  // namespace

}  // namespace kv
