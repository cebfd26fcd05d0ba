#include "kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "tests/ref/sample.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Sample);
KV_OVER_BACKENDS(Ops, SlowSample);

struct Choice {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  uint64_t seed = 1;
};

struct Drawn {
  std::vector<int32_t> ids;
  std::vector<int32_t> texts;  // [new tokens, sequences]
};

// Row r is at positions[r] of sequence sequences[r], whose number is 10 times its index; new tokens begin at 3.
Drawn draw(Backend& backend, const std::vector<float>& logits, int64_t vocab, const std::vector<int32_t>& sequences,
           const std::vector<int32_t>& positions, const Choice& choice,
           std::optional<uint64_t> first_bad = std::nullopt) {
  const int64_t rows = std::ssize(sequences);
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  const int32_t count = 1 + *std::max_element(sequences.begin(), sequences.end());
  std::vector<int32_t> numbers;
  for (int32_t s = 0; s < count; ++s) numbers.push_back(10 * s);
  const Tensor x = ref::upload_array(backend, logits), s = ref::upload_array(backend, sequences),
               p = ref::upload_array(backend, positions), n = ref::upload_array(backend, numbers),
               o = ref::upload_array(backend, std::vector<int32_t>(static_cast<size_t>(count), 3));
  const uint64_t word = first_bad.value_or(0);
  std::vector<uint8_t> bytes(sizeof(word));
  std::memcpy(bytes.data(), &word, sizeof(word));
  const Tensor bad = ref::upload_array(backend, bytes);
  Tensor ids(backend, DType::kI32, rows), texts(backend, DType::kI32, int64_t{last - 1} * count);
  backend.sample({.logits = x.ref().as<float>(),
                  .sequences = s.ref().as<int32_t>(),
                  .positions = p.ref().as<int32_t>(),
                  .numbers = n.ref().as<int32_t>(),
                  .origins = o.ref().as<int32_t>(),
                  .first_bad = first_bad ? reinterpret_cast<const uint64_t*>(bad.ref().as<uint8_t>()) : nullptr,
                  .rows = rows,
                  .vocab = vocab,
                  .sequence_count = count,
                  .temperature = choice.temperature,
                  .top_k = choice.top_k,
                  .top_p = choice.top_p,
                  .seed = choice.seed,
                  .ids = ref::data_of<int32_t>(ids),
                  .texts = ref::data_of<int32_t>(texts)});
  return {ref::download_array<int32_t>(ids), ref::download_array<int32_t>(texts)};
}

// Logits of which one is NaN, and a word that knows (kernels/find_bad.h).
TEST_P(Sample, DrawsNothingWhereALogitIsNotFinite) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> logits = {1, 2, 3, 4, 5, NAN, 7, 8};
  for (const float temperature : {0.0f, 1.0f}) {
    const Choice choice{.temperature = temperature, .top_k = 3, .top_p = 0.9f};
    const Drawn drawn = draw(*backend, logits, 4, {0, 0}, {2, 3}, choice, uint64_t{5});
    EXPECT_EQ(drawn.ids, (std::vector<int32_t>{0, 0}));
    EXPECT_EQ(drawn.texts, (std::vector<int32_t>{0, 0}));
    const std::vector<float> finite(logits.begin(), logits.begin() + 4);
    EXPECT_EQ(draw(*backend, finite, 4, {0}, {2}, choice, kNothingBad).ids,
              draw(*backend, finite, 4, {0}, {2}, choice).ids);
  }
}

// The same logits at positions 2, 3, … of sequence 0.
std::vector<int32_t> draw_often(Backend& backend, const std::vector<float>& logits, int times, const Choice& choice) {
  std::vector<float> all;
  std::vector<int32_t> positions;
  for (int i = 0; i < times; ++i) {
    all.insert(all.end(), logits.begin(), logits.end());
    positions.push_back(i + 2);
  }
  return draw(backend, all, std::ssize(logits), std::vector<int32_t>(positions.size(), 0), positions, choice).ids;
}

TEST_P(Sample, GreedyIsTheLargestAndOfEqualOnesTheFirst) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int64_t vocab : {1, 2, 31, 32, 33, 1023, 1025, 50257}) {
    std::vector<float> logits = ref::random_values(static_cast<size_t>(3 * vocab), 5);
    logits[static_cast<size_t>(vocab - 1)] = 7;
    logits[static_cast<size_t>(vocab / 2)] = 7;
    std::fill_n(logits.begin() + vocab, vocab, -3.0f);
    logits[static_cast<size_t>(2 * vocab)] = 2;
    const Drawn drawn = draw(*backend, logits, vocab, {1, 0, 2}, {4, 2, 2}, {});
    EXPECT_EQ(drawn.ids, (std::vector<int32_t>{static_cast<int32_t>(vocab / 2), 0, 0})) << vocab;
    // Position 4 is followed by the new token 2 of sequence 1; the others' are their first.
    EXPECT_EQ(drawn.texts, (std::vector<int32_t>{0, -1, 0, -1, -1, -1, -1, static_cast<int32_t>(vocab / 2), -1}));
  }
}

