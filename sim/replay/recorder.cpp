#include "sim/replay/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/error.h"
#include "kernels/half.h"
#include "sim/io/hash.h"
#include "sim/model/activations.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

constexpr int kBlock = 1024;
const std::string kChecksumPlaceholder(64, '0');  // as long as the real one, which is known only at the end

std::string join(const auto& values) { return fmt::format("{}", fmt::join(values, ",")); }

// Writes to the file and hashes the same bytes.
class HashingWriter {
 public:
  HashingWriter(const std::filesystem::path& path, const std::vector<TensorDecl>& tensors, Metadata metadata)
      : writer_(path, tensors, std::move(metadata)) {
    for (const TensorDecl& tensor : tensors) hashes_[tensor.name];
  }

  void write(const std::string& tensor, std::span<const std::byte> bytes) {
    hashes_.at(tensor).update(bytes);
    writer_.write(tensor, bytes);
  }
  void finish() {
    Sha256 all;
    for (const auto& [name, hash] : hashes_) all.update(hash.hex());
    writer_.set_metadata("checksum", all.hex());
    writer_.finish();
  }

 private:
  SafetensorsWriter writer_;
  std::map<std::string, Sha256> hashes_;
};

class Recorder final : public Observer {
 public:
  Recorder(HashingWriter& writer, const SourceInfo& info, const RecordOptions& options)
      : writer_(writer), info_(info), options_(options) {}

  void attended(const LayerView& view, ConstRef) override {
    const int number = info_.layer_numbers[static_cast<size_t>(view.layer)];
    if (std::find(options_.layers.begin(), options_.layers.end(), number) == options_.layers.end()) return;
    const int64_t tokens = view.segments[0].count;
    const int64_t query = tokens * info_.q_heads * info_.head_dim;
    const int64_t key = tokens * info_.kv_heads * info_.head_dim;
    const auto save = [&](const char* what, ConstRef from, int64_t elements) {
      write(view.backend, fmt::format("layers.{}.{}", number, what), from, elements);
    };
    save("queries", view.projections.queries, query);
    save("keys", view.projections.keys, key);
    save("values", view.projections.values, key);
    save("pre_rope_queries", view.projections.pre_rope_queries, query);
    save("pre_rope_keys", view.projections.pre_rope_keys, key);
    save("inputs", view.projections.inputs, tokens * info_.width);
  }

  void block_done(const Block& block, const TokenLosses& losses) override {
    const Segment& segment = block.segments[0];
    nll_.insert(nll_.end(), losses.nll.begin(), losses.nll.begin() + segment.count);
    entropy_.insert(entropy_.end(), losses.entropy.begin(), losses.entropy.begin() + segment.count);
  }

  void write_losses() {
    nll_.pop_back();  // the last token predicts nothing that is known
    writer_.write("nll", std::as_bytes(std::span(nll_)));
    writer_.write("entropy", std::as_bytes(std::span(entropy_)));
  }

  void write(Backend& backend, const std::string& name, ConstRef from, int64_t elements) {
    const std::vector<float> values = download_activations(backend, from, elements);
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      throw UserError(fmt::format("record: {} would hold a number that is not finite: the model's overflow", name));
    }
    if (options_.dtype == Dtype::kF32) {
      writer_.write(name, std::as_bytes(std::span(values)));
      return;
    }
    std::vector<uint16_t> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), f32_to_bf16);
    writer_.write(name, std::as_bytes(std::span(narrow)));
  }

 private:
  HashingWriter& writer_;
  const SourceInfo& info_;
  const RecordOptions& options_;
  std::vector<float> nll_, entropy_;
};

// Rows of the trace's `links`.
std::vector<int32_t> flat(const std::vector<Link>& links) {
  std::vector<int32_t> rows;
  for (const Link& link : links) {
    for (const auto& [begin, end] : link.sources) {
      rows.insert(rows.end(), {link.query_begin, link.query_end, begin, end});
    }
  }
  return rows;
}

