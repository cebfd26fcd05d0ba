#include "sim/source/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/error.h"
#include "sim/io/finite.h"
#include "sim/io/hash.h"

namespace kv {

namespace {

constexpr int64_t kPieceValues = 1 << 20;

bool is_float(Dtype dtype) {
  return dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

template <class T>
bool parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// One NaN would spoil scores and sums far from here, without a word.
void refuse_non_finite(const SafetensorsFile& file) {
  std::vector<float> piece;
  for (const TensorInfo& tensor : file.tensors()) {
    if (!is_float(tensor.dtype)) continue;
    for (int64_t first = 0; first < tensor.elements(); first += kPieceValues) {
      piece.resize(static_cast<size_t>(std::min(kPieceValues, tensor.elements() - first)));
      file.read_f32(tensor, first, piece);
      kv::refuse_non_finite(piece, first, tensor, file.name());
    }
  }
}

std::string tensor_name(int layer, const std::string& what) { return fmt::format("layers.{}.{}", layer, what); }

}  // namespace

std::string trace_checksum(const SafetensorsFile& file) {
  std::vector<const TensorInfo*> sorted;
  for (const TensorInfo& tensor : file.tensors()) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  Sha256 all;
  for (const TensorInfo* tensor : sorted) all.update(sha256_hex(file.bytes(*tensor)));
  return all.hex();
}

void Trace::fail(const std::string& message) const { throw UserError(fmt::format("{}: {}", file_.name(), message)); }

Trace Trace::open(const std::filesystem::path& path, Checksum checksum) {
  Trace trace(SafetensorsFile::open(path));
  trace.parse_metadata();
  if (checksum == Checksum::kVerify) trace.verify_checksum();
  trace.check_tensors();
  if (checksum == Checksum::kVerify) refuse_non_finite(trace.file_);
  return trace;
}

void Trace::verify_checksum() const {
  const auto stored = file_.metadata().find("checksum");
  if (stored == file_.metadata().end()) fail("trace without a checksum");
  if (stored->second != trace_checksum(file_)) fail("checksum does not match the tensors: the file is damaged");
}

void Trace::parse_metadata() {
  const Metadata& metadata = file_.metadata();
  const auto text = [&](const char* key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) fail(fmt::format("not a kvlab trace: metadata lacks '{}'", key));
    return found->second;
  };
  const auto count = [&](const char* key) {
    int value = 0;
    if (!parse(text(key), value) || value <= 0 || value > (1 << 20)) {
      fail(fmt::format("metadata '{}' = '{}': expected a positive integer", key, text(key)));
    }
    return value;
  };
  if (text("format") != kTraceFormat) {
    fail(fmt::format("metadata 'format' = '{}': expected '{}'", text("format"), kTraceFormat));
  }
  if (text("version") != kTraceVersion) {
    fail(fmt::format("trace version '{}': expected '{}'", text("version"), kTraceVersion));
  }
  info_.model = text("model");
  info_.q_heads = count("q_heads");
  info_.kv_heads = count("kv_heads");
  info_.head_dim = count("head_dim");
  info_.width = count("width");
  if (info_.q_heads % info_.kv_heads != 0) fail("metadata: q_heads is not a multiple of kv_heads");
  parse_layers(text("layers"));
  parse_rope();
}

void Trace::parse_layers(const std::string& text) {
  for (const std::string& part : split(text)) {
    int layer = 0;
    if (!parse(part, layer) || layer < 0) {
      fail(fmt::format("metadata 'layers' = '{}': expected numbers such as 0,3,7", text));
    }
    if (std::count(info_.layers.begin(), info_.layers.end(), layer) > 0) {
      fail(fmt::format("metadata 'layers' = '{}': {} appears twice", text, layer));
    }
    info_.layers.push_back(layer);
  }
}

void Trace::parse_rope() {
  const Metadata& metadata = file_.metadata();
  if (const auto frequencies = metadata.find("rope_inv_freq"); frequencies != metadata.end()) {
    for (const std::string& part : split(frequencies->second)) {
      float value = 0;
      if (!parse(part, value) || !std::isfinite(value)) {
        fail(fmt::format("metadata 'rope_inv_freq': '{}' is not a finite number", part));
      }
      info_.inv_freq.push_back(value);
    }
    if (std::ssize(info_.inv_freq) * 2 != info_.head_dim)
      fail("metadata 'rope_inv_freq': expected head_dim / 2 values");
  }
  const auto factor = metadata.find("rope_attention_factor");
  if (factor == metadata.end()) return;
  if (!parse(factor->second, info_.attention_factor) || !std::isfinite(info_.attention_factor)) {
    fail("metadata 'rope_attention_factor' is not a finite number");
  }
}

void Trace::check_shape(const std::string& tensor, const std::vector<int64_t>& shape) const {
  const TensorInfo& info = file_.require(tensor);
  if (info.shape == shape) return;
  fail(fmt::format("tensor '{}' has shape {}: expected {}", tensor, shape_text(info.shape), shape_text(shape)));
}

void Trace::check_tensors() {
  const TensorInfo& ids = file_.require("input_ids");
  if (ids.shape.size() != 1 || ids.shape[0] == 0) fail("tensor 'input_ids': expected shape [T] with T > 0");
  sample_.name = file_.name();
  sample_.ids = file_.read_i32(ids);
  if (*std::min_element(sample_.ids.begin(), sample_.ids.end()) < 0) fail("tensor 'input_ids': an id is negative");
  info_.tokens = ids.shape[0];
  check_layers();
  read_losses();
  read_labels();
  read_links();
}

void Trace::check_layers() {
  const int64_t tokens = info_.tokens;
  info_.has_pre_rope_queries = info_.has_pre_rope_keys = info_.has_inputs = info_.has_output_weight = true;
  for (const int layer : info_.layers) {
    check_shape(tensor_name(layer, "queries"), {tokens, info_.q_heads, info_.head_dim});
    check_shape(tensor_name(layer, "keys"), {tokens, info_.kv_heads, info_.head_dim});
    check_shape(tensor_name(layer, "values"), {tokens, info_.kv_heads, info_.head_dim});
    const auto optional = [&](const char* what, const std::vector<int64_t>& shape) {
      if (!file_.find(tensor_name(layer, what))) return false;
      check_shape(tensor_name(layer, what), shape);
      return true;
    };
    info_.has_pre_rope_queries &= optional("pre_rope_queries", {tokens, info_.q_heads, info_.head_dim});
    info_.has_output_weight &=
        optional("output_weight", {info_.width, static_cast<int64_t>(info_.q_heads) * info_.head_dim});
    info_.has_pre_rope_keys &= optional("pre_rope_keys", {tokens, info_.kv_heads, info_.head_dim});
    info_.has_inputs &= optional("inputs", {tokens, info_.width});
  }
  info_.dtype = file_.require(tensor_name(info_.layers.front(), "queries")).dtype;
}

void Trace::read_losses() {
  if (!file_.find("nll")) return;
  check_shape("nll", {info_.tokens - 1});
  check_shape("entropy", {info_.tokens});
  nll_ = file_.read_f32(file_.require("nll"));
  entropy_ = file_.read_f32(file_.require("entropy"));
  info_.has_losses = true;
}

void Trace::read_labels() {
  sample_.labels.assign(static_cast<size_t>(info_.tokens), Label::kContext);
  if (const TensorInfo* labels = file_.find("labels")) {
    check_shape("labels", {info_.tokens});
    if (labels->dtype != Dtype::kU8) fail("tensor 'labels': expected dtype U8");
    const auto bytes = file_.bytes(*labels);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (std::to_integer<int>(bytes[i]) > 3) fail(fmt::format("tensor 'labels': value at {} exceeds 3", i));
      sample_.labels[i] = static_cast<Label>(bytes[i]);
    }
    info_.has_labels = true;
  }
  const auto question = std::find(sample_.labels.begin(), sample_.labels.end(), Label::kQuestion);
  sample_.context_tokens = static_cast<int32_t>(question - sample_.labels.begin());
}

