#include "policies/parts/retention_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"
#include "kernels/random_normal.h"
#include "sim/model/activations.h"

namespace kv {

namespace {

constexpr float kDeviation = 0.02F;
constexpr int kMostHidden = 4096;
// Of parts(), which has them all or lacks the second layer's.
constexpr std::string_view kInputWeight = "input.weight", kInputBias = "input.bias", kHiddenWeight = "hidden.weight",
                           kHiddenBias = "hidden.bias", kOutputWeight = "output.weight", kOutputBias = "output.bias";

void upload(Backend& backend, Tensor& tensor, const std::vector<float>& values) {
  if (values.empty()) return;
  tensor.reserve(backend, DType::kF32, std::ssize(values));
  tensor.upload(values.data(), values.size() * sizeof(float));
}

// Those of all owners: from where they lie, or, where they are few, some owners' together, which takes fewer copies.
void upload_weights(Backend& backend, Tensor& tensor, const NamedParts& named, std::string_view part,
                    std::span<const float> parameters) {
  constexpr size_t kTogether = 1 << 20;
  const int64_t owners = named.owners(part);
  std::vector<float> together;
  for (int64_t owner = 0; owner < owners; ++owner) {
    const std::span<const float> weights = named.of_owner(part, owner, parameters);
    tensor.reserve(backend, backend.activation_type(), owners * std::ssize(weights));
    const int64_t end = (owner + 1) * std::ssize(weights);
    if (weights.size() >= kTogether) {
      upload_activations(backend, tensor.at(end - std::ssize(weights)), weights);
      continue;
    }
    together.insert(together.end(), weights.begin(), weights.end());
    if (owner + 1 < owners && together.size() + weights.size() <= kTogether) continue;
    upload_activations(backend, tensor.at(end - std::ssize(together)), together);
    together.clear();
  }
}

std::vector<float> repeated(const std::vector<float>& values, int times) {
  std::vector<float> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), values.begin(), values.end());
  return all;
}

int64_t tokens_of(const LayerView& view) {
  int64_t tokens = 0;
  for (const Segment& segment : view.segments) tokens = std::max<int64_t>(tokens, segment.first_token + segment.count);
  return tokens;
}

std::string_view name_of(RetentionShape::Tying tying) {
  switch (tying) {
    case RetentionShape::Tying::kShared:
      return "shared";
    case RetentionShape::Tying::kLayer:
      return "layer";
    case RetentionShape::Tying::kNone:
      return "none";
  }
  return {};
}

}  // namespace

RetentionShape RetentionShape::read(Params& params) {
  RetentionShape shape;
  const int hidden = params.get(
      "hidden", 0,
      "units of each hidden layer of a gate, 0: as many as the weights have, 64 where a training begins (003: 512)");
  if (hidden < 0 || hidden > kMostHidden) params.fail("hidden", "expected a number from 0 to 4096");
  if (hidden > 0) shape.hidden = hidden;
  shape.has_any_hidden = hidden == 0;
  shape.has_second_layer = params.get("gate", "rg10", {"rg", "rg10"},
                                      "hidden layers of a gate: one (rg, TRIM-KV) or two (rg10, 003)") == "rg10";
  const std::string tying =
      params.get("tying", "layer", {"shared", "layer", "none"},
                 "what gates have in common: layer: the output, a row a KV head, is one for all layers (003's code); "
                 "shared: one row for all heads of all layers, each with a second hidden layer of its own (the paper); "
                 "none: nothing beyond a layer");
  for (const Tying one : {Tying::kShared, Tying::kLayer, Tying::kNone}) {
    if (tying == name_of(one)) shape.tying = one;
  }
  if (shape.tying == Tying::kShared && !shape.has_second_layer) {
    params.fail("tying", "expected layer or none with gate: rg, whose heads read the same hidden layer");
  }
  shape.output_bias = params.get(
      "bias", 10.0, "of the output where a training begins: β = σ(bias) (003's code: 10; its checkpoints: 18)");
  if (!(shape.output_bias >= -50 && shape.output_bias <= 50)) params.fail("bias", "expected a number from -50 to 50");
  return shape;
}

std::map<std::string, std::string> RetentionShape::settings() const {
  return {{"hidden", std::to_string(hidden)},
          {"gate", has_second_layer ? "rg10" : "rg"},
          {"tying", std::string(name_of(tying))}};
}

