#include "kernels/write_gate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "tests/ref/write_gate.h"
#include "tests/support/backends.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, WriteGate);

struct Shape {
  int64_t tokens;
  int kv_heads;
  int head_dim;
  int hidden;
};
// Tokens that fill tiles and do not, few and many; hidden units of no round number, and so many that tiles of them take
// each other's places; heads without end.
const std::vector<Shape> kShapes = {
    {1, 1, 16, 8},     {17, 3, 16, 24},    {64, 2, 64, 96},    {130, 2, 64, 97},  {3, 8, 128, 192},  {70, 2, 128, 65},
    {1100, 1, 32, 48}, {1025, 2, 128, 70}, {257, 2, 16, 30},   {256, 1, 128, 64}, {260, 2, 64, 200}, {300, 1, 20, 40},
    {5, 2, 100, 70},   {258, 1, 100, 97},  {257, 1, 128, 500}, {290, 1, 64, 96},  {20, 2, 4, 5},     {240, 70, 16, 8}};

std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// What a problem's references read.
struct Doubles {
  Shape shape;
  std::vector<double> pre_rope_keys, keys, weights, bias, output_weights, output_bias;
  std::function<double(double)> stored;

  ref::GatedToken at(int64_t token, int64_t head) const {
    const auto part = [](const std::vector<double>& values, int64_t index, int64_t size) {
      return std::span(values).subspan(static_cast<size_t>(index * size), static_cast<size_t>(size));
    };
    const int64_t place = token * shape.kv_heads + head;
    return {.pre_rope_key = part(pre_rope_keys, place, shape.head_dim),
            .key = part(keys, place, shape.head_dim),
            .weights = part(weights, head, int64_t{2} * shape.hidden * shape.head_dim),
            .bias = part(bias, head, shape.hidden),
            .output_weights = part(output_weights, head, shape.hidden),
            .output_bias = output_bias[static_cast<size_t>(head)],
            .stored = stored};
  }
};

// Random keys of very different lengths, which norms take away, and weights that leave the gates all over [0, 1].
struct Problem {
  Problem(Backend& backend, const Shape& of) : shape(of) {
    const size_t keys_count = static_cast<size_t>(of.tokens * of.kv_heads * of.head_dim);
    const size_t units = static_cast<size_t>(of.kv_heads) * of.hidden;
    pre_rope_keys = ref::random_values(keys_count, 1);
    keys = ref::random_values(keys_count, 2);
    for (size_t i = 0; i < keys_count; ++i) {
      const auto token = static_cast<int64_t>(i) / (of.kv_heads * of.head_dim);
      pre_rope_keys[i] *= token % 3 == 0 ? 20.0F : 0.5F;
      keys[i] *= token % 5 == 0 ? 0.01F : 3.0F;
    }
    weights = ref::random_values(units * 2 * of.head_dim, 3);
    for (float& weight : weights) weight /= std::sqrt(static_cast<float>(of.head_dim));
    bias = ref::random_values(units, 4);
    output_weights = ref::random_values(units, 5);
    output_bias = ref::random_values(static_cast<size_t>(of.kv_heads), 6);
    pre_rope_keys = ref::rounded(backend, pre_rope_keys);
    keys = ref::rounded(backend, keys);
    weights = ref::rounded(backend, weights);
  }

  // So that many gates lie on either side of the clamp.
  void close() {
    for (float& bias : output_bias) bias -= 6;
  }

  int64_t gate_count() const { return shape.tokens * shape.kv_heads; }
  Doubles doubled(std::function<double(double)> stored) const {
    return {.shape = shape,
            .pre_rope_keys = doubles(pre_rope_keys),
            .keys = doubles(keys),
            .weights = doubles(weights),
            .bias = doubles(bias),
            .output_weights = doubles(output_weights),
            .output_bias = doubles(output_bias),
            .stored = std::move(stored)};
  }
  Doubles doubled(const Backend& backend) const {
    return doubled([&](double x) -> double { return ref::rounded(backend, {static_cast<float>(x)})[0]; });
  }

  Shape shape;
  std::vector<float> pre_rope_keys, keys, weights, bias, output_weights, output_bias;
};

// Behind every array lies what may be neither read, NaN, nor written.
constexpr int64_t kBeyond = 3;
std::vector<float> with_beyond(std::vector<float> values, float value) {
  values.insert(values.end(), kBeyond, value);
  return values;
}

