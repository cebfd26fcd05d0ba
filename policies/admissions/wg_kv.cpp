// WG-KV: a small network looks at a new token's key and says whether the entry is worth keeping beyond a window.
// Paper: 004, "Write-Gated KV" (Sec. 3.2, App. C and I): gates kernels/write_gate.h, an entry stays where g > τ, τ =
// 0.1, a window of 256, no sinks; all heads of a group read what their KV head keeps. For what gates cost, `drop` lets
// the network run and has a seeded draw decide in its place, as the released profiling does, which turns the same share
// away in every head. Deviations: the paper's ring of the newest and its pages of the promoted are one cache here, in
// order of position (sim/cache), so that prefill is exact at every block: the released kernel shows a query up to 63
// entries more than the window.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "policies/parts/options.h"
#include "policies/parts/windowed_admission.h"
#include "policies/parts/write_gate_network.h"
#include "policies/parts/write_gate_training.h"
#include "sim/learned/learned_file.h"

namespace kv {

namespace {

constexpr const char* kName = "wg-kv";
constexpr double kFirstExpand = 1.5, kMostExpand = 16;
constexpr double kDeviations = 6;  // from its mean, within which a draw is counted on: one head in 10^9 lies beyond

class WgKv final : public WindowedAdmission {
 public:
  explicit WgKv(Params& params)
      : WindowedAdmission(params, 0, 256),
        threshold_(read_threshold(params)),
        drop_(read_drop(params)),
        asked_expand_(read_expand(params)),
        expand_(asked_expand_ > 0 ? asked_expand_ : kFirstExpand),
        weights_(read_weights(params, drop_ > 0)),
        network_(expand_),
        training_(expand_, {.window = window(), .threshold = threshold_}, settings(), weights_) {}

  Needs needs() const override { return {.pre_rope_keys = true}; }

  std::vector<InputFile> check(const ModelIdentity& model, std::string_view) const override {
    if (weights_ == kInitialWeights) {
      if (!model.is_absent()) network_.require_fit(model.shape().head_dim);
      return {};
    }
    std::map<std::string, std::string> expected = settings();
    if (asked_expand_ == 0) expected.erase("expand");
    return check_learned(learned_path(model.folder(), weights_), kName, model,
                         {.settings = expected,
                          .parts =
                              [](const LearnedFile& learned, const SourceInfo& info) {
                                const WriteGateNetwork network(expand_of(learned));
                                network.require_fit(info.head_dim);
                                return network.parts(info);
                              },
                          .remedy = "`kvlab train SPEC` makes one, weights: initial or drop do without"});
  }

  void load(std::span<const InputFile> files) override {
    if (files.empty()) return;
    learned_ = load_learned(files.front(), kName);
    expand_ = expand_of(learned_);
    network_ = WriteGateNetwork(expand_);
  }

  void begin(const BatchShape& shape) override {
    const SourceInfo& info = *shape.source;
    network_.use(*shape.backend, info, parameters(info, shape.seed));
    seed_ = shape.seed;
    std::vector<int32_t> first_heads;
    for (const int number : info.layer_numbers) first_heads.push_back(number << 16);
    first_heads_ = Tensor(*shape.backend, DType::kI32, std::ssize(first_heads));
    first_heads_.upload(first_heads.data(), first_heads_.bytes());
    numbers_ = Tensor(*shape.backend, DType::kI32, std::ssize(shape.sample_numbers));
    numbers_.upload(shape.sample_numbers.data(), shape.sample_numbers.size_bytes());
  }

  SeenEntries least_seen(int64_t tokens, int64_t heads) const override { return drawn(tokens, heads, -kDeviations); }
  SeenEntries most_seen(int64_t tokens, int64_t heads) const override {
    return drop_ > 0 ? drawn(tokens, heads, kDeviations) : SeenEntries::alike(tokens, heads);
  }

  Learner* learner() override { return &training_; }

  size_t learned_bytes(const SourceInfo& info, DType activations) const override {
    return network_.bytes(info, activations);
  }

 protected:
  void decide(const LayerView& view, ExpiryArgs& args) override {
    args.gates = network_.gates(view);
    args.threshold = threshold_;
    args.drop = drop_;
    args.seed = seed_;
    args.numbers = std::as_const(numbers_).ref().as<int32_t>();
    args.first_heads = std::as_const(first_heads_).ref().as<int32_t>() + view.layer;
  }

 private:
  static float read_threshold(Params& params) {
    const double threshold = params.get("tau", 0.1, "an entry stays where its gate lies above (without drop)");
    if (!(threshold > 0 && threshold < 1)) params.fail("tau", "expected a number above 0 and below 1");
    return static_cast<float>(threshold);
  }
  static float read_drop(Params& params) {
    const double drop = params.get("drop", 0.0, "gates are computed for their cost, and a draw turns this share away");
    if (!(drop >= 0 && drop < 1)) params.fail("drop", "expected a number of at least 0 and below 1");
    return static_cast<float>(drop);
  }
  static double read_expand(Params& params) {
    const double expand = params.get("expand", 0.0,
                                     "hidden units over the head dimension, 0: what the weights have, 1.5 where a "
                                     "training begins (004: 1.5 for Qwen3-4B, 4 for Llama-3.1-8B)");
    if (!(expand >= 0 && expand <= kMostExpand)) params.fail("expand", "expected a number from 0 to 16");
    return expand;
  }
  static std::string read_weights(Params& params, bool is_drawn) {
    std::string name = params.text(
        "weights",
        "what was learned: a file learned/<weights>.safetensors in the model's folder (without: wg-kv; with drop: "
        "initial), or the path of one; initial: those that a training begins with, which know nothing but take as "
        "long");
    if (!name.empty()) return name;
    return is_drawn ? std::string(kInitialWeights) : kName;
  }

  // What a draw lets in of each head, so many standard deviations above its mean; gates may let in nothing.
  SeenEntries drawn(int64_t tokens, int64_t heads, double deviations) const {
    const int64_t sure = by_position(tokens);
    if (drop_ == 0) return SeenEntries::alike(sure, heads);
    const auto others = static_cast<double>(tokens - sure);
    const double stays = 1 - double{drop_}, mean = others * stays;
    const double let_in = std::clamp(mean + deviations * std::sqrt(mean * (1 - stays)), 0.0, others);
    return SeenEntries::alike(sure + std::llround(let_in), heads);
  }

  std::vector<float> parameters(const SourceInfo& info, uint64_t seed) const {
    if (!training_.used().empty()) return training_.used();
    if (!learned_.parts.empty()) return parameters_as(learned_, network_.parts(info), kName);
    KV_CHECK(weights_ == kInitialWeights);
    return network_.initial(info, seed);
  }

  static double expand_of(const LearnedFile& learned) {
    return learned_setting(learned, "expand", 1 / 128.0, kMostExpand, kName);
  }

  // Of a file: gates that were trained for one window decide for it alone.
  std::map<std::string, std::string> settings() const {
    return {{"expand", fmt::format("{}", expand_)}, {"window", std::to_string(window())}};
  }

  float threshold_, drop_;
  double asked_expand_, expand_;
  std::string weights_;
  WriteGateNetwork network_;
  WriteGateTraining training_;
  LearnedFile learned_;
  uint64_t seed_ = 0;
  Tensor first_heads_;  // [layers], numbers of their first KV heads
  Tensor numbers_;      // [sequences], of their samples
};

const RegisterAdmission registered{{
    .name = kName,
    .summary = "a learned gate looks at each new token's key (WG-KV, 004)",
    .make = [](Params& params) { return std::make_unique<WgKv>(params); },
}};

}  // namespace

}  // namespace kv
