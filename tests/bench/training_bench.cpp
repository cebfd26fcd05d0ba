#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>

#include "kernels/vocabulary_loss.h"
#include "policies/parts/duo_training.h"
#include "policies/parts/retention_training.h"
#include "policies/parts/write_gate_training.h"
#include "sim/learned/adam.h"
#include "sim/learned/student.h"
#include "sim/learned/training.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"
#include "sim/model/named_models.h"
#include "sim/model/weights.h"
#include "sim/source/model_source.h"
#include "tests/bench/bench.h"
#include "tests/support/paths.h"

// What a step of training costs beside a forward pass of the same tokens, on the reference model and at the shapes of
// SmolLM2 and of a large model: `teach` is that pass as a teacher runs it, attention over whole texts and no loss;
// `teach_losses` goes on to each token's loss, as retention's step does twice and back.

namespace kv::bench {
namespace {

constexpr int kWindow = 256;
// The shape of SmolLM2-135M-Instruct (HuggingFaceTB), whose weights are no part of the repository.
constexpr const char* kSmolLm2 = R"({
  "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
  "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-5, "rope_theta": 100000, "tie_word_embeddings": true})";

struct Shape {
  std::string model;  // the reference, or one of which only the shape is known
  int64_t tokens;
  double expand;  // hidden units of a write gate over the head's dimension (004)
  int hidden;     // units of a retention gate (003)

  bool is_large() const { return model == "llama-3.1-8b"; }
};

// Short steps in a row: the host prepares one while the device is at its teacher, which a single step would not show.
int in_a_row(const Device& device, const Shape& shape) { return device.is_cpu() || shape.is_large() ? 1 : 8; }

std::unique_ptr<Weights> weights_of(const std::string& model) {
  if (model == "smollm2") return std::make_unique<RandomWeights>(parse_model_config(kSmolLm2, model), 1);
  if (model != "reference") return std::make_unique<RandomWeights>(find_named_model(model).parse(), 1);
  return std::make_unique<ModelFiles>(load_model(ref::source_path("experiments/models/reference")));
}

struct Lesson {
  Lesson(Backend& backend, const Shape& shape) : weights(weights_of(shape.model)), source(backend, *weights) {
    for (int64_t i = 0; i < shape.tokens; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + i * i * 31) % 8000));
  }
  const ModelConfig& config() const { return weights->config(); }

  std::unique_ptr<Weights> weights;
  ModelSource source;
  std::vector<int32_t> ids;
};

// Products of a pass, in FLOPs; attention's aside, and the head's.
double forward_flops(const ModelConfig& config, int64_t tokens) {
  const int64_t embedding = int64_t{config.vocab_size} * config.hidden_size;
  const auto weights =
      static_cast<double>(parameters_of(config) - (config.tie_word_embeddings ? embedding : 2 * embedding));
  return 2 * weights * static_cast<double>(tokens);
}

enum class Says { kStates, kLosses };

// A pass of the frozen model: to its hidden states, or to each token's loss, which takes a product with the vocabulary.
void teach(Device& device, Samples& samples, const Shape& shape, Says says) {
  const int64_t tokens = shape.tokens;
  Lesson lesson(device.backend(), shape);
  const ForwardModel& model = *lesson.source.frozen_model();
  const std::vector<int32_t> counts = {static_cast<int32_t>(tokens)};
  const Block block = make_block(device.backend(), std::vector<int32_t>{0}, counts);
  Tensor ids(device.backend(), DType::kI32, tokens), losses(device.backend(), DType::kF32, tokens);
  ids.upload(lesson.ids.data(), ids.bytes());
  const auto* on_device = std::as_const(ids).ref().as<int32_t>();
  Student student(model);
  const ModelConfig& config = model.config;
  Tensor states(device.backend(), device.backend().activation_type(), tokens * config.hidden_size);
  const double of_head = says == Says::kLosses ? 2.0 * config.hidden_size * config.vocab_size : 0;
  const double flops = forward_flops(config, tokens) + of_head * static_cast<double>(tokens);
  samples.take_in_a_row(in_a_row(device, shape), {.flops = flops}, [&] {
    student.teach(block, on_device, states.ref());
    if (says == Says::kStates) return;
    device.backend().vocabulary_loss({.student = states.ref(),
                                      .weight = model.weights.output_embedding().ref(),
                                      .targets = on_device,
                                      .next_token = losses.ref().as<float>(),
                                      .tokens = tokens,
                                      .width = config.hidden_size,
                                      .vocab = config.vocab_size});
  });
}

