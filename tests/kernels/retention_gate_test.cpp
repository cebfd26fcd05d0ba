#include "kernels/retention_gate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "kernels/backend.h"
#include "sim/io/safetensors.h"
#include "tests/ref/retention_gate.h"
#include "tests/support/close.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RetentionGate);

enum class Form : uint8_t { kOneLayer, kTwoLayers, kEmbeddingsByHead };

struct Shape {
  int64_t tokens;
  int64_t width;
  int kv_heads;
  int hidden;
  Form form;

  bool is_deep() const { return form != Form::kOneLayer; }
  int embeddings() const { return form == Form::kEmbeddingsByHead ? kv_heads : 1; }
};

// Tokens around the sizes of tiles and chunks; widths and units of round and of no round numbers.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const Form form : {Form::kOneLayer, Form::kTwoLayers, Form::kEmbeddingsByHead}) {
    for (const Shape& shape : {Shape{0, 16, 2, 8, form},
                               {1, 1, 1, 1, form},
                               {1, 64, 3, 16, form},
                               {3, 20, 8, 9, form},
                               {63, 24, 2, 32, form},
                               {65, 96, 3, 64, form},
                               {17, 576, 3, 65, form},
                               {70, 200, 5, 40, form},
                               {1025, 8, 2, 8, form},
                               {1031, 16, 4, 3, form}}) {
      all.push_back(shape);
    }
  }
  all.push_back({70, 576, 9, 64, Form::kEmbeddingsByHead});  // more panels of inputs than a GPU's ring has places
  all.push_back({33, 64, 64, 8, Form::kTwoLayers});
  all.push_back({70, 384, 8, 512, Form::kTwoLayers});
  all.push_back({4113, 16, 2, 8, Form::kTwoLayers});  // more than a GPU's chunk
  return all;
}

testing::Message described(const Shape& shape) {
  return testing::Message() << shape.tokens << " tokens of width " << shape.width << ", " << shape.kv_heads
                            << " heads, " << shape.hidden << " units, form " << static_cast<int>(shape.form);
}

std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Of everything that the op reads, the names of its struct.
struct Parameters {
  std::vector<float> input_weights, input_bias, hidden_weights, hidden_bias, output_weights, output_bias;
  bool operator==(const Parameters&) const = default;
  std::vector<std::vector<float>*> all() {
    return {&input_weights, &input_bias, &hidden_weights, &hidden_bias, &output_weights, &output_bias};
  }
};

struct Gradients {
  Parameters of;
  std::vector<float> inputs;
  bool operator==(const Gradients&) const = default;
};

// Weights that leave sums of about 1, so that SiLU bends, and gates from 0 to so near 1 that log β alone tells.
class Problem {
 public:
  Problem(const Backend& backend, const Shape& shape) : shape_(shape) {
    const auto hidden = static_cast<size_t>(shape.hidden), width = static_cast<size_t>(shape.width);
    const auto heads = static_cast<size_t>(shape.kv_heads), embeddings = static_cast<size_t>(shape.embeddings());
    const auto drawn = [](size_t count, size_t terms, uint32_t seed) {
      std::vector<float> values = ref::random_values(count, seed);
      for (float& value : values) value *= 2 / std::sqrt(static_cast<float>(terms));
      return values;
    };
    inputs = ref::rounded(backend, ref::random_values(static_cast<size_t>(shape.tokens) * width, 1));
    of_.input_weights = ref::rounded(backend, drawn(hidden * width, width, 2));
    of_.input_bias = drawn(hidden, 4, 3);
    if (shape.is_deep()) {
      of_.hidden_weights = ref::rounded(backend, drawn(embeddings * hidden * hidden, hidden, 4));
      of_.hidden_bias = drawn(embeddings * hidden, 4, 5);
    }
    of_.output_weights = drawn(heads * hidden, hidden, 6);
    for (size_t head = 0; head < heads; ++head) {
      of_.output_bias.push_back(head % 3 == 2 ? 18.0F : head % 3 == 1 ? -4.0F : 3.0F);
    }
    log_retention_gradient = ref::random_values(static_cast<size_t>(shape.tokens) * heads, 7);
    other_gradient = ref::random_values(log_retention_gradient.size(), 8);
  }