std::map<std::string, std::string> RetentionShape::expected_settings() const {
  std::map<std::string, std::string> expected = settings();
  if (has_any_hidden) expected.erase("hidden");
  return expected;
}

void RetentionShape::take_width(const LearnedFile& learned, std::string_view owner) {
  const double units = learned_setting(learned, "hidden", 1, kMostHidden, owner);
  if (units != std::floor(units)) {
    throw UserError(fmt::format("{}: what was learned for {} says hidden: {}, expected a whole number; {}", owner,
                                learned.model, units, kTrainMakesOne));
  }
  hidden = static_cast<int>(units);
}

std::vector<LearnedPart> RetentionNetwork::parts(const SourceInfo& info) const {
  using enum LearnedScope;
  const int64_t units = shape_.hidden;
  std::vector<LearnedPart> all = {{std::string(kInputWeight), {units, info.width}, kLayer},
                                  {std::string(kInputBias), {units}, kLayer}};
  if (shape_.has_second_layer) {
    const LearnedScope scope = shape_.tying == RetentionShape::Tying::kShared ? kHead : kLayer;
    all.push_back({std::string(kHiddenWeight), {units, units}, scope});
    all.push_back({std::string(kHiddenBias), {units}, scope});
  }
  switch (shape_.tying) {
    case RetentionShape::Tying::kShared:
      all.push_back({std::string(kOutputWeight), {units}, kModel});
      all.push_back({std::string(kOutputBias), {}, kModel});
      break;
    case RetentionShape::Tying::kLayer:
      all.push_back({std::string(kOutputWeight), {info.kv_heads, units}, kModel});
      all.push_back({std::string(kOutputBias), {info.kv_heads}, kModel});
      break;
    case RetentionShape::Tying::kNone:
      all.push_back({std::string(kOutputWeight), {units}, kHead});
      all.push_back({std::string(kOutputBias), {}, kHead});
      break;
  }
  return all;
}

size_t RetentionNetwork::bytes(const SourceInfo& info, DType activations) const {
  const auto units = static_cast<size_t>(shape_.hidden), layers = static_cast<size_t>(info.layers);
  const size_t second = shape_.has_second_layer ? static_cast<size_t>(shape_.embeddings(info)) : 0;
  const size_t outputs = shape_.tying == RetentionShape::Tying::kNone ? layers : 1;
  const size_t weights = layers * units * (static_cast<size_t>(info.width) + second * units);
  return weights * bytes_of(activations) +
         (layers * units * (1 + second) + outputs * static_cast<size_t>(info.kv_heads) * (units + 1)) * sizeof(float);
}

std::vector<float> RetentionNetwork::initial(const SourceInfo& info, uint64_t seed) const {
  const std::vector<LearnedPart> all = parts(info);
  const LearnedLayout layout(all, info.layers, info.kv_heads);
  std::vector<float> parameters(static_cast<size_t>(layout.elements()));
  cpu::random_normal(
      {.output = {parameters.data(), DType::kF32}, .count = std::ssize(parameters), .seed = seed, .sigma = kDeviation});
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].name.ends_with(".bias")) continue;
    const float bias = all[i].name == kOutputBias ? static_cast<float>(shape_.output_bias) : 0.0F;
    for (int64_t owner = 0; owner < layout.owners(i); ++owner) {
      std::fill_n(parameters.begin() + layout.first(i, owner), all[i].elements(), bias);
    }
  }
  return parameters;
}

void RetentionNetwork::use(Backend& backend, const SourceInfo& info, std::span<const float> parameters) {
  const NamedParts named(parts(info), info.layers, info.kv_heads);
  const auto of = [&](std::string_view part) { return named.read(part, parameters); };
  const int copies = shape_.tying == RetentionShape::Tying::kShared ? info.kv_heads : 1;
  kv_heads_ = info.kv_heads;
  embeddings_ = shape_.embeddings(info);
  width_ = info.width;
  upload_weights(backend, input_weights_, named, kInputWeight, parameters);
  upload(backend, input_bias_, of(kInputBias));
  upload_weights(backend, hidden_weights_, named, kHiddenWeight, parameters);
  upload(backend, hidden_bias_, of(kHiddenBias));
  upload(backend, output_weights_, repeated(of(kOutputWeight), copies));
  upload(backend, output_bias_, repeated(of(kOutputBias), copies));
}

