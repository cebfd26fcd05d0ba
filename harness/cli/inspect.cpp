#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cli/inspect_own.h"
#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/error.h"
#include "sim/io/gguf.h"
#include "sim/io/safetensors.h"
#include "sim/io/stored_path.h"
#include "sim/model/model_files.h"
#include "sim/source/trace.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// A GGUF file's own words: what it calls itself, how many tensors of which formats it holds, how it cuts texts.
void inspect_gguf(const fs::path& path) {
  const GgufFile file = GgufFile::open(path);
  std::map<std::string_view, int> formats;
  for (const GgufTensor& tensor : file.tensors()) ++formats[block_format_name(tensor.format)];
  std::vector<std::string> counts;
  for (const auto& [name, count] : formats) counts.push_back(fmt::format("{} in {}", count, name));
  fmt::print("file        GGUF {}, {} values of metadata, {} tensors: {}\n", file.version(), file.metadata().size(),
             file.tensors().size(), fmt::join(counts, ", "));
  for (const auto& [label, key] : {std::pair("name", "general.name"), {"licence", "general.license"}}) {
    if (const GgufValue* value = file.value(key)) fmt::print("{:<11} {}\n", label, shown(*value));
  }
  const GgufValue* kind = file.value("tokenizer.ggml.model");
  const GgufValue* splitting = file.value("tokenizer.ggml.pre");
  fmt::print("tokenizer   {}\n",
             kind ? fmt::format("{}{}", shown(*kind), splitting ? " " + shown(*splitting) : "") : "none: pass --ids");
}

void inspect_model(const fs::path& path) {
  const ModelFiles files = load_model(path);
  const ModelConfig& config = files.config();
  fmt::print("model       {}\n", model_name(path));
  fmt::print("family      {}\n", family_name(config.family));
  fmt::print("parameters  {:.1f} M\n", static_cast<double>(parameters_of(config)) / 1e6);
  fmt::print("layers      {}, width {}, MLP {}\n", config.layers, config.hidden_size, config.intermediate_size);
  fmt::print("heads       {} query, {} KV, dimension {}\n", config.heads, config.kv_heads, config.head_dim);
  fmt::print("vocabulary  {}, positions {}\n", config.vocab_size, config.max_positions);
  fmt::print("KV cache    {} bytes a token in f32\n", 2 * 4 * config.layers * config.kv_size());
  if (is_gguf(path)) {
    inspect_gguf(path);
  } else {
    fmt::print("tokenizer   {}\n", has_tokenizer(path) ? "tokenizer.json" : "none: pass --ids");
  }
  fmt::print("SHA-256     {}\n", fingerprint(path));
}

void inspect_trace(const fs::path& file) {
  const Trace trace = Trace::open(file);
  const TraceInfo& info = trace.info();
  std::array<int64_t, 4> labels{};
  for (const Label label : trace.sample().labels) ++labels[static_cast<size_t>(label)];
  fmt::print("trace       {} tokens of {}, checksum verified\n", info.tokens, info.model);
  fmt::print("layers      {}\n", fmt::join(info.layers, ", "));
  fmt::print("heads       {} query, {} KV, dimension {}, width {}\n", info.q_heads, info.kv_heads, info.head_dim,
             info.width);
  fmt::print("has         queries, keys, values in {}{}{}{}{}{}\n", dtype_name(info.dtype),
             info.has_pre_rope_queries ? ", pre-RoPE queries" : "", info.has_pre_rope_keys ? ", pre-RoPE keys" : "",
             info.has_inputs ? ", layer inputs" : "", info.has_output_weight ? ", W_O" : "",
             info.has_losses ? ", losses" : "");
  if (info.has_labels) {
    fmt::print("labels      {} context, {} needle, {} question, {} answer\n", labels[0], labels[1], labels[2],
               labels[3]);
  }
  if (!trace.sample().links.empty()) {
    fmt::print("links       {} (which tokens are useful to which)\n", trace.sample().links.size());
  }
  if (info.has_losses && !trace.nll().empty()) {
    const double sum = std::accumulate(trace.nll().begin(), trace.nll().end(), 0.0);
    fmt::print("loss        {:.4f} nats a token\n", sum / static_cast<double>(trace.nll().size()));
  }
}

void inspect_tensors(const SafetensorsFile& file) {
  for (const auto& [key, value] : file.metadata()) fmt::print("{} = {}\n", key, value);
  for (const TensorInfo& tensor : file.tensors()) {
    fmt::print("{:<40} {:<5} {}\n", tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape));
  }
}

void inspect_results(const fs::path& folder) {
  const RowTable table = read_rows(folder / "rows.csv");
  size_t skipped = 0;
  for (const Row& row : table.rows) skipped += row.skipped.empty() ? 0 : 1;
  fmt::print("results     {} rows, {} of them skipped; axes: {}\n", table.rows.size(), skipped,
             fmt::join(table.axes, ", "));
  if (fs::exists(folder / "manifest.json")) fmt::print("{}", read_file(folder / "manifest.json"));
}

// The name of a safetensors file without the ending that it has where it lies packed.
fs::path unpacked_name(const fs::path& path) {
  fs::path name = path;
  if (path.extension() == ".xz") name.replace_extension();
  return name.extension() == ".safetensors" ? name : path;
}

void inspect(const fs::path& given) {
  const fs::path path = unpacked_name(given);
  std::error_code error;
  if (!fs::exists(stored_file(path), error)) {
    const fs::path snapshot = cached_model(path.string());
    if (snapshot.empty()) throw UserError(fmt::format("{}: no such file or folder", given.string()));
    return inspect_model(snapshot);
  }
  if (fs::is_directory(path)) {
    if (fs::exists(stored_rows(path / "rows.csv"))) return inspect_results(path);
    return inspect_model(path);
  }
  if (is_gguf(path)) return inspect_model(path);
  if (is_own_traces(path)) return inspect_own_traces(path);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto format = file.metadata().find("format");
  if (format != file.metadata().end() && format->second == kTraceFormat) return inspect_trace(path);
  inspect_tensors(file);
}

}  // namespace

void add_inspect(CLI::App& app, Verbs&) {
  auto path = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "inspect", "Prints what a model, trace, file of own traces, safetensors file or result folder holds");
  verb->add_option("PATH", *path, "file or folder, or OWNER/NAME of a cached model")->required();
  verb->footer(
      "Examples:\n"
      "  kvlab inspect experiments/models/reference\n"
      "  kvlab inspect experiments/models/reference/own/quantities.jsonl.xz\n"
      "  kvlab inspect experiments/models/reference/learned/wg-kv.safetensors\n"
      "  kvlab inspect trace.safetensors");
  verb->callback([path] { inspect(*path); });
}

}  // namespace kv
