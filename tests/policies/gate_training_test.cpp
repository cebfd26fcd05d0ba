// What sits inside a model's attention while it is trained: its gates and one step, against torch and its autograd
// (tests/data/gates), and every part's slope against differences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

#include "policies/parts/retention_attention.h"
#include "policies/parts/write_gate_attention.h"
#include "sim/io/safetensors.h"
#include "sim/learned/learner.h"
#include "sim/learned/named_parts.h"
#include "sim/learned/student.h"
#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "sim/source/model_source.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"
#include "tests/support/threaded_parts.h"
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
    counts_ = file_.read_i32(file_.require("texts"));
    ids_ = file_.read_i32(file_.require("ids"));
    sequences_ = {std::span(ids_).first(static_cast<size_t>(counts_[0])),
                  std::span(ids_).subspan(static_cast<size_t>(counts_[0]))};
  }

  const SourceInfo& info() const { return source_.info(); }
  const ModelConfig& config() const { return source_.frozen_model()->config; }
  std::vector<float> stored(const std::string& name) const {
    return file_.read_f32(file_.require(method_ + "." + name));
  }
  double number(const std::string& name) const { return stored(name).at(0); }

  // Lets the attention see both texts, one behind the other.
  void read(StudentAttention& attention) {
    const Block block = make_block(backend_, std::vector<int32_t>(counts_.size(), 0), counts_);
    const Tensor ids = ref::upload_array(backend_, ids_);
    Student(*source_.frozen_model()).run(block, ids.ref().as<int32_t>(), attention);
  }

  // One step of the learner, at a weight of the other loss.
  struct Step {
    std::map<std::string, double> measured;
    std::vector<double> gradient;
  };
  Step learn(Learner& learner, const std::vector<float>& parameters, const std::vector<GivenParam>& options) {
    read(learner, options);
    Step step{.measured = {}, .gradient = std::vector<double>(parameters.size(), 0.0)};
    const std::vector<LearnedMean> measured =
        learner.learn({.backend = backend_, .source = source_, .sequences = sequences_, .sample_numbers = numbers_},
                      parameters, step.gradient);
    for (const LearnedMean& one : measured) step.measured[one.metric] = one.value;
    return step;
  }
  // Begins step `step` of both texts, or of the second alone.
  void begin(Learner& learner, const std::vector<GivenParam>& options, int64_t step, bool is_second_alone) {
    read(learner, options);
    const size_t first = is_second_alone ? 1 : 0;
    learner.begin_next({.backend = backend_,
                        .source = source_,
                        .sequences = std::span(sequences_).subspan(first),
                        .sample_numbers = std::span(numbers_).subspan(first),
                        .step = step});
  }
  void spoil_ids() { std::fill(ids_.begin(), ids_.end(), 0); }
  // The same, of one text while another part learns from the other.
  Step learn_text(Learner& learner, const std::vector<float>& parameters, const std::vector<GivenParam>& options,
                  int text, StepParts& all) {
    read(learner, options);
    const StepPart part{
        .all = all, .first_text = text, .step_texts = std::ssize(sequences_), .step_tokens = std::ssize(ids_)};
    const auto at = static_cast<size_t>(text);
    Step step{.measured = {}, .gradient = std::vector<double>(parameters.size(), 0.0)};
    std::vector<LearnedMean> means = learner.learn({.backend = backend_,
                                                    .source = source_,
                                                    .sequences = std::span(sequences_).subspan(at, 1),
                                                    .sample_numbers = std::span(numbers_).subspan(at, 1),
                                                    .part = &part},
                                                   parameters, step.gradient);
    all.add_up(step.gradient);
    for (const LearnedMean& mean : means) {
      double sums[] = {mean.value * mean.weight, mean.weight};
      all.add_up(sums);
      step.measured[mean.metric] = sums[0] / sums[1];
    }
    return step;
  }

 private:
  static void read(Learner& learner, const std::vector<GivenParam>& options) {
    Params params("learn", options);
    learner.read(params);
    params.finish();
  }

  Backend& backend_;
  SafetensorsFile file_;
  ModelFiles weights_;
  ModelSource source_;
  std::string method_;
  std::vector<int32_t> counts_, ids_;
  std::vector<std::span<const int32_t>> sequences_;
  std::vector<int32_t> numbers_ = {0, 1};
};

