#include "kernels/token_loss.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/linear.h"
#include "tests/ref/token_loss.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, TokenLoss);

struct Shape {
  int64_t rows, width, vocab;
};

struct Result {
  std::vector<float> nll, entropy, logits;
  std::vector<int32_t> argmax;
  bool operator==(const Result&) const = default;
};

enum class Logits : uint8_t { kWanted, kNotWanted };

Result run(Backend& backend, const Shape& shape, const std::vector<float>& hidden, const std::vector<float>& weight,
           const std::vector<int32_t>& targets, Logits want_logits = Logits::kWanted) {
  const Tensor x = ref::upload_activations(backend, hidden), w = ref::upload_activations(backend, weight);
  const Tensor t = ref::upload_array(backend, targets);
  Tensor nll(backend, DType::kF32, shape.rows), entropy(backend, DType::kF32, shape.rows);
  Tensor argmax(backend, DType::kI32, shape.rows), logits(backend, DType::kF32, shape.rows * shape.vocab);
  backend.token_loss({.hidden = x.ref(),
                      .weight = w.ref(),
                      .targets = t.ref().as<int32_t>(),
                      .nll = ref::data_of<float>(nll),
                      .entropy = ref::data_of<float>(entropy),
                      .argmax = ref::data_of<int32_t>(argmax),
                      .logits = want_logits == Logits::kWanted ? ref::data_of<float>(logits) : nullptr,
                      .rows = shape.rows,
                      .width = shape.width,
                      .vocab = shape.vocab});
  backend.synchronize();
  return {ref::download_array<float>(nll), ref::download_array<float>(entropy), ref::download_array<float>(logits),
          ref::download_array<int32_t>(argmax)};
}

std::vector<int32_t> targets_of(const Shape& shape) {
  std::vector<int32_t> targets;
  for (int64_t r = 0; r < shape.rows; ++r) {
    targets.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>((r * 97 + shape.vocab - 1) % shape.vocab));
  }
  return targets;
}

TEST_P(TokenLoss, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<Shape> shapes = {{0, 8, 8},    {1, 1, 1},      {1, 64, 33},    {5, 16, 1023},   {95, 17, 31},
                                     {96, 24, 32}, {97, 24, 1024}, {13, 65, 1025}, {200, 300, 2100}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.width << " x " << shape.vocab);
    const std::vector<float> hidden = ref::rounded(*backend, ref::random_values(shape.rows * shape.width, 1));
    const std::vector<float> weight = ref::rounded(*backend, ref::random_values(shape.vocab * shape.width, 2));
    const std::vector<int32_t> targets = targets_of(shape);
    const Result got = run(*backend, shape, hidden, weight, targets);
    const ref::Product logits = ref::linear(hidden, weight, {}, {}, shape.rows, shape.width, shape.vocab);
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t at = r * shape.vocab;
      const double terms =
          *std::max_element(logits.magnitudes.begin() + at, logits.magnitudes.begin() + at + shape.vocab);
      // A logit is a chain of `width` multiply-adds. nll is off by the error of two logits, and of a sum over pieces
      // of at most 64 chained terms (2 for exp, 1 for the shift of up to 2·terms); entropy weighs the same errors by
      // logits of up to 2·terms once more. The result itself is rounded to f32.
      const double logit = static_cast<double>(shape.width) * terms;
      const double nll = 2 * logit + 2 * terms + 70;
      for (int64_t v = 0; v < shape.vocab; ++v) {
        ASSERT_TRUE(ref::is_close(got.logits[at + v], logits.values[at + v],
                                  {.roundings = static_cast<double>(shape.width), .magnitude = terms}));
      }
      const ref::Loss want = ref::token_loss(ref::slice(logits.values, at, shape.vocab), targets[r]);
      ASSERT_TRUE(ref::is_close(got.nll[r], want.nll, {.roundings = nll + want.nll})) << "row " << r;
      ASSERT_TRUE(ref::is_close(got.entropy[r], want.entropy, {.roundings = nll * (1 + 2 * terms)})) << "row " << r;
      // The reference's logits need not tie or part where the op's do: the op's own logits decide.
      const auto first = got.logits.begin() + at;
      ASSERT_EQ(got.argmax[r], std::max_element(first, first + shape.vocab) - first) << "row " << r;
    }
  }
}

TEST_P(TokenLoss, UniformLogitsGiveTheLogarithmOfTheVocabulary) {
  KV_BACKEND_OR_SKIP(backend);
  // Over 8192 equal terms a plain f32 sum would be exact, so the sixth digit is not at the mercy of the order here; the
  // tie goes to token 0.
  const Shape shape{2, 4, 8192};
  const Result got = run(*backend, shape, std::vector<float>(8, 0.5f), std::vector<float>(4 * 8192, 0.25f), {8191, -1});
  ref::expect_close(got.nll, std::vector<double>{std::log(8192.0), 0}, {.roundings = 1, .magnitude = 9.1});
  ref::expect_close(got.entropy, std::vector<double>{std::log(8192.0), std::log(8192.0)},
                    {.roundings = 1, .magnitude = 9.1});
  EXPECT_EQ(got.argmax, (std::vector<int32_t>{0, 0}));
}

TEST_P(TokenLoss, LaterLargerLogitsRestateTheSums) {
  KV_BACKEND_OR_SKIP(backend);
  // Logits grow from −40 to 40 over five pieces of the vocabulary: only the last few count.
  const Shape shape{1, 1, 5000};
  std::vector<float> weight(5000);
  for (size_t v = 0; v < weight.size(); ++v) weight[v] = -40.0f + 80.0f * static_cast<float>(v) / 4999.0f;
  weight = ref::rounded(*backend, weight);
  const Result got = run(*backend, shape, {1.0f}, weight, {4999});
  const ref::Loss want = ref::token_loss({weight.begin(), weight.end()}, 4999);
  // Logits are exact. 80 for the shift (a logit of up to 80 rounded once), 70 for exp and the sums of a piece; entropy
  // weighs by the logits that matter, at most 20 below the largest.
  ref::expect_close(got.nll[0], want.nll, {.roundings = 150});
  ref::expect_close(got.entropy[0], want.entropy, {.roundings = 150 * 20});
  EXPECT_EQ(got.argmax[0], std::max_element(weight.begin(), weight.end()) - weight.begin());
}

TEST_P(TokenLoss, LogitsAreOptionalAndThreadsDoNotMatter) {
  KV_BACKEND_OR_SKIP(backend);
  const Shape shape{230, 70, 1500};
  const std::vector<float> hidden = ref::random_values(shape.rows * shape.width, 1);
  const std::vector<float> weight = ref::random_values(shape.vocab * shape.width, 2);
  const auto with_threads = [&](int count, Logits logits) {
    const ref::Threads threads(count);
    return run(*backend, shape, hidden, weight, targets_of(shape), logits);
  };
  const Result single = with_threads(1, Logits::kWanted);
  EXPECT_EQ(single, with_threads(2, Logits::kWanted));
  EXPECT_EQ(single, with_threads(3, Logits::kWanted));
  const Result without = with_threads(2, Logits::kNotWanted);
  EXPECT_EQ(single.nll, without.nll);
  EXPECT_EQ(single.entropy, without.entropy);
  EXPECT_EQ(single.argmax, without.argmax);
  ref::expect_untouched(without.logits, 0, static_cast<int64_t>(without.logits.size()));
}

}  // namespace
}  // namespace kv