// As a training has them one after the other: Adam's part of it, too, and the next one's beginning.
void step(Device& device, Samples& samples, const Shape& shape, Learner& learner, std::vector<GivenParam> given = {}) {
  Lesson lesson(device.backend(), shape);
  const SourceInfo& info = lesson.source.info();
  Params params("learn", std::move(given));
  learner.read(params);
  const TrainingOptions options{.steps = std::numeric_limits<int64_t>::max(), .decay = 0.01, .clip = 0};
  Training training(options, learner, {learner.parts(info), info.layers, info.kv_heads}, learner.initial(info, 1));
  const std::vector<std::span<const int32_t>> texts = {lesson.ids};
  const std::vector<int32_t> numbers = {0};
  Tensor memory;
  const auto batch = [&](int64_t of_step) {
    return LearnBatch{.backend = device.backend(),
                      .source = lesson.source,
                      .sequences = texts,
                      .sample_numbers = numbers,
                      .step = of_step,
                      .memory = &memory};
  };
  samples.take_in_a_row(in_a_row(device, shape), {.flops = 4 * forward_flops(lesson.config(), shape.tokens)}, [&] {
    const int64_t now = training.steps_done();
    training.step(batch(now), [&] { return std::optional(batch(now + 1)); });
  });
}

// What the host does in a step of SmolLM2-135M's gates beside all ops: parameters to what ops want, gradients back to
// parameters, Adam.
void host_part(Device& device, Samples& samples) {
  const SourceInfo info{.name = "shape", .layers = 30, .q_heads = 9, .kv_heads = 3, .head_dim = 64, .width = 576};
  WriteGateNetwork network(1.5);
  std::vector<float> parameters = network.initial(info, 1);
  std::vector<double> gradient(parameters.size());
  Adam adam(parameters.size(), {.decay = 0.01});
  samples.take({}, [&] {
    network.use(device.backend(), info, parameters);
    const WriteGateGradients gradients(device.backend(), info, network);
    gradients.add_to(parameters, gradients.begin_download()->wait_for<float>(), gradient);
    clip_norm(gradient, norm_of(gradient), std::numeric_limits<double>::infinity());
    adam.step(parameters, gradient, 1e-3);
  });
}

// Of that the most at a large model's shape: 76 M of retention's gradients come back, at Llama-3.1-8B's.
void gradients_back(Device& device, Samples& samples) {
  const SourceInfo info{.name = "shape", .layers = 32, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .width = 4096};
  RetentionNetwork network({.hidden = 512});
  const std::vector<float> parameters = network.initial(info, 1);
  network.use(device.backend(), info, parameters);
  const RetentionGradients gradients(device.backend(), info, network);
  std::vector<double> gradient(parameters.size());
  samples.take({}, [&] { gradients.add_to(gradients.begin_download()->wait_for<float>(), gradient); });
}

const Family kTraining{[](Device& device) {
  device.add("training_host/smollm2", host_part);
  device.add("training_gradients_back/llama-3.1-8b", gradients_back);
  std::vector<Shape> shapes = {{"reference", 2048, 1.5, 64}};
  if (!device.is_cpu()) {
    shapes = {{"reference", 4096, 1.5, 64},
              {"reference", 16384, 1.5, 64},
              {"smollm2", 4096, 0.75, 32},
              {"smollm2", 8192, 0.75, 32},
              {"llama-3.1-8b", 16384, 4, 512}};
  }
  for (const Shape& shape : shapes) {
    const std::string name = fmt::format("{} {}K", shape.model, shape.tokens / 1024);
    device.add("training_teach/" + name,
               [=](Device& on, Samples& samples) { teach(on, samples, shape, Says::kStates); });
    device.add("training_teach_losses/" + name,
               [=](Device& on, Samples& samples) { teach(on, samples, shape, Says::kLosses); });
    device.add("training_step_wg_kv/" + name, [=](Device& on, Samples& samples) {
      WriteGateTraining learner(shape.expand, {.window = kWindow, .threshold = 0.1F}, {}, "bench");
      step(on, samples, shape, learner);
    });
    device.add("training_step_retention/" + name, [=](Device& on, Samples& samples) {
      RetentionTraining learner({.hidden = shape.hidden}, "bench");
      step(on, samples, shape, learner);
    });
    if (!device.is_cpu()) {
      device.add("training_step_retention_any_order/" + name, [=](Device& on, Samples& samples) {
        RetentionTraining learner({.hidden = shape.hidden}, "bench");
        step(on, samples, shape, learner, {{"deterministic", "no", ""}});
      });
    }
    device.add("training_step_duo/" + name, [=](Device& on, Samples& samples) {
      DuoTraining learner({.sinks = 16, .window = kWindow}, "bench");
      step(on, samples, shape, learner);
    });
  }
}};

}  // namespace
}  // namespace kv::bench