std::vector<TensorDecl> declare(const SourceInfo& info, const RecordOptions& options, int64_t tokens, int64_t links) {
  std::vector<TensorDecl> tensors = {{"input_ids", Dtype::kI32, {tokens}},
                                     {"labels", Dtype::kU8, {tokens}},
                                     {"nll", Dtype::kF32, {tokens - 1}},
                                     {"entropy", Dtype::kF32, {tokens}}};
  if (links > 0) tensors.push_back({"links", Dtype::kI32, {links, 4}});
  const int64_t width = static_cast<int64_t>(info.q_heads) * info.head_dim;
  for (const int layer : options.layers) {
    const auto add = [&](const char* what, std::vector<int64_t> shape) {
      tensors.push_back({fmt::format("layers.{}.{}", layer, what), options.dtype, std::move(shape)});
    };
    add("queries", {tokens, info.q_heads, info.head_dim});
    add("keys", {tokens, info.kv_heads, info.head_dim});
    add("values", {tokens, info.kv_heads, info.head_dim});
    add("pre_rope_queries", {tokens, info.q_heads, info.head_dim});
    add("pre_rope_keys", {tokens, info.kv_heads, info.head_dim});
    add("inputs", {tokens, info.width});
    add("output_weight", {info.width, width});
  }
  return tensors;
}

Metadata describe(const SourceInfo& info, const RecordOptions& options) {
  return {{"format", kTraceFormat},
          {"version", kTraceVersion},
          {"model", options.model},
          {"layers", join(options.layers)},
          {"q_heads", fmt::format("{}", info.q_heads)},
          {"kv_heads", fmt::format("{}", info.kv_heads)},
          {"head_dim", fmt::format("{}", info.head_dim)},
          {"width", fmt::format("{}", info.width)},
          {"rope_inv_freq", join(info.inv_freq)},
          {"rope_attention_factor", fmt::format("{}", info.attention_factor)},
          {"checksum", kChecksumPlaceholder}};
}

RecordOptions resolve(RecordOptions options, const SourceInfo& info) {
  if (options.layers.empty()) options.layers = info.layer_numbers;
  std::sort(options.layers.begin(), options.layers.end());
  options.layers.erase(std::unique(options.layers.begin(), options.layers.end()), options.layers.end());
  for (const int layer : options.layers) {
    if (layer >= 0 && layer < info.layers) continue;
    throw UserError(fmt::format("record: layer {} is outside the model's {} layers", layer, info.layers));
  }
  return options;
}

}  // namespace

void record_trace(const std::filesystem::path& path, Backend& backend, ModelSource& source, const Sample& sample,
                  const RecordOptions& given) {
  const SourceInfo& info = source.info();
  const RecordOptions options = resolve(given, info);
  const int32_t tokens = static_cast<int32_t>(sample.ids.size());
  if (tokens < 2) throw UserError(fmt::format("record: {} tokens are too few (expected at least 2)", tokens));
  const std::vector<int32_t> links = flat(sample.links);
  HashingWriter writer(path, declare(info, options, tokens, std::ssize(links) / 4), describe(info, options));
  Recorder recorder(writer, info, options);
  std::vector<uint8_t> labels(sample.ids.size(), 0);
  std::transform(sample.labels.begin(), sample.labels.end(), labels.begin(), [](Label l) { return uint8_t(l); });
  writer.write("input_ids", std::as_bytes(std::span(sample.ids)));
  writer.write("labels", std::as_bytes(std::span(labels)));
  if (!links.empty()) writer.write("links", std::as_bytes(std::span(links)));
  const int64_t weight = static_cast<int64_t>(info.width) * info.q_heads * info.head_dim;
  for (const int layer : options.layers) {
    recorder.write(backend, fmt::format("layers.{}.output_weight", layer), source.output_weight(layer), weight);
  }
  Policy full = policy_of("full", nullptr);
  Observer* const observers[] = {&recorder};
  const std::span<const int32_t> sequences[] = {sample.ids};
  const Schedule schedule = full_schedule(std::span(&tokens, 1), kBlock);
  replay({.backend = backend,
          .source = source,
          .policy = full,
          .sequences = sequences,
          .schedule = schedule,
          .observers = observers});
  recorder.write_losses();
  writer.finish();
}

}  // namespace kv