// A problem in the backend's memory.
class Uploaded {
 public:
  Uploaded(Backend& backend, const Problem& problem)
      : shape_(problem.shape),
        pre_rope_keys_(ref::upload_activations(backend, with_beyond(problem.pre_rope_keys, NAN))),
        keys_(ref::upload_activations(backend, with_beyond(problem.keys, NAN))),
        weights_(ref::upload_activations(backend, with_beyond(problem.weights, NAN))),
        bias_(ref::upload_array(backend, with_beyond(problem.bias, NAN))),
        output_weights_(ref::upload_array(backend, with_beyond(problem.output_weights, NAN))),
        output_bias_(ref::upload_array(backend, with_beyond(problem.output_bias, NAN))) {}

  // Without a place for the result.
  WriteGateArgs args() {
    return {.pre_rope_keys = pre_rope_keys_.ref(),
            .keys = keys_.ref(),
            .tokens = shape_.tokens,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .hidden = shape_.hidden,
            .weights = weights_.ref(),
            .bias = ref::data_of<float>(bias_),
            .output_weights = ref::data_of<float>(output_weights_),
            .output_bias = ref::data_of<float>(output_bias_)};
  }

 private:
  Shape shape_;
  Tensor pre_rope_keys_, keys_, weights_, bias_, output_weights_, output_bias_;
};

ConstRef next_element(ConstRef from) {
  return {.data = static_cast<const char*>(from.data) + bytes_of(from.dtype), .dtype = from.dtype};
}

struct Gates {
  std::vector<float> gates, logs;
};
Gates run(Backend& backend, const Problem& problem, bool with_logs = false) {
  Uploaded uploaded(backend, problem);
  const std::vector<float> before(static_cast<size_t>(problem.gate_count() + kBeyond), -7);
  Tensor gates = ref::upload_array(backend, before), logs = ref::upload_array(backend, before);
  WriteGateArgs args = uploaded.args();
  args.gates = ref::data_of<float>(gates);
  args.log_gates = with_logs ? ref::data_of<float>(logs) : nullptr;
  backend.write_gate(args);
  return {ref::download_array<float>(gates), ref::download_array<float>(logs)};
}

// The roundings of a unit's 2 head_dim products, of weights up to 1/√head_dim and x of about 1, add up like steps of a
// walk to about √2, and the units' again; a gate moves by at most a quarter of what its logit does. Eight times the
// walk is seldom met. Where x is rounded to 16 bits a value may fall to the other side, which every unit sees: a
// weight's share of its last place, again a walk, four times.
double allowed(const Backend& backend, const Shape& shape) {
  const double products = 0.25 * 8 * std::sqrt(2.0 * shape.hidden) * 4 * std::numeric_limits<float>::epsilon();
  if (backend.activation_type() == DType::kF32) return products;
  return products +
         0.25 * 4 * std::sqrt(static_cast<double>(shape.hidden) / shape.head_dim) * ref::activation_epsilon(backend);
}

// Each layer has weights of its own. So many that on a card they are not all asked about at once, and more tokens than
// count as few.
TEST_P(WriteGate, OfSomeLayersAtOnceAreThoseOfEach) {
  KV_BACKEND_OR_SKIP(backend);
  struct Layers {
    int count;
    Shape of_each;
  };
  const std::vector<Layers> cases = {
      {32, {1, 8, 128, 192}}, {3, {17, 2, 16, 70}}, {700, {2, 7, 16, 8}}, {2, {260, 2, 64, 96}}};
  for (const auto& [layers, shape] : cases) {
    SCOPED_TRACE(::testing::Message() << layers << " layers of " << shape.tokens << " tokens");
    // As one layer of many heads, whose arrays are those of the layers one behind the other.
    const Problem all(*backend, {shape.tokens, layers * shape.kv_heads, shape.head_dim, shape.hidden});
    Uploaded uploaded(*backend, all);
    Tensor together(*backend, DType::kF32, all.gate_count()), apart(*backend, DType::kF32, all.gate_count());
    WriteGateArgs args = uploaded.args();
    args.layers = layers;
    args.kv_heads = shape.kv_heads;
    args.gates = ref::data_of<float>(together);
    backend->write_gate(args);
    args.gates = ref::data_of<float>(apart);
    for (int layer = 0; layer < layers; ++layer) {
      backend->write_gate(backend->activation_type() == DType::kF32 ? of_layer<float>(args, layer)
                                                                    : of_layer<uint16_t>(args, layer));
    }
    EXPECT_EQ(ref::download_array<float>(together), ref::download_array<float>(apart));
  }
}

