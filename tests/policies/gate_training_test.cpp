// One step of training what sits inside a model's attention, against torch's autograd (tests/data/gates).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "sim/io/safetensors.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "sim/source/model_source.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
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

Policy wg_kv_policy() {
  return make_policy("full", {}, {.admission = {"wg-kv", {{"window", "4", ""}, {"expand", "1.5", ""}}}});
}

const std::vector<std::string> kWgKvParts = {"pre_rope_norm.weight", "norm.weight",   "hidden.weight",
                                             "hidden.bias",          "output.weight", "output.bias"};

const std::vector<std::string> kRetentionParts = {"input.weight", "input.bias",    "hidden.weight",
                                                  "hidden.bias",  "output.weight", "output.bias"};

// What torch has of these parts, where the learner wants it.
std::vector<float> stored_parameters(const Lesson& lesson, const NamedParts& named,
                                     const std::vector<std::string>& parts) {
  std::vector<float> parameters(static_cast<size_t>(named.elements()));
  for (const std::string& name : parts) named.write(name, lesson.stored(name), parameters);
  return parameters;
}

NamedParts named_parts(const Learner& learner, const Lesson& lesson) {
  return {learner.parts(lesson.info()), lesson.info().layers, lesson.info().kv_heads};
}

void expect_step(const Lesson& lesson, const NamedParts& named, const std::vector<std::string>& parts,
                 const Lesson::Step& step, double allowed) {
  const std::vector<float> gradient(step.gradient.begin(), step.gradient.end());
  for (const std::string& name : parts) {
    const std::vector<float> got = named.read(name, gradient);
    expect_slopes({got.begin(), got.end()}, lesson.stored("gradient." + name), allowed, name);
  }
}

TEST_P(GateTraining, WgKvTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "wg_kv");
  Policy policy = wg_kv_policy();
  Learner& learner = *policy.admission->learner();
  const NamedParts named = named_parts(learner, lesson);
  const Lesson::Step step =
      lesson.learn(learner, stored_parameters(lesson, named, kWgKvParts), {{"lambda", "0.04", ""}});
  EXPECT_NEAR(step.measured.at("hidden_distance"), lesson.number("distillation"), allowed(*backend));
  EXPECT_NEAR(step.measured.at("gate_sparsity"), lesson.number("sparsity"), allowed(*backend));
  expect_step(lesson, named, kWgKvParts, step, allowed(*backend));
}

// Where texts go through the model one by one, the step is theirs together.
TEST_P(GateTraining, TextsMayComeOneByOne) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "wg_kv");
  Policy policy = wg_kv_policy();
  Learner& learner = *policy.admission->learner();
  const std::vector<float> parameters = stored_parameters(lesson, named_parts(learner, lesson), kWgKvParts);
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
  Learner& learner = *policy.admission->learner();
  const std::vector<float> parameters = stored_parameters(lesson, named_parts(learner, lesson), kWgKvParts);
  const auto with_threads = [&](int threads) {
    const ref::Threads limit(threads);
    return lesson.learn(learner, parameters, {}).gradient;
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

// Gates whose output all layers share, as in the released code; one budget for all heads.
TEST_P(GateTraining, RetentionTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  Lesson lesson(*backend, "retention");
  Policy policy = make_policy("retention", {{"hidden", "8", ""}});
  Learner& learner = *policy.scorer->learner();
  const NamedParts named = named_parts(learner, lesson);
  const std::vector<float> parameters = stored_parameters(lesson, named, kRetentionParts);
  const Lesson::Step step = lesson.learn(learner, parameters, {{"entries", "4", ""}});
  const double near = allowed(*backend);
  EXPECT_NEAR(step.measured.at("divergence"), lesson.number("divergence"), near);
  EXPECT_NEAR(step.measured.at("next_token_loss"), lesson.number("next_token"), near);
  EXPECT_NEAR(step.measured.at("capacity_excess"), lesson.number("capacity"), near);
  EXPECT_NEAR(step.measured.at("overfull"), 73.0 / 81, 1e-6);
  expect_step(lesson, named, kRetentionParts, step, near);
  const Lesson::Step local = lesson.learn(learner, parameters, {{"entries", "4", ""}, {"capacity", "local", ""}});
  EXPECT_NEAR(local.measured.at("capacity_excess"), lesson.number("local_capacity"), near);
  EXPECT_NEAR(local.measured.at("overfull"), 434.0 / (81 * 6), 1e-6);
}

// Both learners look at their gates only once all of a step has been asked for; layers above have none either by then.
TEST_P(GateTraining, TheFirstGateThatIsNoNumberIsNamed) {
  KV_BACKEND_OR_SKIP(backend);
  const auto complaint = [&](Learner& learner, Lesson& lesson, const std::string& part, int64_t owner) {
    std::vector<float> parameters = learner.initial(lesson.info(), 1);
    named_parts(learner, lesson).of_owner(part, owner, std::span(parameters)).front() =
        std::numeric_limits<float>::quiet_NaN();
    return test::user_error([&] { lesson.learn(learner, parameters, {}); });
  };
  Policy wg_kv = wg_kv_policy(), retention = make_policy("retention", {{"hidden", "8", ""}});
  Lesson of_wg_kv(*backend, "wg_kv"), of_retention(*backend, "retention");
  const std::string gate = complaint(*wg_kv.admission->learner(), of_wg_kv, "hidden.bias", 3);
  EXPECT_NE(gate.find("layer 1, KV head 1: a gate is no number"), std::string::npos) << gate;
  const std::string beta = complaint(*retention.scorer->learner(), of_retention, "input.bias", 1);
  EXPECT_NE(beta.find("layer 1, KV head 0: log β is "), std::string::npos) << beta;
}

// Without a second loss, differences of the measured one: of every tying, in the direction of the gradient. An f32 loss
// of about 8 is off by some 1e-6, the difference over two steps of 0.05 / |gradient| by 1e-5 · |gradient|.
TEST(GateTrainingOnTheCpu, EveryTyingGoesBackAsDifferencesSay) {
  const auto backend = make_backend("cpu");
  Lesson lesson(*backend, "retention");
  for (const char* tying : {"shared", "layer", "none"}) {
    for (const char* gate : {"rg", "rg10"}) {
      if (std::string(tying) == "shared" && std::string(gate) == "rg") continue;
      SCOPED_TRACE(::testing::Message() << tying << ", " << gate);
      Policy policy =
          make_policy("retention", {{"hidden", "6", ""}, {"tying", tying, ""}, {"gate", gate, ""}, {"bias", "3", ""}});
      Learner& learner = *policy.scorer->learner();
      std::vector<float> parameters = learner.initial(lesson.info(), 3);
      for (float& parameter : parameters) parameter *= parameter < 1 ? 10 : 1;
      const std::vector<GivenParam> options = {{"lambda", "0", ""}};
      const Lesson::Step step = lesson.learn(learner, parameters, options);
      double square = 0;
      for (const double slope : step.gradient) square += slope * slope;
      const double norm = std::sqrt(square), by = 0.05 / norm;
      const auto loss = [&](double along) {
        std::vector<float> moved = parameters;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>(along * step.gradient[i] / norm);
        const auto measured = lesson.learn(learner, moved, options).measured;
        return 0.5 * (measured.at("divergence") + measured.at("next_token_loss"));
      };
      const double reach = std::min(by, 0.05);
      EXPECT_NEAR((loss(reach) - loss(-reach)) / (2 * reach), norm, 0.02 * norm);
      EXPECT_GT(norm, 1e-3) << "nothing to see";
    }
  }
}

}  // namespace
}  // namespace kv
