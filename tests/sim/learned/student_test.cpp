// A frozen model that is gone through forward and back, as what learns inside its attention needs it.

#include "sim/learned/student.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/token_loss.h"
#include "sim/io/safetensors.h"
#include "sim/learned/packed_softmax.h"
#include "sim/model/activations.h"
#include "sim/model/model_files.h"
#include "tests/support/backends.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Runs, StudentModel);

// Two texts of different length, one behind the other.
struct Texts {
  Texts(Backend& backend, const std::vector<std::vector<int32_t>>& texts) {
    std::vector<int32_t> counts;
    for (const std::vector<int32_t>& text : texts) {
      ids.insert(ids.end(), text.begin(), text.end());
      counts.push_back(static_cast<int32_t>(text.size()));
    }
    block = make_block(backend, std::vector<int32_t>(texts.size(), 0), counts);
    on_device = ref::upload_array(backend, ids);
  }

  const int32_t* device() const { return on_device.ref().as<int32_t>(); }

  std::vector<int32_t> ids;
  Block block;
  Tensor on_device;
};

std::vector<int32_t> drawn_ids(int count, int seed) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * 37 + seed * 101 + i * i * 11) % 250);
  return ids;
}

std::vector<float> waves(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(std::cos(1.3 * static_cast<double>(i))));
  return values;
}

struct Opened {
  Opened(Backend& backend, const char* folder)
      : files(load_model(ref::source_path(folder))),
        weights(load_tensors(files, backend)),
        model(forward_model(backend, files.config(), weights)) {}

  ModelFiles files;
  ModelTensors weights;
  ForwardModel model;
};

std::vector<float> on_host(Backend& backend, ConstRef states, const ForwardModel& model, int64_t tokens) {
  return download_activations(backend, states, tokens * model.config.hidden_size);
}

// Adds to every output of a layer's attention what moves it one way, and hears what that did to a loss.
class Nudged final : public StudentAttention {
 public:
  Nudged(Backend& backend, const ModelConfig& config, int layer, float by)
      : backend_(backend), config_(config), plain_(backend, config), layer_(layer), by_(by) {}

  void begin(const Block& block) override {
    block_ = &block;
    plain_.begin(block);
  }
  void attend(int layer, const Projections& projections, Ref output) override {
    plain_.attend(layer, projections, output);
    if (layer != layer_) return;
    std::vector<float> values = download_activations(backend_, output, count());
    for (int64_t i = 0; i < count(); ++i) values[static_cast<size_t>(i)] += by_ * direction(i);
    upload_activations(backend_, output, values);
  }
  void backward(int layer, const Projections& projections, const Output& output,
                const ProjectionGradients& gradients) override {
    if (layer == layer_) {
      const std::vector<float> slopes = download_activations(backend_, output.gradient, count());
      for (int64_t i = 0; i < count(); ++i) slope_ += double{slopes[static_cast<size_t>(i)]} * direction(i);
    }
    plain_.backward(layer, projections, output, gradients);
  }
  double slope() const { return slope_; }

 private:
  static float direction(int64_t i) { return static_cast<float>(std::sin(0.7 * static_cast<double>(i))); }
  int64_t count() const { return block_->tokens * config_.q_size(); }

  Backend& backend_;
  const ModelConfig& config_;
  PlainAttention plain_;
  int layer_;
  float by_;
  const Block* block_ = nullptr;
  double slope_ = 0;
};

// Losses that transformers has of the text, through another path than a cache's.
TEST_P(StudentModel, SaysWhatTheModelSays) {
  KV_BACKEND_OR_SKIP(backend);
  if (backend->activation_type() != DType::kF32) GTEST_SKIP() << "one backend only: expected values are of f32";
  for (const char* folder : {"tests/data/llama", "tests/data/qwen3"}) {
    SCOPED_TRACE(folder);
    const Opened opened(*backend, folder);
    const ModelConfig& config = opened.model.config;
    const SafetensorsFile expected =
        SafetensorsFile::open(ref::source_path(std::string(folder) + "/expected.safetensors"));
    const std::vector<int32_t> ids = expected.read_i32(expected.require("input_ids"));
    const std::vector<float> nll = expected.read_f32(expected.require("nll"));
    const Texts texts(*backend, {ids});
    std::vector<int32_t> targets(ids.begin() + 1, ids.end());
    targets.push_back(-1);
    Tensor on_targets = ref::upload_array(*backend, targets);
    const int64_t tokens = texts.block.tokens;
    Tensor losses(*backend, DType::kF32, tokens), entropy(*backend, DType::kF32, tokens),
        argmax(*backend, DType::kI32, tokens);
    Student student(opened.model);
    Tensor states(*backend, backend->activation_type(), tokens * config.hidden_size);
    student.teach(texts.block, texts.device(), states.ref());
    backend->token_loss({.hidden = states.ref(),
                         .weight = opened.weights.output_embedding().ref(),
                         .targets = ref::data_of<int32_t>(on_targets),
                         .nll = ref::data_of<float>(losses),
                         .entropy = ref::data_of<float>(entropy),
                         .argmax = ref::data_of<int32_t>(argmax),
                         .rows = tokens,
                         .width = config.hidden_size,
                         .vocab = config.vocab_size});
    const std::vector<float> got = ref::download_array<float>(losses);
    for (size_t i = 0; i < nll.size(); ++i) ASSERT_NEAR(got[i], nll[i], 1e-4) << "token " << i;
  }
}

