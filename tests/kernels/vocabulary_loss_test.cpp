#include "kernels/vocabulary_loss.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/linear.h"
#include "tests/ref/vocabulary_loss.h"
#include "tests/support/close.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, VocabularyLoss);

struct Shape {
  int64_t tokens, width, vocab;
};

struct Inputs {
  Shape shape;
  std::vector<float> student, teacher, weight;  // the teacher's may be none
  std::vector<int32_t> targets;
  std::vector<float> weights;  // may be none
  float next_token_weight = 0.5F, divergence_weight = 0.5F, scale = 1;
};

struct Result {
  std::vector<float> next_token, divergence, gradient;
  bool operator==(const Result&) const = default;
};

enum class Gradient : uint8_t { kWanted, kInPlace, kNotWanted };

Result run(Backend& backend, const Inputs& inputs, Gradient want = Gradient::kWanted) {
  const auto& [tokens, width, vocab] = inputs.shape;
  Tensor student = ref::upload_activations(backend, inputs.student);
  const Tensor weight = ref::upload_activations(backend, inputs.weight);
  const Tensor targets = ref::upload_array(backend, inputs.targets);
  Tensor teacher, weights, gradient(backend, backend.activation_type(), tokens * width);
  if (!inputs.teacher.empty()) teacher = ref::upload_activations(backend, inputs.teacher);
  if (!inputs.weights.empty()) weights = ref::upload_array(backend, inputs.weights);
  Tensor next_token(backend, DType::kF32, tokens), divergence(backend, DType::kF32, tokens);
  Tensor& to = want == Gradient::kInPlace ? student : gradient;
  backend.vocabulary_loss({.student = student.ref(),
                           .teacher = inputs.teacher.empty() ? ConstRef{} : teacher.ref(),
                           .weight = weight.ref(),
                           .targets = targets.ref().as<int32_t>(),
                           .weights = inputs.weights.empty() ? nullptr : ref::data_of<float>(weights),
                           .next_token_weight = inputs.next_token_weight,
                           .divergence_weight = inputs.divergence_weight,
                           .scale = inputs.scale,
                           .next_token = ref::data_of<float>(next_token),
                           .divergence = inputs.teacher.empty() ? nullptr : ref::data_of<float>(divergence),
                           .gradient = want == Gradient::kNotWanted ? Ref{} : to.ref(),
                           .tokens = tokens,
                           .width = width,
                           .vocab = vocab});
  return {ref::download_array<float>(next_token), ref::download_array<float>(divergence),
          ref::download_activations(to)};
}

Inputs inputs_of(const Backend& backend, const Shape& shape) {
  Inputs inputs{.shape = shape,
                .student = ref::rounded(backend, ref::random_values(shape.tokens * shape.width, 1)),
                .teacher = ref::rounded(backend, ref::random_values(shape.tokens * shape.width, 2)),
                .weight = ref::rounded(backend, ref::random_values(shape.vocab * shape.width, 3)),
                .weights = ref::random_values(shape.tokens, 4),
                .next_token_weight = 0.25F,
                .divergence_weight = 0.75F,
                .scale = 0.5F};
  for (int64_t t = 0; t < shape.tokens; ++t) {
    inputs.targets.push_back(t % 5 == 3 ? -1 : static_cast<int32_t>((t * 97 + shape.vocab - 1) % shape.vocab));
    if (t % 7 == 5) inputs.weights[t] = 0;
  }
  return inputs;
}

// A token's logits in double, and what their roundings may come to.
struct TokenLogits {
  std::vector<double> student, teacher;
  double most = 0;  // Σ |hidden · weight| of any logit
};

