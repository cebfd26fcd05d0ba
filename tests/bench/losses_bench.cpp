#include <fmt/format.h>

#include "kernels/capacity_hinge.h"
#include "kernels/gate_sparsity.h"
#include "kernels/hidden_distance.h"
#include "kernels/occupancy.h"
#include "kernels/vocabulary_loss.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What gates learn from at a step of one sequence: the reference model's sizes on the CPU, else Llama-3.1-8B's.

namespace kv::bench {
namespace {

struct Model {
  int64_t tokens, width, vocab;
  int64_t layers;
  int kv_heads;
};
constexpr Model kReference{4096, 384, 8192, 8, 4};
constexpr Model kLlama{8192, 4096, 128256, 32, 8};

Model model_of(const Device& device) { return device.pick(kReference, kLlama); }

// One sequence's numbers, each `value`.
class Sequence {
 public:
  Sequence(Device& device, float value)
      : segments_(upload_segments(device.backend(), {{.count = static_cast<int32_t>(model_of(device).tokens)}})) {
    const Model model = model_of(device);
    shape_ = {.segments = segments_of(segments_),
              .segment_count = 1,
              .max_count = model.tokens,
              .layers = model.layers,
              .tokens = model.tokens,
              .heads = model.kv_heads};
    values_ = upload(device.backend(), std::vector<float>(shape_.elements(), value));
    result_ = Tensor(device.backend(), DType::kF32, shape_.elements());
    result_.fill_zero();
  }

  const TokenHeads& shape() const { return shape_; }
  double elements() const { return static_cast<double>(shape_.elements()); }
  // Every token with those after it.
  double pairs() const { return elements() * static_cast<double>(shape_.tokens + 1) / 2; }
  const float* values() const { return values_.ref().as<float>(); }
  float* result() { return result_.ref().as<float>(); }

 private:
  Tensor segments_, values_, result_;
  TokenHeads shape_;
};

constexpr float kLogBeta = -1e-3F;

// Its flops are a multiply-add a pair.
void occupancy(Device& device, Samples& samples) {
  Sequence sequence(device, kLogBeta);
  samples.take({.bytes = 12 * sequence.elements(), .flops = 2 * sequence.pairs()}, [&] {
    device.backend().occupancy(
        {.shape = sequence.shape(), .log_beta = sequence.values(), .occupancy = sequence.result()});
  });
}

void occupancy_backward(Device& device, Samples& samples) {
  Sequence sequence(device, kLogBeta);
  const Sequence slopes(device, 1);
  samples.take({.bytes = 16 * sequence.elements(), .flops = 4 * sequence.pairs()}, [&] {
    device.backend().occupancy_backward({.shape = sequence.shape(),
                                         .log_beta = sequence.values(),
                                         .slopes = slopes.values(),
                                         .gradient = sequence.result()});
  });
}

// Read twice, because the first time nobody knows how many are overfull.
void capacity_hinge(Device& device, Samples& samples) {
  Sequence sequence(device, 1000);
  Tensor loss(device.backend(), DType::kF32, 1), overfull(device.backend(), DType::kI32, 1);
  samples.take({.bytes = 12 * sequence.elements()}, [&] {
    device.backend().capacity_hinge({.shape = sequence.shape(),
                                     .occupancy = sequence.values(),
                                     .capacity = 512,
                                     .loss = loss.ref().as<float>(),
                                     .overfull = overfull.ref().as<int32_t>(),
                                     .gradient = sequence.result()});
  });
}

void gate_sparsity(Device& device, Samples& samples) {
  Sequence sequence(device, 0.5F);
  Tensor loss(device.backend(), DType::kF32, 1), admitted(device.backend(), DType::kI32, 1);
  samples.take({.bytes = 12 * sequence.elements()}, [&] {
    device.backend().gate_sparsity({.shape = sequence.shape(),
                                    .gates = sequence.values(),
                                    .window = 256,
                                    .loss = loss.ref().as<float>(),
                                    .admitted = admitted.ref().as<int32_t>(),
                                    .gradient = sequence.result()});
  });
}

void hidden_distance(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor student = random_activations(backend, count, 1), teacher = random_activations(backend, count, 2);
  Tensor loss(backend, DType::kF32, model.tokens), gradient(backend, backend.activation_type(), count);
  samples.take({.bytes = 3 * device.activation() * static_cast<double>(count)}, [&] {
    backend.hidden_distance({.student = student.ref(),
                             .teacher = teacher.ref(),
                             .loss = loss.ref().as<float>(),
                             .gradient = gradient.ref(),
                             .tokens = model.tokens,
                             .width = model.width});
  });
}

// Three products with the vocabulary.
void vocabulary_loss(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor student = random_activations(backend, count, 1), teacher = random_activations(backend, count, 2);
  const Tensor weight = random_activations(backend, model.vocab * model.width, 3);
  const Tensor targets = counting(backend, model.tokens);
  Tensor next_token(backend, DType::kF32, model.tokens), divergence(backend, DType::kF32, model.tokens);
  Tensor gradient(backend, backend.activation_type(), count);
  const auto vocab = static_cast<double>(model.vocab);
  const double products = static_cast<double>(count) * vocab;
  const double values = 3 * static_cast<double>(count) + vocab * static_cast<double>(model.width);
  samples.take({.bytes = device.activation() * values, .flops = 6 * products}, [&] {
    backend.vocabulary_loss({.student = student.ref(),
                             .teacher = teacher.ref(),
                             .weight = weight.ref(),
                             .targets = targets.ref().as<int32_t>(),
                             .next_token = next_token.ref().as<float>(),
                             .divergence = divergence.ref().as<float>(),
                             .gradient = gradient.ref(),
                             .tokens = model.tokens,
                             .width = model.width,
                             .vocab = model.vocab});
  });
}

const Family kLosses{[](Device& device) {
  const Model model = model_of(device);
  const std::string gates = fmt::format("{}x{}x{}", model.layers, model.tokens, model.kv_heads);
  device.add("occupancy/" + gates, occupancy);
  device.add("occupancy_backward/" + gates, occupancy_backward);
  device.add("capacity_hinge/" + gates, capacity_hinge);
  device.add("gate_sparsity/" + gates, gate_sparsity);
  device.add(fmt::format("hidden_distance/{}x{}", model.tokens, model.width), hidden_distance);
  device.add(fmt::format("vocabulary_loss/{}x{}x{}", model.tokens, model.width, model.vocab), vocabulary_loss);
}};

}  // namespace
}  // namespace kv::bench