// Where a backend's activations are f32, f32 torch itself is off by 3e-6 of a tensor's largest slope; sixteen bits, of
// activations and of their gradients, by what a few layers' roundings add up to: on an H200 by up to 0.03 of a tensor's
// length and 0.04 of its largest slope.
double allowed(const Backend& backend) { return backend.activation_type() == DType::kF32 ? 1e-4 : 0.1; }
double allowed_of_slopes(const Backend& backend) { return backend.activation_type() == DType::kF32 ? 1e-4 : 0.05; }

// Each slope relative to the tensor's largest, and all of them relative to its length.
void expect_slopes(const std::vector<double>& got, const std::vector<float>& want, double allowed,
                   const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double largest = 0, length = 0, distance = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double slope = want[i], off = got[i] - slope;
    largest = std::max(largest, std::abs(slope));
    length += slope * slope;
    distance += off * off;
  }
  ASSERT_GT(largest, 0) << name;
  EXPECT_LE(std::sqrt(distance / length), allowed) << name;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], allowed * largest) << name << "[" << i << "]";
}

Policy wg_kv_policy() {
  return make_policy("full", {}, {.admission = {"wg-kv", {{"window", "4", ""}, {"expand", "1.5", ""}}}});
}

Policy retention_policy(std::vector<GivenParam> options) {
  options.push_back({"hidden", "8", ""});
  return make_policy("retention", options);
}

Policy duo_policy() {
  return make_policy("full", {}, {.admission = {"duo", {{"sinks", "2", ""}, {"window", "4", ""}}}});
}

Learner& learner_of(const Policy& policy) {
  for (const PolicySlot& place : policy.slots()) {
    if (Learner* const learner = place.slot.learner()) return *learner;
  }
  throw std::logic_error("no slot of the policy learns");
}

NamedParts named_parts(const Learner& learner, const Lesson& lesson) {
  return {learner.parts(lesson.info()), lesson.info().layers, lesson.info().kv_heads};
}

// Duo's parameters are those whose logistic function α is.
std::vector<float> logits(const std::vector<float>& alphas) {
  std::vector<float> of_alphas;
  for (const float alpha : alphas) of_alphas.push_back(std::log(alpha / (1 - alpha)));
  return of_alphas;
}

// A policy that learns, with torch's parameters and what torch's step was told, in our options' words.
struct Pupil {
  Pupil(Backend& backend, const std::string& method, Policy its_policy, std::vector<GivenParam> its_options)
      : lesson(backend, method), policy(std::move(its_policy)), options(std::move(its_options)) {
    if (method == "duo") {
      parameters = logits(lesson.stored("alphas"));
      return;
    }
    const NamedParts named = named_parts(learner(), lesson);
    parameters.resize(static_cast<size_t>(named.elements()));
    for (const std::string& name : part_names()) named.write(name, lesson.stored(name), parameters);
  }

  Learner& learner() const { return learner_of(policy); }
  std::vector<std::string> part_names() const {
    std::vector<std::string> names;
    for (const LearnedPart& part : learner().parts(lesson.info())) names.push_back(part.name);
    return names;
  }
  Lesson::Step step(std::vector<GivenParam> more = {}) {
    more.insert(more.end(), options.begin(), options.end());
    return lesson.learn(learner(), parameters, more);
  }

  Lesson lesson;
  Policy policy;
  std::vector<GivenParam> options;
  std::vector<float> parameters;
};

// Retention's gates share their output over all layers, as in the released code; one budget is for all heads.
std::unique_ptr<Pupil> pupil_of(Backend& backend, const std::string& method) {
  if (method == "wg_kv") return std::make_unique<Pupil>(backend, method, wg_kv_policy(), std::vector<GivenParam>{});
  if (method == "duo") return std::make_unique<Pupil>(backend, method, duo_policy(), std::vector<GivenParam>{});
  return std::make_unique<Pupil>(backend, method, retention_policy({}), std::vector<GivenParam>{{"entries", "4", ""}});
}

constexpr const char* kMethods[] = {"wg_kv", "retention", "duo"};