void Trace::read_links() {
  const TensorInfo* tensor = file_.find("links");
  if (!tensor) return;
  if (tensor->shape.size() != 2)
    fail(fmt::format("tensor 'links' has shape {}: expected [N, 4]", shape_text(tensor->shape)));
  check_shape("links", {tensor->shape[0], 4});
  const std::vector<int32_t> rows = file_.read_i32(*tensor);
  const auto is_range = [&](int32_t begin, int32_t end) { return 0 <= begin && begin < end && end <= info_.tokens; };
  for (size_t i = 0; i < rows.size(); i += 4) {
    const int32_t* row = rows.data() + i;
    std::vector<Link>& links = sample_.links;
    if (!is_range(row[0], row[1]) || !is_range(row[2], row[3]) || (i > 0 && row[0] < links.back().query_begin)) {
      fail(fmt::format("tensor 'links', row {}: expected ranges of tokens, queries in ascending order", i / 4));
    }
    if (i == 0 || row[0] != links.back().query_begin || row[1] != links.back().query_end) {
      links.push_back({.query_begin = row[0], .query_end = row[1], .sources = {}});
    }
    links.back().sources.emplace_back(row[2], row[3]);
  }
}

void Trace::read(int layer, const std::string& what, int64_t first, int64_t count, float* out) const {
  const TensorInfo& tensor = file_.require(tensor_name(layer, what));
  const int64_t row = tensor.elements() / tensor.shape[0];
  file_.read_f32(tensor, first * row, std::span(out, static_cast<size_t>(count * row)));
}

std::vector<float> Trace::read_all(int layer, const std::string& what) const {
  return file_.read_f32(file_.require(tensor_name(layer, what)));
}

}  // namespace kv