TEST_P(WriteGate, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.tokens << " tokens, " << shape.kv_heads << " heads, dim "
                                      << shape.head_dim << ", " << shape.hidden << " units");
    const Problem problem(*backend, shape);
    const Doubles doubled = problem.doubled(*backend);
    const std::vector<float> got = run(*backend, problem).gates;
    double lowest = 1, highest = 0;
    for (int64_t token = 0; token < shape.tokens; ++token) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const double want = ref::write_gate(doubled.at(token, head));
        ASSERT_NEAR(got[static_cast<size_t>(token * shape.kv_heads + head)], want, allowed(*backend, shape))
            << "token " << token << ", head " << head;
        lowest = std::min(lowest, want), highest = std::max(highest, want);
      }
    }
    if (shape.tokens > 16) {
      EXPECT_GT(highest - lowest, 20 * allowed(*backend, shape)) << "nothing is told apart";
    }
    for (size_t i = got.size() - kBeyond; i < got.size(); ++i) EXPECT_EQ(got[i], -7);
  }
}

// A gate is its token's own: neither those before it in the block nor how many there are change a bit.
TEST_P(WriteGate, DoesNotDependOnTheBlock) {
  KV_BACKEND_OR_SKIP(backend);
  const Problem many(*backend, {1100, 2, 64, 97});
  const std::vector<float> all = run(*backend, many).gates;
  for (const int64_t tokens : {1, 17, 255, 256, 863}) {
    SCOPED_TRACE(tokens);
    Problem late = many;
    const int64_t first = many.shape.tokens - tokens, token = 2 * 64;
    for (std::vector<float>* keys : {&late.keys, &late.pre_rope_keys}) {
      keys->erase(keys->begin(), keys->begin() + first * token);
    }
    late.shape.tokens = tokens;
    EXPECT_EQ(ref::slice(all, first * 2, tokens * 2), ref::slice(run(*backend, late).gates, 0, tokens * 2));
  }
}

// Keys need not begin where words of memory do.
TEST_P(WriteGate, KeysMayBeginAnywhere) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : std::vector<Shape>{{3, 2, 128, 70}, {300, 2, 64, 97}}) {
    const Problem problem(*backend, shape);
    Problem moved = problem;
    for (std::vector<float>* keys : {&moved.keys, &moved.pre_rope_keys}) keys->insert(keys->begin(), NAN);
    Uploaded uploaded(*backend, moved);
    Tensor gates = ref::upload_array(*backend, std::vector<float>(static_cast<size_t>(problem.gate_count()), -7));
    WriteGateArgs args = uploaded.args();
    args.keys = next_element(args.keys);
    args.pre_rope_keys = next_element(args.pre_rope_keys);
    args.gates = ref::data_of<float>(gates);
    backend->write_gate(args);
    EXPECT_EQ(ref::download_array<float>(gates), ref::slice(run(*backend, problem).gates, 0, problem.gate_count()));
  }
}

TEST_P(WriteGate, NoTokensWriteNothing) {
  KV_BACKEND_OR_SKIP(backend);
  const Problem problem(*backend, {0, 2, 16, 8});
  EXPECT_EQ(run(*backend, problem).gates, std::vector<float>(kBeyond, -7));
}

// A logarithm is off by two units in the last place of itself, as the compiler's own and the card's are.
TEST_P(WriteGate, LogarithmsAreThoseOfTheGatesFromTheLeastOn) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    Problem problem(*backend, shape);
    problem.close();
    const auto [gates, logs] = run(*backend, problem, true);
    EXPECT_EQ(gates, run(*backend, problem).gates);
    int below = 0, above = 0;
    for (int64_t i = 0; i < problem.gate_count(); ++i) {
      const float gate = gates[i];
      const double want = std::log(static_cast<double>(std::max(gate, WriteGateArgs::kLeast)));
      ref::expect_close(logs[i], want, {.roundings = 2, .magnitude = std::abs(want)});
      (gate < WriteGateArgs::kLeast ? below : above) += 1;
    }
    if (shape.tokens >= 64) {
      EXPECT_GT(below, 0);
      EXPECT_GT(above, 0);
    }
    EXPECT_EQ(ref::slice(logs, problem.gate_count(), kBeyond), std::vector<float>(kBeyond, -7));
    EXPECT_EQ(run(*backend, problem).logs, std::vector<float>(logs.size(), -7)) << "not asked for";
  }
}