void expect_step(const Pupil& pupil, const Lesson::Step& step, double allowed) {
  const NamedParts named = named_parts(pupil.learner(), pupil.lesson);
  const std::vector<float> gradient(step.gradient.begin(), step.gradient.end());
  for (const std::string& name : pupil.part_names()) {
    const std::vector<float> got = named.read(name, gradient);
    expect_slopes({got.begin(), got.end()}, pupil.lesson.stored("gradient." + name), allowed, name);
  }
}

// A loss against the number that torch has stored, relative to that where it is below 1.
void expect_loss(const Pupil& pupil, const Lesson::Step& step, const char* metric, const char* stored, double allowed) {
  const double want = pupil.lesson.number(stored);
  ASSERT_GT(want, 0) << metric;
  EXPECT_NEAR(step.measured.at(metric), want, allowed * std::min(1.0, want)) << metric;
}

TEST_P(GateTraining, WgKvTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  const auto pupil = pupil_of(*backend, "wg_kv");
  const Lesson::Step step = pupil->step({{"lambda", "0.04", ""}});
  expect_loss(*pupil, step, "hidden_distance", "distillation", allowed(*backend));
  expect_loss(*pupil, step, "gate_sparsity", "sparsity", allowed(*backend));
  // That of gates of at least 1e-3, as the released code clamps them: a deviation of at most two thousandths.
  EXPECT_NEAR(step.measured.at("gate_sparsity"), pupil->lesson.number("released_sparsity"), 2e-3 + allowed(*backend));
  expect_step(*pupil, step, allowed_of_slopes(*backend));
}

TEST_P(GateTraining, DuoTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  const auto pupil = pupil_of(*backend, "duo");
  const std::vector<float> alphas = pupil->lesson.stored("alphas");
  std::vector<float> slopes = pupil->lesson.stored("gradient.alphas");
  for (size_t i = 0; i < alphas.size(); ++i) slopes[i] *= alphas[i] * (1 - alphas[i]);
  const Lesson::Step step = pupil->step({{"lambda", "0.05", ""}});
  expect_loss(*pupil, step, "hidden_distance", "distillation", allowed(*backend));
  expect_slopes(step.gradient, slopes, allowed_of_slopes(*backend), "alpha");
}

TEST_P(GateTraining, RetentionTakesTheStepThatTorchTakes) {
  KV_BACKEND_OR_SKIP(backend);
  const auto pupil = pupil_of(*backend, "retention");
  const Lesson::Step step = pupil->step();
  const double near = allowed(*backend);
  expect_loss(*pupil, step, "divergence", "divergence", near);
  expect_loss(*pupil, step, "next_token_loss", "next_token", near);
  expect_loss(*pupil, step, "capacity_excess", "capacity", near);
  EXPECT_NEAR(step.measured.at("overfull"), 73.0 / 81, 1e-6);
  expect_step(*pupil, step, allowed_of_slopes(*backend));
  const Lesson::Step local = pupil->step({{"capacity", "local", ""}});
  expect_loss(*pupil, local, "capacity_excess", "local_capacity", near);
  EXPECT_NEAR(local.measured.at("overfull"), 434.0 / (81 * 6), 1e-6);
}

// By how much a gate's logit may be off from torch's: ten roundings of its own and ten of each of three layers before
// it, all in the backend's activations, of terms that are some four times as large as their sum. f32 uses two fifths.
double allowed_of_logit(const Backend& backend, double logit) {
  return (10 + 3 * 10) * ref::activation_epsilon(backend) * 4 * (1 + std::abs(logit));
}

// What the gates themselves are rounded by, f32 on every backend.
constexpr double kRounding = std::numeric_limits<float>::epsilon();

// Of all layers, [layers, tokens, kv_heads]: those above have read what gates below them have left of the attention.
TEST_P(GateTraining, WgKvsGatesAreTorchs) {
  KV_BACKEND_OR_SKIP(backend);
  const auto pupil = pupil_of(*backend, "wg_kv");
  const SourceInfo& info = pupil->lesson.info();
  WriteGateNetwork network(1.5);
  network.use(*backend, info, pupil->parameters);
  WriteGateGradients gradients(*backend, info, network);
  WriteGateAttention attention(*backend, pupil->lesson.config(), network, 4, gradients, true);
  pupil->lesson.read(attention);
  const std::vector<float> want = pupil->lesson.stored("gates");
  std::vector<float> got(want.size());
  backend->download(got.data(), attention.gates(), got.size() * sizeof(float));
  for (size_t i = 0; i < want.size(); ++i) {
    const double gate = want[i], logit = std::log(gate / (1 - gate));
    ASSERT_NEAR(got[i], gate, gate * (1 - gate) * allowed_of_logit(*backend, logit) + kRounding * gate) << i;
  }
}