// The pass that keeps what gradients need computes what the one that keeps nothing does, and texts do not see one
// another. In 16 bits other shapes, and a residual stream that is not written where it was read, may be other kernels
// of the same product, whose sums round another way: by 2⁻⁹ of numbers up to 2.5, a few times a layer.
TEST_P(StudentModel, KeepsWithoutChanging) {
  KV_BACKEND_OR_SKIP(backend);
  const bool is_f32 = backend->activation_type() == DType::kF32;
  const Opened opened(*backend, "tests/data/qwen3");
  const std::vector<std::vector<int32_t>> ids = {drawn_ids(37, 1), drawn_ids(20, 2)};
  const Texts both(*backend, ids), second(*backend, {ids[1]});
  Student student(opened.model);
  PlainAttention plain(*backend, opened.model.config);
  Tensor states(*backend, backend->activation_type(), 57 * opened.model.config.hidden_size);
  student.teach(both.block, both.device(), states.ref());
  const std::vector<float> taught = on_host(*backend, states.ref(), opened.model, 57);
  const std::vector<float> kept = on_host(*backend, student.run(both.block, both.device(), plain), opened.model, 57);
  ASSERT_EQ(kept.size(), taught.size());
  for (size_t i = 0; i < taught.size(); ++i) ASSERT_NEAR(kept[i], taught[i], is_f32 ? 0 : 0.05) << i;
  const std::vector<float> alone =
      on_host(*backend, student.run(second.block, second.device(), plain), opened.model, 20);
  const int64_t width = opened.model.config.hidden_size;
  for (int64_t i = 0; i < 20 * width; ++i) {
    ASSERT_NEAR(alone[static_cast<size_t>(i)], taught[static_cast<size_t>(37 * width + i)], is_f32 ? 1e-5 : 0.05);
  }
}

// The loss is a sum of states, each times a number; a nudge of the layer's heads moves it as its gradient says. Both
// families, with norms of heads and without. Central differences of an f32 pass: the loss, about √(57 · 64) of its
// numbers of about 1, is off by some 60 · 2⁻²⁴, so the difference over 2 · 0.01 by 2e-4; what the third derivative
// adds is 0.01² of the slope.
TEST_P(StudentModel, GoesBackAsDifferencesSay) {
  KV_BACKEND_OR_SKIP(backend);
  if (backend->activation_type() != DType::kF32) GTEST_SKIP() << "one backend only: differences of 16 bits say nothing";
  for (const char* folder : {"tests/data/llama", "tests/data/qwen3"}) {
    const Opened opened(*backend, folder);
    const ModelConfig& config = opened.model.config;
    const Texts texts(*backend, {drawn_ids(37, 1), drawn_ids(20, 2)});
    const std::vector<float> weights = waves(texts.block.tokens * config.hidden_size);
    Student student(opened.model);
    const auto loss = [&](int layer, float by) {
      Nudged nudged(*backend, config, layer, by);
      const std::vector<float> states =
          on_host(*backend, student.run(texts.block, texts.device(), nudged), opened.model, 57);
      return std::inner_product(states.begin(), states.end(), weights.begin(), 0.0);
    };
    for (int layer = 0; layer < config.layers; ++layer) {
      SCOPED_TRACE(::testing::Message() << folder << ", layer " << layer);
      Nudged nudged(*backend, config, layer, 0);
      student.run(texts.block, texts.device(), nudged);
      Tensor gradient = ref::upload_activations(*backend, weights);
      student.backward(gradient.ref());
      const double by = 0.01, difference = (loss(layer, 0.01F) - loss(layer, -0.01F)) / (2 * by);
      EXPECT_NEAR(nudged.slope(), difference, 1e-3 * std::abs(difference) + 2e-3);
      EXPECT_GT(std::abs(difference), 0.05) << "nothing to see";
    }
  }
}

// Whether memory has room for a layer's activations until the way back decides about time alone.
TEST_P(StudentModel, WhatIsKeptIsWhatIsComputedAgain) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* folder : {"tests/data/llama", "tests/data/qwen3"}) {
    const Opened opened(*backend, folder);
    const Texts texts(*backend, {drawn_ids(37, 1), drawn_ids(20, 2)});
    const size_t all = Student::bytes(*backend, opened.model.config, 57);
    const size_t one = Student::bytes(*backend, opened.model.config, 57, 0);
    ASSERT_LT(one, all) << "nothing is computed again";
    std::vector<double> expected;
    Tensor lent;
    for (const size_t most_kept : {Student::kMostKept, size_t{0}, all - one}) {
      std::vector<double> slopes;
      Student student(opened.model, &lent, most_kept);
      for (int layer = 0; layer < opened.model.config.layers; ++layer) {
        Nudged nudged(*backend, opened.model.config, layer, 0);
        student.run(texts.block, texts.device(), nudged);
        Tensor gradient = ref::upload_activations(*backend, waves(57 * int64_t{opened.model.config.hidden_size}));
        student.backward(gradient.ref());
        slopes.push_back(nudged.slope());
      }
      if (most_kept == Student::kMostKept) expected = slopes;
      EXPECT_EQ(slopes, expected) << folder << ", " << most_kept << " bytes";
    }
  }
}

TEST_P(StudentModel, TakesTheBytesThatAreForetold) {
  KV_BACKEND_OR_SKIP(backend);
  for (const char* folder : {"tests/data/llama", "tests/data/qwen3"}) {
    const Opened opened(*backend, folder);
    const Texts texts(*backend, {drawn_ids(7, 1)});
    PlainAttention plain(*backend, opened.model.config);
    Student(opened.model).run(texts.block, texts.device(), plain);  // what a backend makes once, for its first products
    const size_t before = backend->bytes_in_use();
    Student student(opened.model);
    student.run(texts.block, texts.device(), plain);
    EXPECT_EQ(backend->bytes_in_use() - before, Student::bytes(*backend, opened.model.config, 7)) << folder;
  }
}

}  // namespace
}  // namespace kv
