#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/add.h"
#include "kernels/embed.h"
#include "kernels/mix_heads.h"
#include "kernels/random_normal.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/row_cosine.h"
#include "kernels/row_distance.h"
#include "kernels/silu_mul.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// Ops that read or write every value once: the reference model's sizes on the CPU, Llama-3.1-8B's else.

namespace kv::bench {
namespace {

struct Model {
  int64_t tokens, width, intermediate, vocab;
  int heads, head_dim;
};
constexpr Model kReference{4096, 384, 1024, 8192, 8, 64};
constexpr Model kLlama{8192, 4096, 14336, 128256, 32, 128};

Model model_of(const Device& device) { return device.pick(kReference, kLlama); }

double bytes(const Device& device, int64_t activations) {
  return device.activation() * static_cast<double>(activations);
}

struct Rows {
  int64_t count, width;
};

void rms_norm(Device& device, Samples& samples, const Rows& rows) {
  Backend& backend = device.backend();
  const int64_t count = rows.count * rows.width;
  const Tensor input = random_activations(backend, count, 1), weight = random_activations(backend, rows.width, 2);
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 2 * count), .flops = 4.0 * static_cast<double>(count)}, [&] {
    backend.rms_norm({.input = input.ref(),
                      .weight = weight.ref(),
                      .output = output.ref(),
                      .rows = rows.count,
                      .width = rows.width});
  });
}

// Of a norm beside a residual stream, whose gradient is added.
void rms_norm_backward(Device& device, Samples& samples, const Rows& rows) {
  Backend& backend = device.backend();
  const int64_t count = rows.count * rows.width;
  const Tensor output_gradient = random_activations(backend, count, 1), input = random_activations(backend, count, 2);
  const Tensor weight = random_activations(backend, rows.width, 3);
  Tensor gradient = random_activations(backend, count, 4);
  samples.take({.bytes = bytes(device, 4 * count), .flops = 10.0 * static_cast<double>(count)}, [&] {
    backend.rms_norm_backward({.output_gradient = output_gradient.ref(),
                               .input = input.ref(),
                               .weight = weight.ref(),
                               .addend = gradient.ref(),
                               .input_gradient = gradient.ref(),
                               .rows = rows.count,
                               .width = rows.width});
  });
}

void rope(Device& device, Samples& samples, const Model& model) {
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.heads * model.head_dim;
  const Tensor input = random_activations(backend, count, 1), positions = counting(backend, model.tokens);
  const Tensor inv_freq = upload(backend, std::vector<float>(static_cast<size_t>(model.head_dim / 2), 0.1f));
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 2 * count), .flops = 3.0 * static_cast<double>(count)}, [&] {
    backend.rope({.vectors = {{.input = input.ref(), .output = output.ref(), .heads = model.heads}},
                  .angles = {.positions = positions.ref().as<int32_t>(),
                             .inv_freq = inv_freq.ref().as<float>(),
                             .tokens = model.tokens,
                             .head_dim = model.head_dim}});
  });
}

// Queries and a quarter as many keys, each head with a norm before.
struct NormedHeads {
  NormedHeads(Backend& backend, const Model& model)
      : heads{model.heads, std::max(1, model.heads / 4)},
        positions(counting(backend, model.tokens)),
        inv_freq(upload(backend, std::vector<float>(static_cast<size_t>(model.head_dim / 2), 0.1f))),
        norm(random_activations(backend, model.head_dim, 3)) {
    for (size_t v = 0; v < 2; ++v) {
      const int64_t count = model.tokens * heads[v] * model.head_dim;
      inputs.push_back(random_activations(backend, count, 1 + v));
      outputs.push_back(random_activations(backend, count, 4 + v));
      all += count;
    }
    angles = {.positions = positions.ref().as<int32_t>(),
              .inv_freq = inv_freq.ref().as<float>(),
              .tokens = model.tokens,
              .head_dim = model.head_dim};
  }

  int heads[2];
  Tensor positions, inv_freq, norm;
  std::vector<Tensor> inputs, outputs;
  int64_t all = 0;  // numbers
  RopeAngles angles;
};

