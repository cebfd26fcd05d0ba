// DuoAttention: heads that retrieve see everything, the others the first tokens and the newest.
// Paper: Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads" (2024),
// as 004 compares with: 128 sinks, a window of 256, the share of retrieval heads as the knob.
//   A file has a number α for each KV head, large where the head retrieves: a line a layer, numbers apart by blanks, as
//   the published full_attention_heads.tsv. The round((1 − retrieval) · heads) heads of the lowest α stream; among
//   equals those of the lower layer, then the lower head (kvpress leaves it to numpy's argsort).
// α is trained (policies/parts/duo_training.h), or comes from somebody else's file, or by hand: a budget profile of
// LU-KV's kind (sim/budget/profile.h), which says what share of each head a scorer can do without, serves in its place:
// α = 1 − Φ(removed), what the head keeps when that share of the whole cache leaves. Ours; neither paper has it.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "policies/parts/duo_training.h"
#include "policies/parts/options.h"
#include "policies/parts/windowed_admission.h"
#include "sim/budget/profile_file.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"
#include "sim/learned/learned_file.h"

namespace kv {

namespace {

constexpr const char* kName = "duo";

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

// Of a profile of this model; one without files (a trace, random weights) has nothing but its shape to compare.
std::vector<double> profiled_alphas(const std::string& text, const std::string& file, double removed,
                                    const ModelIdentity::Shape& shape, const std::string& fingerprint) {
  const BudgetProfile profile = parse_profile(text, file);
  if (profile.layers != shape.layers || profile.kv_heads != shape.kv_heads) {
    throw UserError(fmt::format("duo: {} is for {} layers of {} KV heads, expected {} of {}", file, profile.layers,
                                profile.kv_heads, shape.layers, shape.kv_heads));
  }
  if (!fingerprint.empty() && profile.fingerprint != fingerprint) {
    throw UserError(fmt::format("duo: {} is for model {} with files of SHA-256 {:.12}…, expected {:.12}…", file,
                                profile.model, profile.fingerprint, fingerprint));
  }
  std::vector<double> alphas;
  for (const float leaves : profile.at(removed)) alphas.push_back(1.0 - leaves);
  return alphas;
}

class Duo final : public WindowedAdmission {
 public:
  explicit Duo(Params& params)
      : WindowedAdmission(params, 128, 256),
        file_(params.file("alphas", "numbers of all KV heads, a line a layer; those of the largest retrieve")),
        profile_(params.file("profile", "in its place a budget profile: heads that keep the largest share retrieve")),
        removed_(fraction_option(params, "removed", 0.8, "share of the whole cache that leaves, for the profile")),
        retrieval_(fraction_option(params, "retrieval", 0.5, "share of the KV heads that see everything")),
        weights_(params.text("weights",
                             "in place of either what was learned: a file learned/<weights>.safetensors in the model's "
                             "folder (without all three: duo), or the path of one")),
        training_({.sinks = sinks(), .window = window()}, weights_.empty() ? kName : weights_) {
    if (int{!file_.empty()} + int{!profile_.empty()} + int{!weights_.empty()} > 1) {
      throw UserError("duo: expected one of the options alphas, profile and weights");
    }
  }

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view) const override {
    if (is_learned()) {
      return check_learned(learned_path(model.folder(), training_.file_name()), kName, model,
                           {.settings = training_.settings(),
                            .parts = [&](const LearnedFile&, const SourceInfo& info) { return training_.parts(info); },
                            .remedy = "`kvlab train SPEC` makes one, the options alphas and profile do without"});
    }
    if (model.is_absent()) return {};
    const std::string& file = file_.empty() ? profile_ : file_;
    const std::string text = read_stored(file);
    alphas_of(text, model.shape(), model.folder().empty() ? "" : model.fingerprint());
    return {{file, sha256_hex(text)}};
  }

  void load(std::span<const InputFile> files) override {
    if (is_learned()) {
      if (!files.empty()) learned_ = load_learned(files.front(), kName);
      return;
    }
    text_ = read_stored(files.front().path);
    if (sha256_hex(text_) != files.front().sha256) {
      throw UserError(fmt::format("duo: {} has changed since it was checked", files.front().path.string()));
    }
  }

  void begin(const BatchShape& shape) override {
    const SourceInfo& source = *shape.source;
    const std::vector<uint8_t> retrieve =
        retrieving(is_learned() ? learned_alphas(source) : alphas_of(text_, {source.layers, source.kv_heads}, ""));
    retrieving_ = Tensor(*shape.backend, DType::kU8, std::ssize(retrieve));
    retrieving_.upload(retrieve.data(), retrieve.size());
  }

  // Which heads retrieve is learned or read; how many is said.
  SeenEntries least_seen(int64_t tokens, int64_t heads) const override {
    const int64_t streaming = streaming_of(heads);
    return {.total = streaming * by_position(tokens) + (heads - streaming) * tokens,
            .longest = streaming < heads ? tokens : by_position(tokens)};
  }
  SeenEntries most_seen(int64_t tokens, int64_t heads) const override { return least_seen(tokens, heads); }

  Learner* learner() override { return is_learned() ? &training_ : nullptr; }

 protected:
  void decide(const LayerView& view, ExpiryArgs& args) override {
    args.heads_admitted = std::as_const(retrieving_).ref().as<uint8_t>() + view.layer * view.kv_heads;
  }

 private:
  bool is_learned() const { return file_.empty() && profile_.empty(); }

  std::vector<double> learned_alphas(const SourceInfo& source) const {
    const std::vector<float> alphas = DuoTraining::alphas(
        training_.used().empty() ? parameters_as(learned_, training_.parts(source), kName) : training_.used());
    return {alphas.begin(), alphas.end()};
  }

  std::vector<double> alphas_of(const std::string& text, const ModelIdentity::Shape& shape,
                                const std::string& fingerprint) const {
    return profile_.empty() ? parse_alphas(text, file_, shape)
                            : profiled_alphas(text, profile_, removed_, shape, fingerprint);
  }

  int64_t streaming_of(int64_t heads) const { return std::llround((1 - retrieval_) * static_cast<double>(heads)); }

  // 1 for each head that sees everything.
  std::vector<uint8_t> retrieving(const std::vector<double>& alphas) const {
    std::vector<size_t> order(alphas.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return alphas[a] < alphas[b]; });
    const auto streaming = static_cast<size_t>(streaming_of(std::ssize(alphas)));
    std::vector<uint8_t> retrieve(alphas.size(), 1);
    for (size_t i = 0; i < streaming; ++i) retrieve[order[i]] = 0;
    return retrieve;
  }

  std::string file_, profile_;
  double removed_, retrieval_;
  std::string weights_;
  DuoTraining training_;
  LearnedFile learned_;
  std::string text_;
  Tensor retrieving_;  // [layers, kv_heads]
};

const RegisterAdmission registered{{
    .name = kName,
    .summary = "retrieval heads see everything, the others first and newest tokens (DuoAttention; 004)",
    .make = [](Params& params) { return std::make_unique<Duo>(params); },
}};

}  // namespace

}  // namespace kv