// Gradients as the op adds to them, each with what lies behind it.
struct Gradients {
  std::vector<float> pre_rope_keys, keys, weights, bias, output_weights, output_bias;
  bool operator==(const Gradients&) const = default;

  static Gradients all(const Problem& like, float value) {
    const auto fill = [&](const std::vector<float>& as) { return std::vector<float>(as.size() + kBeyond, value); };
    return {fill(like.pre_rope_keys), fill(like.keys),           fill(like.weights),
            fill(like.bias),          fill(like.output_weights), fill(like.output_bias)};
  }
};

// Exact in bf16, as are all gradients from the start.
constexpr float kStart = 0.25F;

struct Backward {
  // Gates are the forward's, as the reference has them.
  Backward(Backend& backend, const Shape& shape) : problem(backend, shape) {
    problem.close();
    const Doubles doubled = problem.doubled(backend);
    for (int64_t token = 0; token < shape.tokens; ++token) {
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        gates.push_back(static_cast<float>(ref::write_gate(doubled.at(token, head))));
      }
    }
    by_log = ref::random_values(gates.size(), 7);
    by_gate = ref::random_values(gates.size(), 8);
    for (float& gradient : by_gate) gradient *= 20;  // beside the logarithm's a closed gate's counts for little
  }

  Gradients run(Backend& backend) const {
    Uploaded uploaded(backend, problem);
    Tensor on_gates = ref::upload_array(backend, with_beyond(gates, NAN));
    const Tensor on_by_log = ref::upload_array(backend, with_beyond(by_log, NAN)),
                 on_by_gate = ref::upload_array(backend, with_beyond(by_gate, NAN));
    Gradients got = Gradients::all(problem, kStart);
    Tensor pre_rope_keys = ref::upload_activations(backend, got.pre_rope_keys),
           keys = ref::upload_activations(backend, got.keys), weights = ref::upload_array(backend, got.weights),
           bias = ref::upload_array(backend, got.bias), output_weights = ref::upload_array(backend, got.output_weights),
           output_bias = ref::upload_array(backend, got.output_bias);
    WriteGateArgs forward = uploaded.args();
    forward.gates = ref::data_of<float>(on_gates);
    backend.write_gate_backward({.forward = forward,
                                 .log_gate_gradient = asks_by_log ? on_by_log.ref().as<float>() : nullptr,
                                 .gate_gradient = asks_by_gate ? on_by_gate.ref().as<float>() : nullptr,
                                 .pre_rope_key_gradient = wants_pre_rope_keys ? pre_rope_keys.ref() : Ref{},
                                 .key_gradient = wants_keys ? keys.ref() : Ref{},
                                 .weight_gradient = ref::data_of<float>(weights),
                                 .bias_gradient = ref::data_of<float>(bias),
                                 .output_weight_gradient = ref::data_of<float>(output_weights),
                                 .output_bias_gradient = ref::data_of<float>(output_bias)});
    EXPECT_EQ(ref::slice(ref::download_array<float>(on_gates), 0, std::ssize(gates)), gates);
    return {ref::download_activations(pre_rope_keys),   ref::download_activations(keys),
            ref::download_array<float>(weights),        ref::download_array<float>(bias),
            ref::download_array<float>(output_weights), ref::download_array<float>(output_bias)};
  }

  Problem problem;
  std::vector<float> gates, by_log, by_gate;
  bool asks_by_log = true, asks_by_gate = true, wants_pre_rope_keys = true, wants_keys = true;
};

// Roundings of a chain of n products add up like steps of a walk, to √n halves of epsilon of the largest sum on the
// way; sizes are of terms that are all as large as they can be and of one sign, of which those sums are a fraction. A
// gradient has a unit's chain of 2 head_dim inputs in it, by a slope that bends by less than itself, and one over what
// it is a sum of; four more are those of a term itself. A card rounds a unit's gradient to 16 bits before it
// multiplies, and x, which may fall to the other side, both of which storage_roundings() covers.
ref::Tolerance tolerance(const Backend& backend, const Shape& shape, int64_t terms, double size) {
  const double walks = (std::sqrt(2.0 * shape.head_dim) + std::sqrt(static_cast<double>(terms))) / 2;
  return {.roundings = 4 + walks + ref::storage_roundings(backend), .magnitude = kStart + size};
}