  ref::RetentionGate reference(const Backend& backend) const {
    return {.kv_heads = shape_.kv_heads,
            .embeddings = shape_.embeddings(),
            .input_weights = doubles(of_.input_weights),
            .input_bias = doubles(of_.input_bias),
            .hidden_weights = doubles(of_.hidden_weights),
            .hidden_bias = doubles(of_.hidden_bias),
            .output_weights = doubles(of_.output_weights),
            .output_bias = doubles(of_.output_bias),
            .stored = [&](double x) -> double { return ref::rounded(backend, {static_cast<float>(x)})[0]; }};
  }
  std::vector<double> input(int64_t token) const {
    return doubles(ref::slice(inputs, token * shape_.width, shape_.width));
  }

  std::vector<float> run(Backend& backend) const {
    On on(backend, *this);
    backend.retention_gate(on.args);
    backend.synchronize();
    return ref::download_array<float>(on.log_retention);
  }

  // `log_retention` as run() has left it.
  Gradients backward(Backend& backend, const std::vector<float>& log_retention, bool asks_inputs = true) const {
    On on(backend, *this);
    on.log_retention = ref::upload_array(backend, log_retention);
    on.args.log_retention = ref::data_of<float>(on.log_retention);
    Tensor by = ref::upload_array(backend, log_retention_gradient);
    Tensor other = ref::upload_array(backend, other_gradient);
    Gradients got{of_, inputs};
    std::vector<Tensor> gradients;
    for (std::vector<float>* values : got.of.all()) {
      std::fill(values->begin(), values->end(), start);
      gradients.push_back(ref::upload_array(backend, *values));
    }
    std::fill(got.inputs.begin(), got.inputs.end(), start);
    Tensor input_gradient = ref::upload_activations(backend, got.inputs);
    backend.retention_gate_backward(
        {.forward = on.args,
         .log_retention_gradient = ref::data_of<float>(by),
         .other_gradient = has_other ? ref::data_of<float>(other) : nullptr,
         .input_gradient = asks_inputs ? input_gradient.ref() : Ref{},
         .input_weight_gradient = ref::data_of<float>(gradients[0]),
         .input_bias_gradient = ref::data_of<float>(gradients[1]),
         .hidden_weight_gradient = shape_.is_deep() ? ref::data_of<float>(gradients[2]) : nullptr,
         .hidden_bias_gradient = shape_.is_deep() ? ref::data_of<float>(gradients[3]) : nullptr,
         .output_weight_gradient = ref::data_of<float>(gradients[4]),
         .output_bias_gradient = ref::data_of<float>(gradients[5])});
    backend.synchronize();
    for (size_t i = 0; i < gradients.size(); ++i) *got.of.all()[i] = ref::download_array<float>(gradients[i]);
    got.inputs = ref::download_activations(input_gradient);
    return got;
  }

  // All gates are as near 1 as those of the released checkpoints at their beginning.
  void open() { std::fill(of_.output_bias.begin(), of_.output_bias.end(), 18.0F); }

  // Of log_retention, by all losses.
  double gradient(int64_t at) const {
    const auto i = static_cast<size_t>(at);
    return double{log_retention_gradient[i]} + (has_other ? other_gradient[i] : 0);
  }

  std::vector<float> inputs, log_retention_gradient, other_gradient;
  bool has_other = true;
  float start = 0.5F;  // gradients are added to it

