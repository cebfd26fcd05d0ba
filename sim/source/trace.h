#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/io/safetensors.h"
#include "sim/tasks/sample.h"

namespace kv {

// A recorded run: one safetensors file that any tool can read or write. Metadata (all strings):
//   format "kvlab-trace", version "1", model, layers "0,3,7", q_heads, kv_heads, head_dim, width, rope_inv_freq "…,…"
//   (optional), rope_attention_factor (optional), checksum.
// Tensors, T tokens, one set a recorded layer number N; f32 or bf16 unless said otherwise:
//   input_ids [T] i32;  labels [T] u8 (0 context, 1 needle, 2 question, 3 answer);  nll [T−1] f32;  entropy [T] f32
//   links [N, 4] i32: query begin and end, source begin and end, one row a source range of a Link (sim/tasks/sample.h),
//   rows of one link together, ascending query begin
//   layers.N.queries [T, q_heads, head_dim]            post-RoPE
//   layers.N.keys, layers.N.values [T, kv_heads, head_dim]   post-RoPE
//   layers.N.pre_rope_queries, layers.N.pre_rope_keys  after any q/k-norm
//   layers.N.inputs [T, width]                         the attention block's input, after its norm
//   layers.N.output_weight [width, q_heads · head_dim] W_O
// labels, links, nll, entropy, pre_rope_*, inputs and output_weight may be missing: what needs them is refused.
// checksum = SHA-256 over the lower-case hex SHA-256 of each tensor's bytes, joined in the order of the sorted names.
inline constexpr const char* kTraceFormat = "kvlab-trace";
inline constexpr const char* kTraceVersion = "1";

struct TraceInfo {
  std::string model;
  std::vector<int> layers;  // numbers as the model counts them
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int width = 0;
  int64_t tokens = 0;
  std::vector<float> inv_freq;  // empty where unknown
  float attention_factor = 1;
  Dtype dtype = Dtype::kF32;  // of the first layer's queries
  bool has_pre_rope_queries = false;
  bool has_pre_rope_keys = false;
  bool has_inputs = false;
  bool has_output_weight = false;
  bool has_losses = false;
  bool has_labels = false;
};

// Memory-mapped. Every promise of the metadata is checked when opening (UserError naming the file and the tensor).
class Trace {
 public:
  enum class Checksum { kVerify, kSkip };
  static Trace open(const std::filesystem::path& path, Checksum checksum = Checksum::kVerify);

  const TraceInfo& info() const { return info_; }
  const std::string& name() const { return file_.name(); }
  const Sample& sample() const { return sample_; }  // ids, labels, links; context_tokens from the first question label
  const std::vector<float>& nll() const { return nll_; }          // [T−1] or empty
  const std::vector<float>& entropy() const { return entropy_; }  // [T] or empty

  // Tokens [first, first + count) of layers.N.<what>, converted to f32; out [count, row elements].
  void read(int layer_number, const std::string& what, int64_t first, int64_t count, float* out) const;
  std::vector<float> read_all(int layer_number, const std::string& what) const;

 private:
  explicit Trace(SafetensorsFile file) : file_(std::move(file)) {}
  void parse_metadata();
  void parse_layers(const std::string& text);
  void parse_rope();
  void check_tensors();
  void check_layers();
  void read_losses();
  void read_labels();
  void read_links();
  void check_shape(const std::string& tensor, const std::vector<int64_t>& shape) const;
  void verify_checksum() const;
  [[noreturn]] void fail(const std::string& message) const;

  SafetensorsFile file_;
  TraceInfo info_;
  Sample sample_;
  std::vector<float> nll_, entropy_;
};

// The checksum of a file's tensors, as stored in the metadata.
std::string trace_checksum(const SafetensorsFile& file);

}  // namespace kv