void rope_after_norms(Device& device, Samples& samples, const Model& model) {
  NormedHeads of(device.backend(), model);
  RopeArgs args{.angles = of.angles};
  for (size_t v = 0; v < 2; ++v) {
    args.vectors[v] = {.input = of.inputs[v].ref(),
                       .norm = of.norm.ref(),
                       .normed = of.inputs[v].ref(),
                       .output = of.outputs[v].ref(),
                       .heads = of.heads[v]};
  }
  samples.take({.bytes = bytes(device, 3 * of.all), .flops = 7.0 * static_cast<double>(of.all)},
               [&] { device.backend().rope(args); });
}

void rope_backward_before_norms(Device& device, Samples& samples, const Model& model) {
  NormedHeads of(device.backend(), model);
  RopeBackwardArgs args{.angles = of.angles};
  for (size_t v = 0; v < 2; ++v) {
    args.vectors[v] = {.output_gradient = of.outputs[v].ref(),
                       .norm = of.norm.ref(),
                       .input = of.inputs[v].ref(),
                       .input_gradient = of.outputs[v].ref(),
                       .heads = of.heads[v]};
  }
  samples.take({.bytes = bytes(device, 3 * of.all), .flops = 13.0 * static_cast<double>(of.all)},
               [&] { device.backend().rope_backward(args); });
}

void silu_mul(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.intermediate;
  const Tensor gate = random_activations(backend, count, 1), up = random_activations(backend, count, 2);
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 3 * count), .flops = 4.0 * static_cast<double>(count)},
               [&] { backend.silu_mul({.gate = gate.ref(), .up = up.ref(), .output = output.ref(), .count = count}); });
}

void silu_mul_backward(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.intermediate;
  const Tensor output_gradient = random_activations(backend, count, 1);
  const Tensor gate = random_activations(backend, count, 2), up = random_activations(backend, count, 3);
  Tensor gate_gradient(backend, backend.activation_type(), count);
  Tensor up_gradient(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 5 * count), .flops = 10.0 * static_cast<double>(count)}, [&] {
    backend.silu_mul_backward({.output_gradient = output_gradient.ref(),
                               .gate = gate.ref(),
                               .up = up.ref(),
                               .gate_gradient = gate_gradient.ref(),
                               .up_gradient = up_gradient.ref(),
                               .count = count});
  });
}

void add(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor first = random_activations(backend, count, 1), second = random_activations(backend, count, 2);
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 3 * count), .flops = static_cast<double>(count)}, [&] {
    backend.add({.first = first.ref(), .second = second.ref(), .output = output.ref(), .count = count});
  });
}

constexpr int kGroup = 4;  // query heads a KV head

void mix_heads(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.heads * model.head_dim;
  const Tensor first = random_activations(backend, count, 1), second = random_activations(backend, count, 2);
  const Tensor shares = upload(backend, std::vector<float>(static_cast<size_t>(model.heads / kGroup), 0.25f));
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 3 * count), .flops = 3.0 * static_cast<double>(count)}, [&] {
    backend.mix_heads({.first = first.ref(),
                       .second = second.ref(),
                       .shares = shares.ref().as<float>(),
                       .output = output.ref(),
                       .tokens = model.tokens,
                       .q_heads = model.heads,
                       .kv_heads = model.heads / kGroup,
                       .head_dim = model.head_dim});
  });
}

void mix_heads_backward(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.heads * model.head_dim;
  const Tensor first = random_activations(backend, count, 1), second = random_activations(backend, count, 2);
  const Tensor output_gradient = random_activations(backend, count, 3);
  const Tensor shares = upload(backend, std::vector<float>(static_cast<size_t>(model.heads / kGroup), 0.25f));
  Tensor share_gradient = upload(backend, std::vector<float>(static_cast<size_t>(model.heads / kGroup), 0.0f));
  Tensor first_gradient(backend, backend.activation_type(), count);
  Tensor second_gradient(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 5 * count), .flops = 5.0 * static_cast<double>(count)}, [&] {
    backend.mix_heads_backward({.first = first.ref(),
                                .second = second.ref(),
                                .shares = shares.ref().as<float>(),
                                .output_gradient = output_gradient.ref(),
                                .first_gradient = first_gradient.ref(),
                                .second_gradient = second_gradient.ref(),
                                .share_gradient = share_gradient.ref().as<float>(),
                                .tokens = model.tokens,
                                .q_heads = model.heads,
                                .kv_heads = model.heads / kGroup,
                                .head_dim = model.head_dim});
  });
}