// Layers that own their output, each the same, say what layers say that share one.
TEST_P(GateTraining, RetentionsGatesAreTorchs) {
  KV_BACKEND_OR_SKIP(backend);
  const auto pupil = pupil_of(*backend, "retention");
  const SourceInfo& info = pupil->lesson.info();
  const std::vector<float> want = pupil->lesson.stored("log_beta");
  const NamedParts stored = named_parts(pupil->learner(), pupil->lesson);
  for (const auto tying : {RetentionShape::Tying::kLayer, RetentionShape::Tying::kNone}) {
    RetentionNetwork network({.tying = tying, .hidden = 8});
    const NamedParts named(network.parts(info), info.layers, info.kv_heads);
    std::vector<float> parameters(static_cast<size_t>(named.elements()));
    for (const std::string& name : pupil->part_names()) {
      std::vector<float> values, of_part = stored.read(name, pupil->parameters);
      const bool is_one_for_all = name.starts_with("output.") && tying == RetentionShape::Tying::kNone;
      for (int copy = 0; copy < (is_one_for_all ? info.layers : 1); ++copy) {
        values.insert(values.end(), of_part.begin(), of_part.end());
      }
      named.write(name, values, parameters);
    }
    network.use(*backend, info, parameters);
    RetentionGradients gradients(*backend, info, network);
    RetentionAttention attention(*backend, pupil->lesson.config(), network, gradients, true);
    pupil->lesson.read(attention);
    std::vector<float> got(want.size());
    backend->download(got.data(), attention.log_retention(), got.size() * sizeof(float));
    for (size_t i = 0; i < want.size(); ++i) {
      const double log_beta = want[i], forgets = -std::expm1(log_beta), logit = log_beta - std::log(forgets);
      ASSERT_NEAR(got[i], log_beta, forgets * allowed_of_logit(*backend, logit) - 3 * kRounding * log_beta) << i;
    }
  }
}

// What the step before has begun is taken up, and what was begun of another is not.
TEST_P(GateTraining, StepsMayBeBegunAhead) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* method : kMethods) {
    for (const char* tokens_at_once : {"16384", "50"}) {
      SCOPED_TRACE(::testing::Message() << method << ", " << tokens_at_once);
      const auto pupil = pupil_of(*backend, method);
      const std::vector<GivenParam> at_once{{"tokens_at_once", tokens_at_once, ""}};
      const Lesson::Step alone = pupil->step(at_once);
      // The same bits where sums have an order.
      const auto expect_same = [&](const Lesson::Step& step, const Lesson::Step& as) {
        if (backend->activation_type() == DType::kF32) {
          EXPECT_EQ(step.gradient, as.gradient);
        }
        expect_slopes(step.gradient, {as.gradient.begin(), as.gradient.end()}, allowed(*backend) / 100, "gradient");
      };
      const auto begin = [&](int64_t step, bool is_second_alone) {
        std::vector<GivenParam> options = pupil->options;
        options.insert(options.end(), at_once.begin(), at_once.end());
        pupil->lesson.begin(pupil->learner(), options, step, is_second_alone);
      };
      begin(0, false);
      const Lesson::Step begun = pupil->step(at_once);
      expect_same(begun, alone);
      begin(1, true);
      expect_same(pupil->step(at_once), alone);
      begin(0, true);
      expect_same(pupil->step(at_once), alone);
    }
  }
}

// Texts that were begun are those that are learned from, whatever stands in their place meanwhile.
TEST_P(GateTraining, WhatWasBegunIsNotReadAgain) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    const auto pupil = pupil_of(*backend, method);
    const Lesson::Step alone = pupil->step();
    pupil->lesson.begin(pupil->learner(), pupil->options, 0, false);
    pupil->lesson.spoil_ids();
    EXPECT_NEAR(pupil->step().measured.begin()->second, alone.measured.begin()->second, 1e-3);
    EXPECT_GT(std::abs(pupil->step().measured.begin()->second - alone.measured.begin()->second), 1e-3) << "now it is";
  }
}

