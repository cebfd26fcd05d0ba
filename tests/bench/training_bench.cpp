#include <fmt/format.h>

#include <limits>
#include <memory>

#include "policies/parts/retention_training.h"
#include "policies/parts/write_gate_training.h"
#include "sim/learned/adam.h"
#include "sim/learned/student.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"
#include "tests/bench/bench.h"
#include "tests/support/paths.h"

// What a step of training costs beside a forward pass of the same tokens, on the reference model: `teach` is that pass
// as a teacher runs it, attention over whole texts and no loss.

namespace kv::bench {
namespace {

constexpr int kWindow = 256;

struct Lesson {
  explicit Lesson(Backend& backend, int64_t tokens)
      : files(load_model(ref::source_path("experiments/models/reference"))), source(backend, files) {
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>((i * 7919 + i * i * 31) % 8000));
  }

  ModelFiles files;
  ModelSource source;
  std::vector<int32_t> ids;
};

// Products of a pass, in FLOPs; attention's aside.
double forward_flops(const ModelConfig& config, int64_t tokens) {
  const auto weights = static_cast<double>(parameters_of(config) - int64_t{config.vocab_size} * config.hidden_size);
  return 2 * weights * static_cast<double>(tokens);
}

void teach(Device& device, Samples& samples, int64_t tokens) {
  Lesson lesson(device.backend(), tokens);
  const ForwardModel& model = *lesson.source.frozen_model();
  const std::vector<int32_t> counts = {static_cast<int32_t>(tokens)};
  const Block block = make_block(device.backend(), std::vector<int32_t>{0}, counts);
  Tensor ids(device.backend(), DType::kI32, tokens);
  ids.upload(lesson.ids.data(), ids.bytes());
  Student student(model);
  Tensor states(device.backend(), device.backend().activation_type(), tokens * model.config.hidden_size);
  samples.take({.flops = forward_flops(model.config, tokens)},
               [&] { student.teach(block, std::as_const(ids).ref().as<int32_t>(), states.ref()); });
}

void step(Device& device, Samples& samples, int64_t tokens, Learner& learner) {
  Lesson lesson(device.backend(), tokens);
  const SourceInfo& info = lesson.source.info();
  Params params("learn");
  learner.read(params);
  const std::vector<float> parameters = learner.initial(info, 1);
  std::vector<double> gradient(parameters.size());
  const std::vector<std::span<const int32_t>> texts = {lesson.ids};
  const std::vector<int32_t> numbers = {0};
  samples.take({.flops = 4 * forward_flops(lesson.files.config(), tokens)}, [&] {
    learner.learn({.backend = device.backend(), .source = lesson.source, .sequences = texts, .sample_numbers = numbers},
                  parameters, gradient);
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
    gradients.add_to(parameters, gradient);
    clip_norm(gradient, norm_of(gradient), std::numeric_limits<double>::infinity());
    adam.step(parameters, gradient, 1e-3);
  });
}

const Family kTraining{[](Device& device) {
  device.add("training_host/smollm2", host_part);
  const std::vector<int64_t> lengths = device.pick(std::vector<int64_t>{2048}, std::vector<int64_t>{4096, 16384});
  for (const int64_t tokens : lengths) {
    device.add(fmt::format("training_teach/reference/{}", tokens),
               [=](Device& on, Samples& samples) { teach(on, samples, tokens); });
    device.add(fmt::format("training_step_wg_kv/reference/{}", tokens), [=](Device& on, Samples& samples) {
      WriteGateTraining learner(1.5, {.window = kWindow, .threshold = 0.1F}, {}, "bench");
      step(on, samples, tokens, learner);
    });
    device.add(fmt::format("training_step_retention/reference/{}", tokens), [=](Device& on, Samples& samples) {
      RetentionTraining learner({}, "bench");
      step(on, samples, tokens, learner);
    });
  }
}};

}  // namespace
}  // namespace kv::bench
