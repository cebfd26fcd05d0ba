#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace kv {

struct AdvanceArgs;
struct AppendArgs;
struct AttendArgs;
struct AttentionMassArgs;
struct BlendArgs;
struct ColumnAddArgs;
struct ColumnMeanArgs;
struct CompactArgs;
struct EmbedArgs;
struct ExpectedAttentionArgs;
struct FutureScoresArgs;
struct FutureTableArgs;
struct GroupMeanArgs;
struct KeepRecentArgs;
struct KeyDifferenceArgs;
struct LayerMeanArgs;
struct LinearArgs;
struct PagedView;
struct PoolArgs;
struct ProjectedNormsArgs;
struct QueryMomentsArgs;
struct RandomNormalArgs;
struct RandomUniformArgs;
struct RedundancyArgs;
struct RetainedMassArgs;
struct RmsNormArgs;
struct RopeArgs;
struct RowCosineArgs;
struct SampleArgs;
struct SelectPooledArgs;
struct SelectTopArgs;
struct SiluMulArgs;
struct SurvivalArgs;
struct TokenLossArgs;
struct VisibilityArgs;
struct WindowAttentionArgs;

struct Memory {
  size_t free = 0;   // bytes that can still be allocated
  size_t total = 0;  // bytes that the device has
};

// What results depend on, for their manifests: names and texts, in a fixed order.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Ops that were recorded once, to be run again and again.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void run() = 0;
};

// Where memory lives and ops run. Each op's contract stands in kernels/<op>.h; every backend implements all of them.
// A backend registers itself by name (kernels/<name>/backend.cpp); what the build lacks is an error, never a fallback.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // Of the device that runs the ops: "gpu", its product name ("NVIDIA H200"), then size, driver and libraries. None
  // where the host runs them.
  virtual Facts accelerator() const = 0;
  // Element type of weights, activations, keys and values; statistics and scores are f32 everywhere.
  virtual DType activation_type() const = 0;

  virtual void* allocate(size_t bytes) = 0;  // 64-byte aligned, every byte 0xFF
  virtual void release(void* data, size_t bytes) = 0;
  virtual void upload(void* to, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void fill_zero(void* data, size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual size_t bytes_in_use() const = 0;
  virtual size_t peak_bytes() const = 0;
  virtual void reset_peak() = 0;  // to what is in use now
  // As it is now: other programs may take their share later.
  virtual Memory memory() const = 0;

  // Records the ops that `work` calls; each run() repeats them, in the order of all other ops, without the host's work
  // between them. Pointers and sizes are those of the recording, so what changes from run to run lies in backend memory
  // and is changed by ops. `work` may neither upload, download nor synchronize, keeps no memory that it allocates and
  // leaves no trace on the host: a backend without such a thing (the CPU) calls it again at each run().
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;

  virtual void linear(const LinearArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void silu_mul(const SiluMulArgs& args) = 0;
  virtual void embed(const EmbedArgs& args) = 0;
  virtual void token_loss(const TokenLossArgs& args) = 0;
  virtual void sample(const SampleArgs& args) = 0;
  virtual void attend(const AttendArgs& args) = 0;
  virtual void append(const AppendArgs& args) = 0;
  virtual void advance(const AdvanceArgs& args) = 0;
  virtual void compact(const CompactArgs& args) = 0;
  virtual void column_add(const ColumnAddArgs& args) = 0;
  virtual void column_mean(const ColumnMeanArgs& args) = 0;
  virtual void keep_recent(const KeepRecentArgs& args) = 0;
  virtual void window_attention(const WindowAttentionArgs& args) = 0;
  virtual void pool(const PoolArgs& args) = 0;
  virtual void group_mean(const GroupMeanArgs& args) = 0;
  virtual void redundancy(const RedundancyArgs& args) = 0;
  virtual void key_difference(const KeyDifferenceArgs& args) = 0;
  virtual void layer_mean(const LayerMeanArgs& args) = 0;
  virtual void query_moments(const QueryMomentsArgs& args) = 0;
  virtual void expected_attention(const ExpectedAttentionArgs& args) = 0;
  virtual void blend(const BlendArgs& args) = 0;
  virtual void future_scores(const FutureScoresArgs& args) = 0;
  virtual void future_table(const FutureTableArgs& args) = 0;
  virtual void select_top(const SelectTopArgs& args) = 0;
  virtual void select_pooled(const SelectPooledArgs& args) = 0;
  virtual void projected_norms(const ProjectedNormsArgs& args) = 0;
  virtual void attention_mass(const AttentionMassArgs& args) = 0;
  virtual void retained_mass(const RetainedMassArgs& args) = 0;
  virtual void survival(const SurvivalArgs& args) = 0;
  virtual void row_cosine(const RowCosineArgs& args) = 0;
  virtual void visibility(const VisibilityArgs& args) = 0;
  virtual void random_normal(const RandomNormalArgs& args) = 0;
  virtual void random_uniform(const RandomUniformArgs& args) = 0;

  // Throws PageError where a cache's view cannot be right (kernels/check_pages.h). Waits for the ops before it, so it
  // is nothing to record.
  virtual void check_pages(const PagedView& cache) = 0;
  // Whether every op checks first the views that it reads, but for those of a GPU's recording. So debug builds begin.
  void check_every_op(bool on) { checks_every_op_ = on; }

 protected:
  Backend();
  bool checks_every_op() const { return checks_every_op_; }

 private:
  bool checks_every_op_;
};

using BackendFactory = std::unique_ptr<Backend> (*)();

// Registers a factory under `name`; the result only exists so that a static initialiser can call it.
bool register_backend(std::string_view name, BackendFactory factory);

// Throws UserError naming the known backends when `name` is none of them.
std::unique_ptr<Backend> make_backend(std::string_view name);

}  // namespace kv
