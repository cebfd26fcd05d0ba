#include "kernels/silu_mul.h"

#include <cmath>

#include "tests/ref/silu_mul.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, SiluMul);

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 16383, 16384, 16385, 40000};

// The cube spreads values over [−200, 200], dense around 0: e^−x would overflow for a third of a percent of them.
std::vector<float> random_gates(const Backend& backend, int64_t count) {
  std::vector<float> gate = ref::random_values(count, 1);
  for (float& x : gate) x = 200 * x * x * x;
  return ref::rounded(backend, gate);
}

TEST_P(SiluMul, MatchesTheReferenceIncludingFarTails) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t count : kCounts) {
    const std::vector<float> gate = random_gates(*backend, count);
    const std::vector<float> up = ref::rounded(*backend, ref::random_values(count, 2));
    const Tensor g = ref::upload_activations(*backend, gate);
    Tensor u = ref::upload_activations(*backend, up);
    backend->silu_mul({.gate = g.ref(), .up = u.ref(), .output = u.ref(), .count = count});
    backend->synchronize();
    const std::vector<float> got = ref::download_activations(u);
    for (int64_t i = 0; i < count; ++i) {
      // exp (2), sum, division and two products, relative to the result; below f32's normal range it may be 0.
      const double want = ref::silu_mul(gate[i], up[i]);
      ASSERT_TRUE(ref::is_close(
          got[i], want,
          {.roundings = 6 + ref::storage_roundings(*backend), .magnitude = std::max(std::abs(want), 1e-28)}))
          << "gate " << gate[i] << " up " << up[i];
    }
  }
}

// Of gate and of up.
struct Gradients {
  std::vector<float> gate, up;
  bool operator==(const Gradients&) const = default;
};

struct Backward {
  Backward(const Backend& backend, int64_t count)
      : output_gradient(ref::rounded(backend, ref::random_values(count, 3))),
        gate(random_gates(backend, count)),
        up(ref::rounded(backend, ref::random_values(count, 2))) {}
  std::vector<float> output_gradient, gate, up;
};

Gradients run(Backend& backend, const Backward& x) {
  const Tensor by = ref::upload_activations(backend, x.output_gradient);
  const Tensor gate = ref::upload_activations(backend, x.gate), up = ref::upload_activations(backend, x.up);
  const auto count = std::ssize(x.gate);
  Tensor gate_gradient(backend, backend.activation_type(), count + 8);
  Tensor up_gradient(backend, backend.activation_type(), count + 8);
  backend.silu_mul_backward({.output_gradient = by.ref(),
                             .gate = gate.ref(),
                             .up = up.ref(),
                             .gate_gradient = gate_gradient.ref(),
                             .up_gradient = up_gradient.ref(),
                             .count = count});
  backend.synchronize();
  Gradients got{ref::download_activations(gate_gradient), ref::download_activations(up_gradient)};
  for (std::vector<float>* values : {&got.gate, &got.up}) {
    ref::expect_untouched(*values, count, count + 8);
    values->resize(static_cast<size_t>(count));
  }
  return got;
}

TEST_P(SiluMul, BackwardMatchesTheReferenceIncludingFarTails) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t count : kCounts) {
    const Backward x(*backend, count);
    const Gradients got = run(*backend, x);
    for (int64_t i = 0; i < count; ++i) {
      const ref::SiluMulGradient want = ref::silu_mul_backward(x.output_gradient[i], x.gate[i], x.up[i]);
      // Forward's six, another sigmoid (4) and what joins the two (4); below f32's normal range it may be 0.
      const double roundings = 14 + ref::storage_roundings(*backend);
      ASSERT_TRUE(ref::is_close(got.gate[i], want.gate,
                                {.roundings = roundings, .magnitude = std::max(want.gate_magnitude, 1e-28)}))
          << "gate " << x.gate[i] << " up " << x.up[i];
      ASSERT_TRUE(
          ref::is_close(got.up[i], want.up, {.roundings = roundings, .magnitude = std::max(std::abs(want.up), 1e-28)}))
          << "gate " << x.gate[i];
    }
  }
}

TEST_P(SiluMul, BackwardMayWriteOverWhatItReads) {
  KV_BACKEND_OR_SKIP(backend);
  const Backward x(*backend, 1003);
  const Gradients apart = run(*backend, x);
  const Tensor by = ref::upload_activations(*backend, x.output_gradient);
  Tensor gate = ref::upload_activations(*backend, x.gate), up = ref::upload_activations(*backend, x.up);
  // Each in the other's.
  backend->silu_mul_backward({.output_gradient = by.ref(),
                              .gate = gate.ref(),
                              .up = up.ref(),
                              .gate_gradient = up.ref(),
                              .up_gradient = gate.ref(),
                              .count = std::ssize(x.gate)});
  backend->synchronize();
  EXPECT_EQ(ref::download_activations(up), apart.gate);
  EXPECT_EQ(ref::download_activations(gate), apart.up);
  Tensor shared = ref::upload_activations(*backend, x.output_gradient);
  gate = ref::upload_activations(*backend, x.gate);
  up = ref::upload_activations(*backend, x.up);
  backend->silu_mul_backward({.output_gradient = shared.ref(),
                              .gate = gate.ref(),
                              .up = up.ref(),
                              .gate_gradient = shared.ref(),
                              .up_gradient = up.ref(),
                              .count = std::ssize(x.gate)});
  backend->synchronize();
  EXPECT_EQ(ref::download_activations(shared), apart.gate);
  EXPECT_EQ(ref::download_activations(up), apart.up);
}

TEST(SiluMulReference, BackwardIsTheSlopeOfForward) {
  constexpr double kStep = 1e-4, kOutputGradient = 0.7, kUp = -1.3;
  for (const double gate : {-30.0, -5.0, -1.278, -0.5, 0.0, 0.5, 2.0, 30.0}) {
    const ref::SiluMulGradient got = ref::silu_mul_backward(kOutputGradient, gate, kUp);
    const auto slope = [&](double gate_step, double up_step) {
      return kOutputGradient *
             (ref::silu_mul(gate + gate_step, kUp + up_step) - ref::silu_mul(gate - gate_step, kUp - up_step)) /
             (2 * kStep);
    };
    // The step squared, a third derivative below 1, and the rounding of values up to 40 over the step.
    EXPECT_NEAR(got.gate, slope(kStep, 0), kStep * kStep + 40 * 1e-15 / kStep);
    EXPECT_NEAR(got.up, slope(0, kStep), 40 * 1e-15 / kStep);
  }
}

TEST(SiluMulThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const Backward x(*backend, 40000);
  const auto with_threads = [&](int count) {
    const ref::Threads threads(count);
    return run(*backend, x);
  };
  EXPECT_EQ(with_threads(1), with_threads(2));
}

}  // namespace
}  // namespace kv