std::vector<TokenLogits> logits_of(const Inputs& inputs) {
  const auto& [tokens, width, vocab] = inputs.shape;
  const ref::Product students = ref::linear(inputs.student, inputs.weight, {}, {}, tokens, width, vocab);
  ref::Product teachers;
  if (!inputs.teacher.empty()) teachers = ref::linear(inputs.teacher, inputs.weight, {}, {}, tokens, width, vocab);
  std::vector<TokenLogits> logits(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    for (const bool is_student : {true, false}) {
      const ref::Product* product = is_student ? &students : &teachers;
      if (product->values.empty()) continue;
      const std::vector<double> magnitudes = ref::slice(product->magnitudes, t * vocab, vocab);
      logits[t].most = std::max(logits[t].most, *std::max_element(magnitudes.begin(), magnitudes.end()));
      (is_student ? logits[t].student : logits[t].teacher) = ref::slice(product->values, t * vocab, vocab);
    }
  }
  return logits;
}

// Roundings of a probability: two logits of `width` chained products, their difference, e to it, and a sum in pieces of
// at most 64 chained terms.
double roundings_of(const Inputs& inputs, const TokenLogits& logits) {
  return 2 * static_cast<double>(inputs.shape.width) * logits.most + 2 * logits.most + 70;
}

void expect_losses(const Inputs& inputs, const Result& got) {
  const std::vector<TokenLogits> logits = logits_of(inputs);
  for (size_t t = 0; t < logits.size(); ++t) {
    const ref::VocabularyLoss want = ref::vocabulary_loss(logits[t].student, logits[t].teacher, inputs.targets[t]);
    const bool looked_at = inputs.weights.empty() || inputs.weights[t] != 0;
    const double roundings = roundings_of(inputs, logits[t]);
    ref::expect_close(got.next_token[t], looked_at ? want.next_token : 0, {.roundings = roundings + want.next_token});
    if (inputs.teacher.empty()) continue;
    // The same errors, of the student's and of the teacher's, once more in how far logits of up to 2 `most` are apart.
    ref::expect_close(got.divergence[t], looked_at ? want.divergence : 0,
                      {.roundings = 2 * roundings * (1 + 4 * logits[t].most)});
  }
}

void expect_gradient(const Backend& backend, const Inputs& inputs, const std::vector<float>& got) {
  const auto& [tokens, width, vocab] = inputs.shape;
  const std::vector<TokenLogits> logits = logits_of(inputs);
  const double stored = ref::activation_epsilon(backend);
  for (int64_t t = 0; t < tokens; ++t) {
    const double scale = inputs.scale * (inputs.weights.empty() ? 1.0 : double{inputs.weights[t]});
    const ref::VocabularySlopes slopes =
        ref::vocabulary_slopes(logits[t].student, logits[t].teacher, inputs.targets[t],
                               scale * inputs.next_token_weight, scale * inputs.divergence_weight);
    for (int64_t i = 0; i < width; ++i) {
      double want = 0, magnitude = 0, kept = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        const double w = inputs.weight[v * width + i];
        want += slopes.values[v] * w;
        magnitude += slopes.magnitudes[v] * std::abs(w);
        kept += std::abs(slopes.values[v] * w);
      }
      // The probabilities' roundings, and a chain of `vocab` products; slopes and their sum are stored.
      const ref::Tolerance rounding{.roundings = roundings_of(inputs, logits[t]) + static_cast<double>(vocab),
                                    .magnitude = magnitude};
      ASSERT_NEAR(got[t * width + i], want, rounding.allowed() + stored * (kept + std::abs(want)))
          << "token " << t << ", dimension " << i;
    }
  }
}

