#include "kernels/biased_attention.h"

#include <string>
#include <vector>

#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// Attention in training, forward and backward, of one sequence.

namespace kv::bench {
namespace {

struct Shape {
  std::string name;
  int32_t count;
  int head_dim;
  KeyBias::Form form = KeyBias::Form::kOutsideWindow;
};

// Causal pairs once, and so many products of 2·D each: two forward, five backward. `vectors` of a query are read or
// written, and of a key.
Work work_of(const Shape& shape, const Heads& heads, double activation, int products, double query_vectors,
             double key_vectors) {
  const double count = shape.count, pairs = 0.5 * count * (count + 1);
  return {.bytes = activation * shape.head_dim * count * (query_vectors * heads.query + key_vectors * heads.kv),
          .flops = 2.0 * products * shape.head_dim * heads.query * pairs};
}

class Operands {
 public:
  Operands(Device& device, const Shape& shape)
      : backend_(device.backend()),
        shape_(shape),
        heads_(heads_of(device)),
        queries_(random_activations(backend_, query_values(), 1)),
        keys_(random_activations(backend_, key_values(), 2)),
        values_(random_activations(backend_, key_values(), 3)),
        output_gradient_(random_activations(backend_, query_values(), 4)),
        biases_(random_floats(backend_, int64_t{shape.count} * heads_.kv, 5)),
        segments_(upload_segments(backend_, {{.count = shape.count}})),
        output_(backend_, backend_.activation_type(), query_values()),
        query_gradient_(backend_, backend_.activation_type(), query_values()),
        key_gradient_(backend_, backend_.activation_type(), key_values()),
        value_gradient_(backend_, backend_.activation_type(), key_values()),
        log_sums_(backend_, DType::kF32, int64_t{shape.count} * heads_.query),
        bias_gradient_(backend_, DType::kF32, int64_t{shape.count} * heads_.kv) {
    // Logarithms of gates and of retentions are not above 0; those of retentions are near it.
    std::vector<float> host(static_cast<size_t>(biases_.elements()));
    biases_.download(host.data(), biases_.bytes());
    const float size = shape.form == KeyBias::Form::kDistance ? -1e-3F : -1;
    for (float& b : host) b = size * b * b;
    biases_.upload(host.data(), biases_.bytes());
  }

  void forward() {
    backend_.biased_attention(
        {.attention = attention(), .output = output_.ref(), .log_sums = log_sums_.ref().as<float>()});
  }
  void backward(bool deterministic) {
    backend_.biased_attention_backward({.attention = attention(),
                                        .output = output_.ref(),
                                        .log_sums = log_sums_.ref().as<float>(),
                                        .output_gradient = output_gradient_.ref(),
                                        .query_gradient = query_gradient_.ref(),
                                        .key_gradient = key_gradient_.ref(),
                                        .value_gradient = value_gradient_.ref(),
                                        .bias_gradient = has_bias() ? bias_gradient_.ref().as<float>() : nullptr,
                                        .deterministic = deterministic});
  }

 private:
  int64_t query_values() const { return int64_t{shape_.count} * heads_.query * shape_.head_dim; }
  int64_t key_values() const { return int64_t{shape_.count} * heads_.kv * shape_.head_dim; }
  bool has_bias() const { return shape_.form != KeyBias::Form::kNone; }
  PackedAttention attention() const {
    return {.queries = queries_.ref(),
            .keys = keys_.ref(),
            .values = values_.ref(),
            .bias = {.form = shape_.form, .window = 256, .values = has_bias() ? biases_.ref().as<float>() : nullptr},
            .segments = segments_of(segments_),
            .segment_count = 1,
            .max_count = shape_.count,
            .tokens = shape_.count,
            .q_heads = heads_.query,
            .kv_heads = heads_.kv,
            .head_dim = shape_.head_dim,
            .scale = scale_of(shape_.head_dim)};
  }

  Backend& backend_;
  Shape shape_;
  Heads heads_;
  Tensor queries_, keys_, values_, output_gradient_, biases_, segments_;
  Tensor output_, query_gradient_, key_gradient_, value_gradient_, log_sums_, bias_gradient_;
};

constexpr int kK = 1024;

const std::vector<Shape> kCpu = {
    {"512 d64", 512, 64},
    {"2K d64", 2 * kK, 64},
    {"2K d64 none", 2 * kK, 64, KeyBias::Form::kNone},
    {"2K d64 distance", 2 * kK, 64, KeyBias::Form::kDistance},
    {"2K d128", 2 * kK, 128},
};
const std::vector<Shape> kCuda = {
    {"4K d64", 4 * kK, 64},
    {"8K d64", 8 * kK, 64},
    {"32K d64", 32 * kK, 64},
    {"1K d128", kK, 128},
    {"4K d128", 4 * kK, 128},
    {"8K d128", 8 * kK, 128},
    {"8K d128 none", 8 * kK, 128, KeyBias::Form::kNone},
    {"8K d128 distance", 8 * kK, 128, KeyBias::Form::kDistance},
    {"32K d128", 32 * kK, 128},
};

const Family kBiasedAttention{[](Device& device) {
  for (const Shape& shape : device.pick(kCpu, kCuda)) {
    device.add("biased_attention/" + shape.name, [shape](Device& on, Samples& samples) {
      Operands operands(on, shape);
      samples.take(work_of(shape, heads_of(on), on.activation(), 2, 2, 2), [&] { operands.forward(); });
    });
    const auto add_backward = [&](const std::string& name, bool deterministic) {
      device.add(name + shape.name, [shape, deterministic](Device& on, Samples& samples) {
        Operands operands(on, shape);
        operands.forward();
        samples.take(work_of(shape, heads_of(on), on.activation(), 5, 4, 4), [&] { operands.backward(deterministic); });
      });
    };
    add_backward("biased_attention_backward/", true);
    if (!device.is_cpu()) add_backward("biased_attention_backward_any_order/", false);
  }
}};

}  // namespace
}  // namespace kv::bench