void expect_added(const std::vector<float>& got, int64_t first, const std::vector<ref::Sum>& want,
                  const std::function<ref::Tolerance(double)>& allowed) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(ref::is_close(got[static_cast<size_t>(first) + i], kStart + want[i].value, allowed(want[i].size)))
        << "element " << i;
  }
}

void expect_beyond_untouched(const Gradients& got) {
  for (const auto* values :
       {&got.pre_rope_keys, &got.keys, &got.weights, &got.bias, &got.output_weights, &got.output_bias}) {
    EXPECT_EQ(ref::slice(*values, std::ssize(*values) - kBeyond, kBeyond), std::vector<float>(kBeyond, kStart));
  }
}

// What a backward op gives against the reference, and how many gates lie below the clamp.
int expect_backward(Backend& backend, const Backward& backward) {
  const Shape& shape = backward.problem.shape;
  const Gradients got = backward.run(backend);
  const Doubles doubled = backward.problem.doubled(backend);
  int below = 0;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    SCOPED_TRACE(::testing::Message() << "head " << head);
    ref::GateGradients want(doubled.at(0, head));
    const auto of_hidden = [&](double size) { return tolerance(backend, shape, shape.hidden, size); };
    const auto of_tokens = [&](double size) { return tolerance(backend, shape, shape.tokens, size); };
    for (int64_t token = 0; token < shape.tokens; ++token) {
      SCOPED_TRACE(::testing::Message() << "token " << token);
      const int64_t at = token * shape.kv_heads + head;
      const float gate = backward.gates[at];
      ref::write_gate_backward(doubled.at(token, head), gate, backward.asks_by_log ? backward.by_log[at] : 0,
                               backward.asks_by_gate ? backward.by_gate[at] : 0, want);
      expect_added(got.pre_rope_keys, at * shape.head_dim, want.pre_rope_key, of_hidden);
      expect_added(got.keys, at * shape.head_dim, want.key, of_hidden);
      if (::testing::Test::HasFatalFailure()) return below;
      below += gate < WriteGateArgs::kLeast ? 1 : 0;
    }
    const int64_t units = head * shape.hidden;
    expect_added(got.weights, units * 2 * shape.head_dim, want.weights, of_tokens);
    expect_added(got.bias, units, want.bias, of_tokens);
    expect_added(got.output_weights, units, want.output_weights, of_tokens);
    expect_added(got.output_bias, head, {want.output_bias}, of_tokens);
  }
  expect_beyond_untouched(got);
  return below;
}

TEST_P(WriteGate, BackwardAgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({2100, 1, 16, 8});    // more than a tile of the host's a block
  shapes.push_back({100'000, 4, 4, 8});  // more than a card takes of all heads together
  // So many heads that a card's block sums over many tiles of tokens in turn; units that fill tiles.
  shapes.push_back({330, 130, 128, 8});
  shapes.push_back({330, 130, 64, 8});
  shapes.push_back({192, 3, 96, 128});
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.tokens << " tokens, " << shape.kv_heads << " heads, dim "
                                      << shape.head_dim << ", " << shape.hidden << " units");
    const int below = expect_backward(*backend, Backward(*backend, shape));
    if (shape.tokens >= 64) {
      EXPECT_GT(below, 0);
      EXPECT_LT(below, shape.tokens * shape.kv_heads);
    }
  }
}

TEST_P(WriteGate, BackwardTakesWhatItIsGiven) {
  KV_BACKEND_OR_SKIP(backend);
  Backward backward(*backend, {70, 2, 64, 96});
  const Gradients whole = backward.run(*backend);
  EXPECT_EQ(whole, backward.run(*backend)) << "not the same twice";
  for (const bool by_log : {true, false}) {
    SCOPED_TRACE(by_log);
    backward.asks_by_log = by_log, backward.asks_by_gate = !by_log;
    expect_backward(*backend, backward);
  }
  backward.asks_by_log = backward.asks_by_gate = false;
  EXPECT_EQ(backward.run(*backend), Gradients::all(backward.problem, kStart)) << "of no gradient";
}