 private:
  // Everything on the backend, while the op runs; three gates beyond the last are nobody's.
  struct On {
    On(Backend& backend, const Problem& problem)
        : inputs(ref::upload_activations(backend, problem.inputs)),
          input_weights(ref::upload_activations(backend, problem.of_.input_weights)),
          hidden_weights(ref::upload_activations(backend, problem.of_.hidden_weights)),
          input_bias(ref::upload_array(backend, problem.of_.input_bias)),
          hidden_bias(ref::upload_array(backend, problem.of_.hidden_bias)),
          output_weights(ref::upload_array(backend, problem.of_.output_weights)),
          output_bias(ref::upload_array(backend, problem.of_.output_bias)),
          log_retention(backend, DType::kF32, problem.shape_.tokens * problem.shape_.kv_heads + 3) {
      const Shape& shape = problem.shape_;
      const bool deep = shape.is_deep();
      args = {.inputs = inputs.ref(),
              .tokens = shape.tokens,
              .width = shape.width,
              .kv_heads = shape.kv_heads,
              .hidden = shape.hidden,
              .input_weights = input_weights.ref(),
              .input_bias = ref::data_of<float>(input_bias),
              .embeddings = shape.embeddings(),
              .hidden_weights = deep ? ConstRef(hidden_weights.ref()) : ConstRef{},
              .hidden_bias = deep ? ref::data_of<float>(hidden_bias) : nullptr,
              .output_weights = ref::data_of<float>(output_weights),
              .output_bias = ref::data_of<float>(output_bias),
              .log_retention = ref::data_of<float>(log_retention)};
    }
    Tensor inputs, input_weights, hidden_weights, input_bias, hidden_bias, output_weights, output_bias, log_retention;
    RetentionGateArgs args;
  };

  Shape shape_;
  Parameters of_;
};

// By how much a logit may be off. Chains of sums are off by the roundings of their partial sums, which are, like a
// walk, far below the sum of all magnitudes: four roundings of it. Where units are stored in 16 bits one in some
// hundred may fall to the other side of a rounding: a sixteenth of what all would.
double logit_error(const Backend& backend, const ref::Bounded& logit) {
  const double stored = backend.activation_type() == DType::kF32 ? 0 : ref::activation_epsilon(backend) / 16;
  return logit.magnitude * (4 * std::numeric_limits<float>::epsilon() + stored);
}

TEST_P(RetentionGate, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(described(shape));
    const Problem problem(*backend, shape);
    const std::vector<float> got = problem.run(*backend);
    const ref::RetentionGate gate = problem.reference(*backend);
    for (int64_t token = 0; token < shape.tokens; ++token) {
      const std::vector<ref::Bounded> logits = gate.logits(problem.input(token));
      for (int head = 0; head < shape.kv_heads; ++head) {
        const ref::Bounded& z = logits[static_cast<size_t>(head)];
        const double want = ref::log_sigmoid(z.value);
        // 1 − β of the logit's error, relative to which β may be near 1, and the roundings of exp, log1p and the sum.
        const double allowed =
            -std::expm1(want) * logit_error(*backend, z) - 3 * std::numeric_limits<float>::epsilon() * want;
        ASSERT_NEAR(got[static_cast<size_t>(token * shape.kv_heads + head)], want, allowed)
            << "token " << token << ", head " << head;
      }
    }
    ref::expect_untouched(got, shape.tokens * shape.kv_heads, std::ssize(got));
  }
}

// On the CPU, where activations are not rounded: the stored gates are those of TRIM-KV's released class, in double
// (tests/data/gates/make.py).
TEST(RetentionGateOnTheCpu, OfOneLayerIsTrimKvs) {
  const std::unique_ptr<Backend> backend = make_backend("cpu");
  const SafetensorsFile file = SafetensorsFile::open(ref::source_path("tests/data/gates/one_layer.safetensors"));
  const std::vector<int64_t> shape = file.require("inputs").shape;
  const auto upload = [&](const char* name) { return ref::upload_array(*backend, file.read_f32(file.require(name))); };
  const Tensor inputs = upload("inputs"), input_weights = upload("linear1.weight");
  Tensor input_bias = upload("linear1.bias"), output_weights = upload("linear2.weight"), output_bias = upload("bias");
  const std::vector<float> want = file.read_f32(file.require("log_beta"));
  Tensor got(*backend, DType::kF32, std::ssize(want));
  backend->retention_gate({.inputs = inputs.ref(),
                           .tokens = shape[0],
                           .width = shape[1],
                           .kv_heads = static_cast<int>(file.require("bias").shape[0]),
                           .hidden = static_cast<int>(file.require("linear1.bias").shape[0]),
                           .input_weights = input_weights.ref(),
                           .input_bias = ref::data_of<float>(input_bias),
                           .output_weights = ref::data_of<float>(output_weights),
                           .output_bias = ref::data_of<float>(output_bias),
                           .log_retention = ref::data_of<float>(got)});
  const std::vector<float> gates = ref::download_array<float>(got);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(gates[i], want[i], -4e-6F * want[i]) << i;
}