TEST_P(VocabularyLoss, OfTwoWordsIsByHand) {
  KV_BACKEND_OR_SKIP(backend);
  // Width 1, weight (1, −1): hidden x gives logits x and −x. A student at 0 says 1/2 and 1/2, its teacher at y = ln 3 /
  // 2, that is 3/4 and 1/4; 1/2 in bf16 is exact, and ln 3 / 2 is stored as it is rounded.
  const float y = ref::rounded(*backend, {0.5493061F})[0];
  const double p = 1 / (1 + std::exp(-2.0 * y));
  const Inputs inputs{.shape = {1, 1, 2}, .student = {0}, .teacher = {y}, .weight = {1, -1}, .targets = {0}};
  const Result got = run(*backend, inputs);
  ref::expect_close(got.next_token[0], std::log(2.0), {.roundings = 2});
  ref::expect_close(got.divergence[0], p * std::log(2 * p) + (1 - p) * std::log(2 * (1 - p)), {.roundings = 8});
  // (q − p, and q − 1 at the target) · (1, −1), half each: −1/2 · 1 + (1 − 2p) / 2.
  ref::expect_close(got.gradient[0], -0.5 + (1 - 2 * p) / 2,
                    {.roundings = 4, .epsilon = ref::activation_epsilon(*backend)});
}

TEST_P(VocabularyLoss, MatchesTheReferenceOverShapes) {
  KV_BACKEND_OR_SKIP(backend);
  // On Hopper a block holds up to 8192 words, up to 6144 with fewer threads, and up to eight share a token; more are
  // not held.
  const std::vector<Shape> shapes = {
      {0, 8, 8},      {1, 1, 1},      {1, 64, 33},   {5, 16, 1023}, {95, 17, 31},  {96, 24, 32},  {97, 24, 1024},
      {13, 65, 1025}, {40, 72, 2104}, {2, 16, 6144}, {2, 8, 6148},  {3, 16, 8192}, {2, 8, 8196},  {2, 8, 8197},
      {3, 8, 16384},  {3, 8, 16388},  {2, 8, 32772}, {5, 8, 49152}, {2, 8, 65536}, {2, 8, 65540}, {1, 8, 128256},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape.tokens << " x " << shape.width << " x " << shape.vocab);
    Inputs inputs = inputs_of(*backend, shape);
    const Result got = run(*backend, inputs);
    expect_losses(inputs, got);
    expect_gradient(*backend, inputs, got.gradient);
    EXPECT_EQ(got, run(*backend, inputs, Gradient::kInPlace));
    inputs.teacher.clear();
    inputs.weights.clear();
    const Result alone = run(*backend, inputs);
    expect_losses(inputs, alone);
    expect_gradient(*backend, inputs, alone.gradient);
  }
}

TEST_P(VocabularyLoss, GradientIsTheSlopeOfTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  Inputs inputs = inputs_of(*backend, {9, 12, 150});
  const Result got = run(*backend, inputs);
  const std::vector<double> hidden(inputs.student.begin(), inputs.student.end());
  const auto loss_of = [&](int64_t t, int64_t dimension, double step) {
    std::vector<double> student, teacher;
    for (int64_t v = 0; v < inputs.shape.vocab; ++v) {
      double of_student = 0, of_teacher = 0;
      for (int64_t i = 0; i < inputs.shape.width; ++i) {
        const double w = inputs.weight[v * inputs.shape.width + i];
        of_student += w * (hidden[t * inputs.shape.width + i] + (i == dimension ? step : 0));
        of_teacher += w * inputs.teacher[t * inputs.shape.width + i];
      }
      student.push_back(of_student);
      teacher.push_back(of_teacher);
    }
    const ref::VocabularyLoss loss = ref::vocabulary_loss(student, teacher, inputs.targets[t]);
    return double{inputs.scale} * inputs.weights[t] *
           (inputs.next_token_weight * loss.next_token + inputs.divergence_weight * loss.divergence);
  };
  constexpr double kStep = 1e-4;
  for (int64_t t = 0; t < inputs.shape.tokens; ++t) {
    for (int64_t i = 0; i < inputs.shape.width; ++i) {
      const double slope = (loss_of(t, i, kStep) - loss_of(t, i, -kStep)) / (2 * kStep);
      // Weights are at most 1, so a slope is a sum of terms that add up to 2 at most; a logit is one of 12 of them, and
      // the step is off by less than a rounding.
      const ref::Tolerance rounding{.roundings = 2 * 12 * 12 + 2 * 12 + 70 + 150, .magnitude = 2};
      EXPECT_NEAR(got.gradient[t * inputs.shape.width + i], slope,
                  rounding.allowed() + 2 * ref::activation_epsilon(*backend));
    }
  }
}

