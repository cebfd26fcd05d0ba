// One step of training what sits inside a model's attention, against torch's autograd (tests/data/gates).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "sim/io/safetensors.h"
#include "sim/learned/learner.h"
#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "sim/source/model_source.h"
#include "tests/support/backends.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Runs, GateTraining);

// The tiny Llama, two texts, and what torch has of them; tensors of a layer's KV heads are stored one behind the other.
class Lesson {
 public:
  Lesson(Backend& backend, std::string method)
      : backend_(backend),
        file_(ref::open_packed("tests/data/gates/expected.safetensors")),
        weights_(load_model(ref::source_path("tests/data/llama"))),
        source_(backend, weights_),
        method_(std::move(method)) {
    const std::vector<int32_t> counts = file_.read_i32(file_.require("texts"));
    ids_ = file_.read_i32(file_.require("ids"));
    sequences_ = {std::span(ids_).first(static_cast<size_t>(counts[0])),
                  std::span(ids_).subspan(static_cast<size_t>(counts[0]))};
  }

  const SourceInfo& info() const { return source_.info(); }
  std::vector<float> stored(const std::string& name) const {
    return file_.read_f32(file_.require(method_ + "." + name));
  }
  double number(const std::string& name) const { return stored(name).at(0); }

  // One step of the learner, at a weight of the other loss.
  struct Step {
    std::map<std::string, double> measured;
    std::vector<double> gradient;
  };
  Step learn(Learner& learner, const std::vector<float>& parameters, const std::vector<GivenParam>& options) {
    Params params("learn", options);
    learner.read(params);
    params.finish();
    Step step{.measured = {}, .gradient = std::vector<double>(parameters.size(), 0.0)};
    const std::vector<Measured> measured =
        learner.learn({.backend = backend_, .source = source_, .sequences = sequences_, .sample_numbers = numbers_},
                      parameters, step.gradient);
    for (const Measured& one : measured) step.measured[one.metric] = one.value;
    return step;
  }

 private:
  Backend& backend_;
  SafetensorsFile file_;
  ModelFiles weights_;
  ModelSource source_;
  std::string method_;
  std::vector<int32_t> ids_;
  std::vector<std::span<const int32_t>> sequences_;
  std::vector<int32_t> numbers_ = {0, 1};
};

// Where a backend's activations are f32, f32 torch itself is off by 3e-6 of a tensor's largest slope; sixteen bits, of
// activations and of their gradients, by what a few layers' roundings add up to.
double allowed(const Backend& backend) { return backend.activation_type() == DType::kF32 ? 1e-4 : 0.1; }

void expect_slopes(const std::vector<double>& got, const std::vector<float>& want, double allowed,
                   const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double largest = 0;
  for (const float value : want) largest = std::max(largest, std::abs(double{value}));
  ASSERT_GT(largest, 0) << name;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], allowed * largest) << name << "[" << i << "]";
}

constexpr int kLayers = 3, kHeads = 2, kDim = 16, kUnits = 24;  // of the tiny model, and 1.5 · 16

Policy wg_kv_policy() {
  return make_policy("full", {}, {.admission = {"wg-kv", {{"window", "4", ""}, {"expand", "1.5", ""}}}});
}

// Torch's norms are a layer's; here each head has a copy.
std::vector<float> wg_kv_parameters(const Lesson& lesson) {
  const std::vector<float> first = lesson.stored("pre_rope_norm.weight"), second = lesson.stored("norm.weight"),
                           hidden = lesson.stored("hidden.weight"), bias = lesson.stored("hidden.bias"),
                           output = lesson.stored("output.weight"), output_bias = lesson.stored("output.bias");
  std::vector<float> parameters;
  const auto take = [&](const std::vector<float>& from, int64_t at, int64_t count) {
    parameters.insert(parameters.end(), from.begin() + at * count, from.begin() + (at + 1) * count);
  };
  for (int head = 0; head < kLayers * kHeads; ++head) {
    take(first, head / kHeads, kDim);
    take(second, head / kHeads, kDim);
    take(hidden, head, kUnits * 2 * kDim);
    take(bias, head, kUnits);
    take(output, head, kUnits);
    take(output_bias, head, 1);
  }
  return parameters;
}