TEST_P(WriteGate, BackwardLeavesOutKeysThatNobodyAsksAbout) {
  KV_BACKEND_OR_SKIP(backend);
  Backward backward(*backend, {70, 2, 64, 96});
  const Gradients whole = backward.run(*backend), untouched = Gradients::all(backward.problem, kStart);
  for (const bool pre_rope_keys : {true, false}) {
    for (const bool keys : {true, false}) {
      backward.wants_pre_rope_keys = pre_rope_keys, backward.wants_keys = keys;
      Gradients want = whole;
      if (!pre_rope_keys) want.pre_rope_keys = untouched.pre_rope_keys;
      if (!keys) want.keys = untouched.keys;
      EXPECT_EQ(backward.run(*backend), want);
    }
  }
}

// Central differences of the loss Σ by_log · log max(g, kLeast) + by_gate · g. Their third derivatives are at most some
// thousand times the slopes' bounds (a key of length 0.01 bends its norm), so at steps of 1e-5 of a number's own size
// the quotient is off by 1e-7 of them at most, and by 1e-16 / 1e-5 by the loss's own rounding. Where x is rounded, the
// differences are of the gate without.
TEST_P(WriteGate, BackwardIsTheSlopeOfTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  const Backward backward(*backend, {7, 2, 16, 24});
  const Shape& shape = backward.problem.shape;
  const Gradients got = backward.run(*backend);
  Doubles doubled = backward.problem.doubled([](double x) { return x; });
  const auto loss = [&] {
    double sum = 0;
    for (int64_t i = 0; i < shape.tokens * shape.kv_heads; ++i) {
      const double gate = ref::write_gate(doubled.at(i / shape.kv_heads, i % shape.kv_heads));
      sum += backward.by_log[i] * std::log(std::max(gate, double{WriteGateArgs::kLeast})) + backward.by_gate[i] * gate;
    }
    return sum;
  };
  const auto expect_slopes = [&](const char* of, std::vector<double>& numbers, const std::vector<float>& gradient,
                                 int64_t terms) {
    SCOPED_TRACE(of);
    double largest = 0;  // of the slopes, as a measure of what they are sums of
    std::vector<double> slopes;
    for (double& number : numbers) {
      const double kept = number, step = 1e-5 * std::max(std::abs(kept), 1e-3);
      number = kept + step;
      const double ahead = loss();
      number = kept - step;
      slopes.push_back((ahead - loss()) / (2 * step));
      number = kept;
      largest = std::max(largest, std::abs(slopes.back()));
    }
    EXPECT_GT(largest, 0);
    for (size_t i = 0; i < slopes.size(); ++i) {
      ref::Tolerance allowed = tolerance(*backend, shape, terms, 4 * largest);
      allowed.roundings += 4;
      ASSERT_TRUE(ref::is_close(gradient[i], kStart + slopes[i], allowed)) << "element " << i;
    }
  };
  expect_slopes("pre-RoPE keys", doubled.pre_rope_keys, got.pre_rope_keys, shape.hidden);
  expect_slopes("keys", doubled.keys, got.keys, shape.hidden);
  expect_slopes("weights", doubled.weights, got.weights, shape.tokens);
  expect_slopes("bias", doubled.bias, got.bias, shape.tokens);
  expect_slopes("output weights", doubled.output_weights, got.output_weights, shape.tokens);
  expect_slopes("output bias", doubled.output_bias, got.output_bias, shape.tokens);
}

TEST_P(WriteGate, BackwardOfNoTokensAddsNothing) {
  KV_BACKEND_OR_SKIP(backend);
  const Backward backward(*backend, {0, 2, 16, 8});
  EXPECT_EQ(backward.run(*backend), Gradients::all(backward.problem, kStart));
}

TEST(WriteGateOnThreads, GivesTheSameBits) {
  const auto backend = make_backend("cpu");
  const Problem problem(*backend, {130, 3, 64, 97});
  const auto on_threads = [&](int count) {
    const ref::Threads threads(count);
    return run(*backend, problem).gates;
  };
  EXPECT_EQ(on_threads(1), on_threads(3));
}

TEST(WriteGateOnThreads, BackwardGivesTheSameBits) {
  const auto backend = make_backend("cpu");
  const Backward backward(*backend, {2100, 3, 16, 17});
  const auto on_threads = [&](int count) {
    const ref::Threads threads(count);
    return backward.run(*backend);
  };
  EXPECT_EQ(on_threads(1), on_threads(2));
  EXPECT_EQ(on_threads(1), on_threads(3));
}

}  // namespace
}  // namespace kv