RetentionGateArgs RetentionNetwork::args(int layer, const Projections& projections, int64_t tokens) const {
  const int64_t units = shape_.hidden, second = int64_t{embeddings_} * units;
  const int64_t first_output = shape_.tying == RetentionShape::Tying::kNone ? int64_t{layer} * kv_heads_ : 0;
  RetentionGateArgs args{.inputs = projections.inputs,
                         .tokens = tokens,
                         .width = width_,
                         .kv_heads = kv_heads_,
                         .hidden = shape_.hidden,
                         .input_weights = input_weights_.at(layer * units * width_),
                         .input_bias = input_bias_.ref().as<float>() + layer * units,
                         .embeddings = embeddings_,
                         .output_weights = output_weights_.ref().as<float>() + first_output * units,
                         .output_bias = output_bias_.ref().as<float>() + first_output};
  if (shape_.has_second_layer) {
    args.hidden_weights = hidden_weights_.at(layer * second * units);
    args.hidden_bias = hidden_bias_.ref().as<float>() + layer * second;
  }
  return args;
}

const float* RetentionNetwork::log_retention(const LayerView& view) {
  const int64_t tokens = tokens_of(view);
  log_retention_.reserve(view.backend, DType::kF32, tokens * view.kv_heads);
  RetentionGateArgs of = args(view.layer, view.projections, tokens);
  of.log_retention = log_retention_.ref().as<float>();
  view.backend.retention_gate(of);
  return of.log_retention;
}

RetentionGradients::RetentionGradients(Backend& backend, const SourceInfo& info, const RetentionNetwork& network)
    : shape_(network.shape()),
      named_(network.parts(info), info.layers, info.kv_heads),
      kv_heads_(info.kv_heads),
      width_(info.width),
      second_(shape_.has_second_layer ? int64_t{shape_.embeddings(info)} * shape_.hidden : 0) {
  const int64_t layers = info.layers, units = shape_.hidden, outputs = is_own_output() ? layers * kv_heads_ : kv_heads_;
  const std::array<int64_t, kParts> elements = {layers * units * width_, layers * units,  layers * second_ * units,
                                                layers * second_,        outputs * units, outputs};
  std::partial_sum(elements.begin(), elements.end(), first_.begin() + 1);
  slopes_ = Tensor(backend, DType::kF32, first_.back());
  slopes_.fill_zero();
}

void RetentionGradients::add_into(int layer, RetentionGateBackwardArgs& args) {
  const int64_t units = shape_.hidden, first_output = is_own_output() ? layer * kv_heads_ : 0;
  const auto of = [&](Part part, int64_t first) { return slopes_.ref().as<float>() + first_[part] + first; };
  args.input_weight_gradient = of(kInputWeights, layer * units * width_);
  args.input_bias_gradient = of(kInputBiases, layer * units);
  if (second_ > 0) {
    args.hidden_weight_gradient = of(kHiddenWeights, layer * second_ * units);
    args.hidden_bias_gradient = of(kHiddenBiases, layer * second_);
  }
  args.output_weight_gradient = of(kOutputWeights, first_output * units);
  args.output_bias_gradient = of(kOutputBiases, first_output);
}

void RetentionGradients::add_to(std::span<const float> slopes, std::span<double> gradient) const {
  constexpr std::array<std::string_view, kParts> kNames = {kInputWeight, kInputBias,    kHiddenWeight,
                                                           kHiddenBias,  kOutputWeight, kOutputBias};
  KV_CHECK(std::ssize(slopes) == slopes_.elements());
  for (size_t part = 0; part < kParts; ++part) {
    const bool is_one_of_all = shape_.tying == RetentionShape::Tying::kShared && part >= kOutputWeights;
    const int64_t copies = is_one_of_all ? kv_heads_ : 1, elements = (first_[part + 1] - first_[part]) / copies;
    for (int64_t copy = 0; copy < copies; ++copy) {
      const float* of_copy = slopes.data() + first_[part] + copy * elements;
      named_.add(kNames[part], {of_copy, static_cast<size_t>(elements)}, gradient);
    }
  }
}

}  // namespace kv