TEST_P(VocabularyLoss, OfAStudentLikeItsTeacherDivergesByNothing) {
  KV_BACKEND_OR_SKIP(backend);
  Inputs inputs = inputs_of(*backend, {6, 40, 3000});
  inputs.teacher = inputs.student;
  inputs.next_token_weight = 0;
  const Result got = run(*backend, inputs);
  EXPECT_EQ(got.divergence, std::vector<float>(6, 0.0F));
  // Of q − p the product that a fused operation does not round is left, of 0.375 q.
  ref::expect_close(got.gradient, std::vector<double>(6 * 40, 0.0), {.roundings = 0.5, .magnitude = 0.375});
}

TEST_P(VocabularyLoss, DoesNotLookAtATokenOfWeightZero) {
  KV_BACKEND_OR_SKIP(backend);
  Inputs inputs = inputs_of(*backend, {6, 16, 64});
  const Result plain = run(*backend, inputs);
  for (int64_t i = 0; i < 16; ++i) inputs.student[5 * 16 + i] = inputs.teacher[5 * 16 + i] = NAN;  // of weight 0
  const Result got = run(*backend, inputs);
  EXPECT_EQ(got, plain);
  EXPECT_EQ(ref::slice(got.gradient, 5 * 16, 16), std::vector<float>(16, 0.0F));
  EXPECT_EQ(got.next_token[5], 0);
  EXPECT_EQ(got.divergence[5], 0);
}

template <class T>
void keep_last(std::vector<T>& values, int64_t count) {
  values.erase(values.begin(), values.end() - count);
}

TEST_P(VocabularyLoss, TokensThatAreHeldOneAfterTheOtherAreAllThere) {
  KV_BACKEND_OR_SKIP(backend);
  // On the CPU 96 tokens are held at a time: 2^22 / 43704 is less. On a GPU it is 1535, and these are two pieces of
  // 800. Looked at are the last three tokens, of 98 the last of one piece and the next two.
  for (const int64_t tokens : {98, 1600}) {
    SCOPED_TRACE(tokens);
    Inputs inputs = inputs_of(*backend, {tokens, 2, 43704});
    Result got = run(*backend, inputs);
    inputs.shape.tokens = 3;
    for (auto* values : {&inputs.student, &inputs.teacher, &got.gradient}) keep_last(*values, 3 * 2);
    for (auto* values : {&inputs.weights, &got.next_token, &got.divergence}) keep_last(*values, 3);
    keep_last(inputs.targets, 3);
    expect_losses(inputs, got);
    expect_gradient(*backend, inputs, got.gradient);
  }
}

TEST_P(VocabularyLoss, TheGradientIsOptionalAndThreadsDoNotMatter) {
  KV_BACKEND_OR_SKIP(backend);
  const Inputs inputs = inputs_of(*backend, {230, 70, 1500});
  const auto with_threads = [&](int count, Gradient want) {
    const ref::Threads threads(count);
    return run(*backend, inputs, want);
  };
  const Result single = with_threads(1, Gradient::kWanted);
  EXPECT_EQ(single, with_threads(2, Gradient::kWanted));
  EXPECT_EQ(single, with_threads(3, Gradient::kWanted));
  const Result without = with_threads(2, Gradient::kNotWanted);
  EXPECT_EQ(single.next_token, without.next_token);
  EXPECT_EQ(single.divergence, without.divergence);
  ref::expect_untouched(without.gradient, 0, std::ssize(without.gradient));
}

}  // namespace
}  // namespace kv
