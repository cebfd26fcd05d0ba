// DuoAttention: heads that retrieve see everything, the others the first tokens and the newest.
// Paper: Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads" (2024),
// as 004 compares with: 128 sinks, a window of 256, the share of retrieval heads as the knob.
//   A file has a number α for each KV head, large where the head retrieves: a line a layer, numbers apart by blanks, as
//   the published full_attention_heads.tsv. The round((1 − retrieval) · heads) heads of the lowest α stream; among
//   equals those of the lower layer, then the lower head (kvpress leaves it to numpy's argsort).
// How α is found is not this file's business: the paper trains it.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "policies/parts/options.h"
#include "policies/parts/windowed_admission.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"

namespace kv {

namespace {

// [layers · kv_heads] in the order of the file, which must have that shape.
std::vector<double> parse_alphas(const std::string& text, const std::string& file, const ModelIdentity::Shape& shape) {
  const auto fail = [&](const std::string& what) { throw UserError(fmt::format("duo: {}: {}", file, what)); };
  std::vector<double> alphas;
  std::istringstream lines(text);
  int layers = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int heads = 0;
    for (std::string word; words >> word; ++heads) {
      double alpha = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), alpha);
      if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(alpha)) {
        fail(fmt::format("line {}: expected a number for each KV head", layers + 1));
      }
      alphas.push_back(alpha);
    }
    if (heads == 0) continue;
    ++layers;
    if (heads != shape.kv_heads) {
      fail(fmt::format("line {} has {} numbers, expected {}, one for each KV head", layers, heads, shape.kv_heads));
    }
  }
  if (layers != shape.layers) {
    fail(fmt::format("{} lines, expected {}, one for each layer", layers, shape.layers));
  }
  return alphas;
}

class Duo final : public WindowedAdmission {
 public:
  explicit Duo(Params& params)
      : WindowedAdmission(params, 128, 256),
        file_(params.file("alphas", "numbers of all KV heads, a line a layer; those of the largest retrieve")),
        retrieval_(fraction_option(params, "retrieval", 0.5, "share of the KV heads that see everything")) {}

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view) const override {
    if (file_.empty()) throw UserError("duo: expected the option alphas, a file");
    const std::string text = read_stored(file_);
    parse_alphas(text, file_, model.shape());
    return {{file_, sha256_hex(std::as_bytes(std::span(text)))}};
  }

  void load(std::span<const InputFile> files) override {
    text_ = read_stored(files.front().path);
    if (sha256_hex(std::as_bytes(std::span(text_))) != files.front().sha256) {
      throw UserError(fmt::format("duo: {} has changed since it was checked", file_));
    }
  }

  void begin(const BatchShape& shape) override {
    const SourceInfo& source = *shape.source;
    const std::vector<double> alphas = parse_alphas(text_, file_, {source.layers, source.kv_heads});
    const std::vector<uint8_t> retrieve = retrieving(alphas);
    retrieving_ = Tensor(*shape.backend, DType::kU8, std::ssize(retrieve));
    retrieving_.upload(retrieve.data(), retrieve.size());
  }

 protected:
  void decide(const LayerView& view, ExpiryArgs& args) override {
    args.heads_admitted = std::as_const(retrieving_).ref().as<uint8_t>() + view.layer * view.kv_heads;
  }

 private:
  // 1 for each head that sees everything.
  std::vector<uint8_t> retrieving(const std::vector<double>& alphas) const {
    std::vector<size_t> order(alphas.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return alphas[a] < alphas[b]; });
    const auto streaming = static_cast<size_t>(std::llround((1 - retrieval_) * static_cast<double>(alphas.size())));
    std::vector<uint8_t> retrieve(alphas.size(), 1);
    for (size_t i = 0; i < streaming; ++i) retrieve[order[i]] = 0;
    return retrieve;
  }

  std::string file_;
  double retrieval_;
  std::string text_;
  Tensor retrieving_;  // [layers, kv_heads]
};

const RegisterAdmission registered{{
    .name = "duo",
    .summary = "retrieval heads see everything, the others first and newest tokens (DuoAttention; 004)",
    .make = [](Params& params) { return std::make_unique<Duo>(params); },
}};

}  // namespace

}  // namespace kv