// Where texts go through the model one by one, the step is theirs together.
TEST_P(GateTraining, TextsMayComeOneByOne) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    const auto pupil = pupil_of(*backend, method);
    const Lesson::Step together = pupil->step(), apart = pupil->step({{"tokens_at_once", "50", ""}});
    for (const auto& [metric, value] : together.measured) {
      EXPECT_NEAR(apart.measured.at(metric), value, 1e-6 * (1 + std::abs(value))) << metric;
    }
    const double near = allowed(*backend) / 100;
    expect_slopes(apart.gradient, {together.gradient.begin(), together.gradient.end()}, near, "gradient");
  }
}

// On Hopper that is another kernel, where heads are as wide as its own (BiasedAttention's tests).
TEST_P(GateTraining, SumsMayHaveAnyOrder) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    const auto pupil = pupil_of(*backend, method);
    const Lesson::Step ordered = pupil->step(), any = pupil->step({{"deterministic", "no", ""}});
    for (const auto& [metric, value] : ordered.measured) EXPECT_EQ(any.measured.at(metric), value) << metric;
    const double near = allowed(*backend) / 100;
    expect_slopes(any.gradient, {ordered.gradient.begin(), ordered.gradient.end()}, near, "gradient");
  }
}

// Two that learn from a text each: of different lengths, and overfull at differently many places.
TEST(GateTrainingOnTheCpu, PartsAddUpToTheStepThatTorchTakes) {
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    const auto backend = make_backend("cpu");
    const Lesson::Step whole = pupil_of(*backend, method)->step();
    std::vector<Lesson::Step> steps(2);
    test::ThreadedParts(2).run([&](int text, StepParts& all) {
      const auto own_backend = make_backend("cpu");
      const auto pupil = pupil_of(*own_backend, method);
      steps[static_cast<size_t>(text)] =
          pupil->lesson.learn_text(pupil->learner(), pupil->parameters, pupil->options, text, all);
    });
    EXPECT_EQ(steps[0].gradient, steps[1].gradient);
    const auto pupil = pupil_of(*backend, method);
    for (const auto& [metric, value] : whole.measured) {
      EXPECT_NEAR(steps[0].measured.at(metric), value, 1e-6 * (1 + std::abs(value))) << metric;
    }
    expect_slopes(steps[0].gradient, {whole.gradient.begin(), whole.gradient.end()}, 1e-6, "gradient");
    if (method != std::string("duo")) expect_step(*pupil, steps[0], 1e-4);
  }
}

// Sums over tokens are taken in the same order by any number of threads.
TEST(GateTrainingOnTheCpu, ThreadsChangeNoBit) {
  const auto backend = make_backend("cpu");
  for (const char* method : kMethods) {
    SCOPED_TRACE(method);
    const auto pupil = pupil_of(*backend, method);
    const auto with_threads = [&](int threads) {
      const ref::Threads limit(threads);
      return pupil->step().gradient;
    };
    EXPECT_EQ(with_threads(1), with_threads(2));
  }
}

// Gates are looked at only once all of a step has been asked for; layers above have none either by then.
TEST_P(GateTraining, TheFirstGateThatIsNoNumberIsNamed) {
  KV_BACKEND_OR_SKIP(backend);
  const auto complaint = [&](const char* method, const std::string& part, int64_t owner) {
    const auto pupil = pupil_of(*backend, method);
    named_parts(pupil->learner(), pupil->lesson).of_owner(part, owner, std::span(pupil->parameters)).front() =
        std::numeric_limits<float>::quiet_NaN();
    return test::user_error([&] { pupil->step(); });
  };
  const std::string gate = complaint("wg_kv", "hidden.bias", 3);
  EXPECT_NE(gate.find("layer 1, KV head 1: a gate is no number"), std::string::npos) << gate;
  const std::string beta = complaint("retention", "input.bias", 1);
  EXPECT_NE(beta.find("layer 1, KV head 0: log β is no finite number"), std::string::npos) << beta;
  const std::string alpha = complaint("duo", "alpha_logit", 3);
  EXPECT_NE(alpha.find("layer 1, KV head 1: α is "), std::string::npos) << alpha;
}

// What a step's gradient is of, by what it measured.
using Loss = std::function<double(const std::map<std::string, double>&)>;