// Draws by the reference's probabilities, with the same random number; those within 1e-6 of a boundary may go either
// way.
TEST_P(Sample, InvertsTheCumulativeProbabilities) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kTimes = 400;
  int checked = 0;
  for (const int64_t vocab : {1, 5, 32, 33, 1000, 3001}) {
    std::vector<float> logits = ref::random_values(static_cast<size_t>(vocab), 11);
    for (float& x : logits) x *= 4;
    if (vocab == 1000) std::fill(logits.begin() + 10, logits.begin() + 400, 3.5f);  // ties across any cut
    for (const Choice& choice : {Choice{1}, Choice{0.3f}, Choice{5}, Choice{1, 3}, Choice{1, 100}, Choice{1, 0, 0.5f},
                                 Choice{1, 0, 0.95f}, Choice{2, 50, 0.7f}, Choice{1, 2, 1e-6f}}) {
      const std::vector<double> p = ref::sample_probabilities(logits, choice.temperature, choice.top_k, choice.top_p);
      const std::vector<int32_t> ids = draw_often(*backend, logits, kTimes, choice);
      for (int i = 0; i < kTimes; ++i) {
        const double u = static_cast<double>(next_random(choice.seed, 0, i + 2)) * 0x1p-64;
        double until = 0;
        size_t want = 0;
        while (want + 1 < p.size() && until + p[want] <= u) until += p[want++];
        if (u - until < 1e-6 || until + p[want] - u < 1e-6) continue;
        ASSERT_EQ(ids[static_cast<size_t>(i)], static_cast<int32_t>(want))
            << "vocab " << vocab << ", T " << choice.temperature << ", k " << choice.top_k << ", p " << choice.top_p;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 6 * 9 * kTimes * 9 / 10);
}

// A token of probability p comes up in n draws within 5 standard deviations of n p: a miss in 10^6 by chance.
TEST_P(SlowSample, FrequenciesAreTheProbabilities) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kTimes = 20000;
  const std::vector<float> logits = {0, 1, 2, -1, 1.5f, -30};
  for (const Choice& choice : {Choice{1}, Choice{2, 4}, Choice{1, 0, 0.8f}}) {
    const std::vector<double> p = ref::sample_probabilities(logits, choice.temperature, choice.top_k, choice.top_p);
    std::vector<int> counts(logits.size(), 0);
    for (const int32_t id : draw_often(*backend, logits, kTimes, choice)) ++counts[static_cast<size_t>(id)];
    for (size_t id = 0; id < logits.size(); ++id) {
      const double deviation = std::sqrt(kTimes * p[id] * (1 - p[id]));
      EXPECT_LE(std::abs(counts[id] - kTimes * p[id]), 5 * deviation + 1e-9) << "token " << id;
    }
  }
}

TEST_P(Sample, TopKOfOneIsGreedyWhateverTheTemperature) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> logits = {1, 3, 2, 3, 3};
  for (const int32_t id : draw_often(*backend, logits, 200, {.temperature = 10, .top_k = 1})) EXPECT_EQ(id, 1);
}

// Probabilities 1/2, 1/4, 1/8, 1/8.
TEST_P(Sample, TopPKeepsWhatReachesItAndAlwaysTheLargest) {
  KV_BACKEND_OR_SKIP(backend);
  const float half = std::log(2.0f);
  const std::vector<float> logits = {-2 * half, 0, -half, -2 * half};
  const auto seen = [&](float top_p) {
    std::vector<int> tokens(4, 0);
    for (const int32_t id : draw_often(*backend, logits, 300, {.temperature = 1, .top_p = top_p})) {
      tokens[static_cast<size_t>(id)] = 1;
    }
    return tokens;
  };
  EXPECT_EQ(seen(1e-9f), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_EQ(seen(0.49f), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_EQ(seen(0.51f), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(seen(0.76f), (std::vector<int>{1, 1, 1, 0})) << "of equal ones the first";
  EXPECT_EQ(seen(1), (std::vector<int>{1, 1, 1, 1}));
}

TEST_P(Sample, DependsOnSeedNumberAndPositionAndOnNothingElse) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int64_t kVocab = 500;
  const std::vector<float> row(kVocab, 0.0f);
  std::vector<float> rows;
  for (int i = 0; i < 3; ++i) rows.insert(rows.end(), row.begin(), row.end());
  const Choice choice{.temperature = 1};
  const std::vector<int32_t> together = draw(*backend, rows, kVocab, {0, 1, 1}, {7, 7, 8}, choice).ids;
  EXPECT_EQ(draw(*backend, row, kVocab, {1}, {7}, choice).ids[0], together[1]);
  EXPECT_EQ(draw(*backend, row, kVocab, {1}, {8}, choice).ids[0], together[2]);
  EXPECT_NE(together[0], together[1]);
  EXPECT_NE(together[1], together[2]);
  EXPECT_NE(draw(*backend, row, kVocab, {1}, {7}, {.temperature = 1, .seed = 2}).ids[0], together[1]);
}

TEST(DrawBelow, IsTheIntegerPartOfTheProduct) {
  EXPECT_EQ(draw_below(0, 5), 0u);
  EXPECT_EQ(draw_below(~uint64_t{0}, 5), 4u);
  EXPECT_EQ(draw_below(uint64_t{1} << 63, 7), 3u);
  EXPECT_EQ(draw_below(~uint64_t{0}, (uint64_t{1} << 60) + 3), (uint64_t{1} << 60) + 2);
  EXPECT_EQ(draw_below(0x123456789ABCDEFull, 0x0FEDCBA987654321ull), 0x00121FA00AD77D74ull);
}

}  // namespace
}  // namespace kv