// Gradient by gradient within its roundings: those of the logit's own gradient and of a chain of two layers (8), and of
// each gradient on its way that is stored as activations are, and of units (4).
void expect_gradients(const Backend& backend, const std::vector<float>& got, std::vector<ref::Bounded> want,
                      float start) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(
        ref::is_close(got[i], want[i].value + start,
                      {.roundings = 8 + 4 * ref::storage_roundings(backend), .magnitude = want[i].magnitude + start}))
        << "element " << i;
  }
}

void expect_backward(Backend& backend, const Shape& shape, const Problem& problem) {
  const std::vector<float> log_retention = problem.run(backend);
  const Gradients got = problem.backward(backend, log_retention);
  const ref::RetentionGate gate = problem.reference(backend);
  ref::RetentionGradients want(gate);
  std::vector<ref::Bounded> want_inputs;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    std::vector<double> logit_gradient;
    for (int64_t at = token * shape.kv_heads; at < (token + 1) * shape.kv_heads; ++at) {
      logit_gradient.push_back(-std::expm1(double{log_retention[static_cast<size_t>(at)]}) * problem.gradient(at));
    }
    std::vector<ref::Bounded> of_token(static_cast<size_t>(shape.width));
    want.add(gate, problem.input(token), logit_gradient, of_token);
    want_inputs.insert(want_inputs.end(), of_token.begin(), of_token.end());
  }
  expect_gradients(backend, got.of.input_weights, want.input_weights, problem.start);
  expect_gradients(backend, got.of.input_bias, want.input_bias, problem.start);
  expect_gradients(backend, got.of.hidden_weights, want.hidden_weights, problem.start);
  expect_gradients(backend, got.of.hidden_bias, want.hidden_bias, problem.start);
  expect_gradients(backend, got.of.output_weights, want.output_weights, problem.start);
  expect_gradients(backend, got.of.output_bias, want.output_bias, problem.start);
  expect_gradients(backend, got.inputs, want_inputs, problem.start);
}

TEST_P(RetentionGate, BackwardAgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(described(shape));
    Problem problem(*backend, shape);
    for (const bool has_other : {false, true}) {
      problem.has_other = has_other;
      expect_backward(*backend, shape, problem);
    }
  }
}

// Where β is so near 1 that it rounds to it, 1 − β of about 1.5e-8 is all that a gradient has.
TEST_P(RetentionGate, BackwardKeepsWhatIsLeftNearOne) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Form form : {Form::kOneLayer, Form::kTwoLayers, Form::kEmbeddingsByHead}) {
    const Shape shape{70, 24, 3, 16, form};
    SCOPED_TRACE(described(shape));
    Problem problem(*backend, shape);
    problem.open();
    problem.start = 0;
    for (const float log_beta : ref::slice(problem.run(*backend), 0, shape.tokens * shape.kv_heads)) {
      EXPECT_LT(log_beta, -1e-11F);
      EXPECT_GT(log_beta, -1e-5F);
    }
    expect_backward(*backend, shape, problem);
  }
}

// The parameters' gradients do not depend on whether somebody asks for the inputs', which then stay as they are.
TEST_P(RetentionGate, InputsNeedNoGradient) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Form form : {Form::kOneLayer, Form::kTwoLayers}) {
    const Problem problem(*backend, {65, 24, 3, 16, form});
    const std::vector<float> log_retention = problem.run(*backend);
    Gradients with = problem.backward(*backend, log_retention);
    const Gradients without = problem.backward(*backend, log_retention, false);
    with.inputs.assign(with.inputs.size(), problem.start);
    EXPECT_EQ(with, without);
  }
}