void embed(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor table = random_activations(backend, model.vocab * model.width, 1), ids = counting(backend, model.tokens);
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, 2 * count)}, [&] {
    backend.embed({.table = table.ref(),
                   .ids = ids.ref().as<int32_t>(),
                   .output = output.ref(),
                   .rows = model.tokens,
                   .width = model.width});
  });
}

void row_cosine(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor a = random_activations(backend, count, 1), b = random_activations(backend, count, 2);
  Tensor cosine(backend, DType::kF32, model.tokens);
  samples.take({.bytes = bytes(device, 2 * count), .flops = 6.0 * static_cast<double>(count)}, [&] {
    backend.row_cosine(
        {.a = a.ref(), .b = b.ref(), .cosine = cosine.ref().as<float>(), .rows = model.tokens, .width = model.width});
  });
}

void row_distance(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  const Tensor a = random_activations(backend, count, 1), b = random_activations(backend, count, 2);
  Tensor distance(backend, DType::kF32, model.tokens), length(backend, DType::kF32, model.tokens);
  samples.take({.bytes = bytes(device, 2 * count), .flops = 5.0 * static_cast<double>(count)}, [&] {
    backend.row_distance({.a = a.ref(),
                          .b = b.ref(),
                          .distance = distance.ref().as<float>(),
                          .length = length.ref().as<float>(),
                          .rows = model.tokens,
                          .width = model.width});
  });
}

void random_normal(Device& device, Samples& samples) {
  const Model model = model_of(device);
  Backend& backend = device.backend();
  const int64_t count = model.tokens * model.width;
  Tensor output(backend, backend.activation_type(), count);
  samples.take({.bytes = bytes(device, count)},
               [&] { backend.random_normal({.output = output.ref(), .count = count, .seed = 1}); });
}

const Family kElementwise{[](Device& device) {
  const Model model = model_of(device);
  // Llama's, and where a small model trains: hidden states, and each head's own vectors.
  std::vector<Rows> norms = {{model.tokens, model.width}};
  std::vector<Model> rotated = {model};
  if (!device.is_cpu()) {
    norms.insert(norms.end(), {{32768, kReference.head_dim}, {4096, 576}});
    rotated.push_back(kReference);
  }
  for (const Rows& rows : norms) {
    device.add(fmt::format("rms_norm/{}x{}", rows.count, rows.width),
               [rows](Device& on, Samples& samples) { rms_norm(on, samples, rows); });
    device.add(fmt::format("rms_norm_backward/{}x{}", rows.count, rows.width),
               [rows](Device& on, Samples& samples) { rms_norm_backward(on, samples, rows); });
  }
  for (const Model& of : rotated) {
    device.add(fmt::format("rope/{}x{}x{}", of.tokens, of.heads, of.head_dim),
               [of](Device& on, Samples& samples) { rope(on, samples, of); });
    device.add(fmt::format("rope/{}x({}+{})x{} norms", of.tokens, of.heads, std::max(1, of.heads / 4), of.head_dim),
               [of](Device& on, Samples& samples) { rope_after_norms(on, samples, of); });
    device.add(
        fmt::format("rope_backward/{}x({}+{})x{} norms", of.tokens, of.heads, std::max(1, of.heads / 4), of.head_dim),
        [of](Device& on, Samples& samples) { rope_backward_before_norms(on, samples, of); });
  }
  device.add(fmt::format("silu_mul/{}x{}", model.tokens, model.intermediate), silu_mul);
  device.add(fmt::format("silu_mul_backward/{}x{}", model.tokens, model.intermediate), silu_mul_backward);
  device.add(fmt::format("add/{}x{}", model.tokens, model.width), add);
  device.add(fmt::format("mix_heads/{}x{}x{}", model.tokens, model.heads, model.head_dim), mix_heads);
  device.add(fmt::format("mix_heads_backward/{}x{}x{}", model.tokens, model.heads, model.head_dim), mix_heads_backward);
  device.add(fmt::format("embed/{}x{}", model.tokens, model.width), embed);
  device.add(fmt::format("row_cosine/{}x{}", model.tokens, model.width), row_cosine);
  device.add(fmt::format("row_distance/{}x{}", model.tokens, model.width), row_distance);
  device.add(fmt::format("random_normal/{}x{}", model.tokens, model.width), random_normal);
}};

}  // namespace
}  // namespace kv::bench