// Along random directions of each part alone, so that no part's slopes hide behind another's. Each parameter moves by
// up to `by`; over twice that a loss that bends and is f32 is off by up to a hundredth of the slope.
void expect_slopes_of_every_part(Lesson& lesson, Learner& learner, const std::vector<float>& parameters,
                                 const std::vector<GivenParam>& options, const Loss& loss, float by = 0.01F) {
  const NamedParts named = named_parts(learner, lesson);
  const Lesson::Step step = lesson.learn(learner, parameters, options);
  for (const LearnedPart& part : learner.parts(lesson.info())) {
    double error = 0, size = 0;
    for (const uint32_t seed : {1, 2, 3}) {
      std::vector<float> direction(parameters.size());
      named.write(part.name, ref::random_values(named.read(part.name, direction).size(), seed), direction);
      const auto at = [&](float times) {
        std::vector<float> moved = parameters;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += times * direction[i];
        return lesson.learn(learner, moved, options).measured;
      };
      const auto ahead = at(by), behind = at(-by);
      // Where a place crosses its capacity, the mean over those that are beyond it jumps.
      if (ahead.contains("overfull")) {
        ASSERT_EQ(ahead.at("overfull"), behind.at("overfull")) << part.name;
      }
      const double slope = (loss(ahead) - loss(behind)) / (2.0 * by);
      const double got = std::inner_product(direction.begin(), direction.end(), step.gradient.begin(), 0.0);
      error += (got - slope) * (got - slope);
      size += slope * slope;
    }
    EXPECT_GT(std::sqrt(size), 1e-4) << part.name << ": nothing to see";
    EXPECT_LE(std::sqrt(error), 0.02 * std::sqrt(size)) << part.name;
  }
}

Loss retention_loss(double lambda) {
  return [lambda](const std::map<std::string, double>& measured) {
    return 0.5 * (measured.at("divergence") + measured.at("next_token_loss")) + lambda * measured.at("capacity_excess");
  };
}

TEST(GateTrainingOnTheCpuSlow, EveryTyingGoesBackAsDifferencesSay) {
  const auto backend = make_backend("cpu");
  Lesson lesson(*backend, "retention");
  for (const char* tying : {"shared", "layer", "none"}) {
    for (const char* gate : {"rg", "rg10"}) {
      if (std::string(tying) == "shared" && std::string(gate) == "rg") continue;
      const Policy policy = retention_policy({{"tying", tying, ""}, {"gate", gate, ""}, {"bias", "3", ""}});
      Learner& learner = learner_of(policy);
      std::vector<float> parameters = learner.initial(lesson.info(), 3);
      for (float& parameter : parameters) parameter *= parameter < 1 ? 10 : 1;
      for (const char* lambda : {"0", "0.5"}) {
        SCOPED_TRACE(::testing::Message() << tying << ", " << gate << ", lambda " << lambda);
        expect_slopes_of_every_part(lesson, learner, parameters, {{"lambda", lambda, ""}, {"entries", "4", ""}},
                                    retention_loss(std::stod(lambda)));
      }
    }
  }
}

// Of a loss that torch's step does not have: each head fits a budget of its own. So many places are near theirs that
// the way is a tenth as far.
TEST(GateTrainingOnTheCpu, ACapacityOfEachHeadGoesBackAsDifferencesSay) {
  const auto backend = make_backend("cpu");
  const auto pupil = pupil_of(*backend, "retention");
  expect_slopes_of_every_part(pupil->lesson, pupil->learner(), pupil->parameters,
                              {{"capacity", "local", ""}, {"entries", "4", ""}}, retention_loss(1), 0.001F);
}

// Nor this: sparsity as if there were no window. λ is large, or nothing of it is seen.
TEST(GateTrainingOnTheCpu, EitherSparsityGoesBackAsDifferencesSay) {
  const auto backend = make_backend("cpu");
  const auto pupil = pupil_of(*backend, "wg_kv");
  for (const char* sparsity : {"code", "paper"}) {
    SCOPED_TRACE(sparsity);
    expect_slopes_of_every_part(
        pupil->lesson, pupil->learner(), pupil->parameters, {{"sparsity", sparsity, ""}, {"lambda", "1", ""}},
        [](const auto& measured) { return measured.at("hidden_distance") + measured.at("gate_sparsity"); });
  }
}

}  // namespace
}  // namespace kv