TEST(RetentionGateReference, BackwardIsTheSlopeOfForward) {
  const auto backend = ref::try_backend("cpu");
  for (const Form form : {Form::kOneLayer, Form::kTwoLayers, Form::kEmbeddingsByHead}) {
    const Shape shape{2, 3, 2, 4, form};
    const Problem problem(*backend, shape);
    ref::RetentionGate gate = problem.reference(*backend);
    gate.stored = [](double x) { return x; };
    const auto loss = [&](std::span<const double> x) {
      double sum = 0;
      const std::vector<ref::Bounded> logits = gate.logits(x);
      for (size_t head = 0; head < 2; ++head) {
        sum += problem.gradient(static_cast<int64_t>(head)) * ref::log_sigmoid(logits[head].value);
      }
      return sum;
    };
    std::vector<double> x = problem.input(0), logit_gradient;
    const std::vector<ref::Bounded> logits = gate.logits(x);
    for (size_t head = 0; head < 2; ++head) {
      logit_gradient.push_back(-std::expm1(ref::log_sigmoid(logits[head].value)) *
                               problem.gradient(static_cast<int64_t>(head)));
    }
    ref::RetentionGradients got(gate);
    std::vector<ref::Bounded> got_inputs(3);
    got.add(gate, x, logit_gradient, got_inputs);
    const auto expect_slopes = [&](std::vector<double>& of, const std::vector<ref::Bounded>& gradient) {
      ASSERT_EQ(of.size(), gradient.size());
      for (size_t i = 0; i < of.size(); ++i) {
        constexpr double kStep = 1e-4;
        const double at = of[i];
        of[i] = at + kStep;
        const double ahead = loss(x);
        of[i] = at - kStep;
        const double behind = loss(x);
        of[i] = at;
        // The step squared, of third derivatives below some tens, and the rounding of losses of about 10 over the step.
        EXPECT_NEAR(gradient[i].value, (ahead - behind) / (2 * kStep), 50 * kStep * kStep + 10 * 1e-15 / kStep);
      }
    };
    expect_slopes(gate.input_weights, got.input_weights);
    expect_slopes(gate.input_bias, got.input_bias);
    expect_slopes(gate.hidden_weights, got.hidden_weights);
    expect_slopes(gate.hidden_bias, got.hidden_bias);
    expect_slopes(gate.output_weights, got.output_weights);
    expect_slopes(gate.output_bias, got.output_bias);
    expect_slopes(x, got_inputs);
  }
}

// On the CPU a gate is its token's own to the last bit: neither those before it nor how many there are change it.
TEST(RetentionGateOnTheCpu, DoesNotDependOnTheBlock) {
  const auto backend = ref::try_backend("cpu");
  const Problem many(*backend, {1100, 40, 2, 65, Form::kTwoLayers});
  const std::vector<float> all = many.run(*backend);
  for (const int64_t tokens : {1, 17, 64, 863}) {
    Problem late(*backend, {tokens, 40, 2, 65, Form::kTwoLayers});
    late.inputs = ref::slice(many.inputs, (1100 - tokens) * 40, tokens * 40);
    EXPECT_EQ(ref::slice(all, (1100 - tokens) * 2, tokens * 2), ref::slice(late.run(*backend), 0, tokens * 2));
  }
}

TEST(RetentionGateThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  for (const Form form : {Form::kOneLayer, Form::kTwoLayers, Form::kEmbeddingsByHead}) {
    const Problem problem(*backend, {1100, 300, 3, 130, form});
    const auto on_threads = [&](int count) {
      const ref::Threads threads(count);
      const std::vector<float> log_retention = problem.run(*backend);
      return std::pair(ref::slice(log_retention, 0, 1100 * 3), problem.backward(*backend, log_retention));
    };
    EXPECT_EQ(on_threads(1), on_threads(2));
  }
}

}  // namespace
}  // namespace kv