// The part of every head's gradient, one behind the other.
std::vector<double> part_of(const std::vector<double>& gradient, int64_t first, int64_t count) {
  const int64_t of_head = std::ssize(gradient) / (kLayers * kHeads);
  std::vector<double> part;
  for (int64_t head = 0; head < kLayers * kHeads; ++head) {
    const auto begin = gradient.begin() + head * of_head + first;
    part.insert(part.end(), begin, begin + count);
  }
  return part;
}

std::vector<double> summed_over_heads(const std::vector<double>& of_heads, int64_t width) {
  std::vector<double> sums(static_cast<size_t>(kLayers * width));
  for (size_t i = 0; i < of_heads.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    sums[static_cast<size_t>(at / (kHeads * width) * width + at % width)] += of_heads[i];
  }
  return sums;
}

TEST_P(GateTraining, WgKvTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "wg_kv");
  Policy policy = wg_kv_policy();
  const Lesson::Step step =
      lesson.learn(*policy.admission->learner(), wg_kv_parameters(lesson), {{"lambda", "0.04", ""}});
  const double near = allowed(*backend);
  EXPECT_NEAR(step.measured.at("hidden_distance"), lesson.number("distillation"), near);
  EXPECT_NEAR(step.measured.at("gate_sparsity"), lesson.number("sparsity"), near);
  const int64_t weights = kUnits * 2 * kDim;
  const auto slope = [&](const std::string& name) { return lesson.stored("gradient." + name); };
  expect_slopes(summed_over_heads(part_of(step.gradient, 0, kDim), kDim), slope("pre_rope_norm.weight"), near, "norm");
  expect_slopes(summed_over_heads(part_of(step.gradient, kDim, kDim), kDim), slope("norm.weight"), near, "norm");
  int64_t at = 2 * kDim;
  for (const auto& [name, count] : std::vector<std::pair<std::string, int64_t>>{
           {"hidden.weight", weights}, {"hidden.bias", kUnits}, {"output.weight", kUnits}, {"output.bias", 1}}) {
    expect_slopes(part_of(step.gradient, at, count), slope(name), near, name);
    at += count;
  }
}

// Where texts go through the model one by one, the step is theirs together.
TEST_P(GateTraining, TextsMayComeOneByOne) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "wg_kv");
  Policy policy = wg_kv_policy();
  Learner& learner = *policy.admission->learner();
  const std::vector<float> parameters = wg_kv_parameters(lesson);
  const Lesson::Step together = lesson.learn(learner, parameters, {}),
                     apart = lesson.learn(learner, parameters, {{"tokens_at_once", "50", ""}});
  for (const auto& [metric, value] : together.measured) EXPECT_NEAR(apart.measured.at(metric), value, 1e-6) << metric;
  const double near = allowed(*backend) / 100;
  expect_slopes(apart.gradient, {together.gradient.begin(), together.gradient.end()}, near, "gradient");
}

// Sums over tokens are taken in the same order by any number of threads.
TEST(GateTrainingOnTheCpu, ThreadsChangeNoBit) {
  const auto backend = make_backend("cpu");
  Lesson lesson(*backend, "wg_kv");
  Policy policy = wg_kv_policy();
  const std::vector<float> parameters = wg_kv_parameters(lesson);
  const auto with_threads = [&](int threads) {
    const ref::Threads limit(threads);
    return lesson.learn(*policy.admission->learner(), parameters, {}).gradient;
  };
  EXPECT_EQ(with_threads(1), with_threads(2));
}

// Training's parameters are those whose logistic function α is.
TEST_P(GateTraining, DuoTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "duo");
  Policy policy = make_policy("full", {}, {.admission = {"duo", {{"sinks", "2", ""}, {"window", "4", ""}}}});
  const std::vector<float> alphas = lesson.stored("alphas");
  std::vector<float> parameters, slopes = lesson.stored("gradient.alphas");
  for (size_t i = 0; i < alphas.size(); ++i) {
    parameters.push_back(std::log(alphas[i] / (1 - alphas[i])));
    slopes[i] *= alphas[i] * (1 - alphas[i]);
  }
  const Lesson::Step step = lesson.learn(*policy.admission->learner(), parameters, {{"lambda", "0.05", ""}});
  EXPECT_NEAR(step.measured.at("hidden_distance"), lesson.number("distillation"), allowed(*backend));
  expect_slopes(step.gradient, slopes, allowed(*backend), "alpha");
}

}  // namespace
}  // namespace kv
