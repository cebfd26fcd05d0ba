// Why retention may help at all: the statements of 003, Sec. 3, on random draws, and the code as an instance of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/biased_attention.h"
#include "kernels/retention_scores.h"
#include "tests/ref/softmax.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv::ref {
namespace {

using Numbers = std::vector<double>;
using Flags = std::vector<bool>;

// Rounding of what is exact on paper: logits are at most 40 apart and up to 300 positive terms are added up, so that
// numbers of at most 1 are off by less than 400 roundings of double, 1e-13.
constexpr double kRounding = 1e-12;

class Draws {
 public:
  explicit Draws(uint32_t seed) : engine_(seed) {}
  double uniform(double low, double high) { return low + (high - low) * 0x1p-32 * static_cast<double>(engine_()); }
  int integer(int low, int high) { return static_cast<int>(uniform(low, high + 1)); }  // both may come
  bool coin(double probability) { return uniform(0, 1) < probability; }

 private:
  std::mt19937 engine_;
};

// What one query sees: the set U of entries that are useful to it, and distractors D.
struct Seen {
  Numbers logits;
  Flags useful;

  void add(double logit, bool is_useful) {
    logits.push_back(logit);
    useful.push_back(is_useful);
  }
};

Seen draw_seen(Draws& draws) {
  Seen seen;
  const double spread = draws.uniform(0, 20), share = draws.uniform(0, 1);
  const auto logit = [&] { return draws.uniform(-spread, spread); };
  seen.add(logit(), true);
  seen.add(logit(), false);
  for (int more = draws.integer(0, 298); more > 0; --more) seen.add(logit(), draws.coin(share));
  return seen;
}

Numbers attention(Numbers logits) {
  softmax(logits);
  return logits;
}

// Σ over U, or over D.
double sum_over(const Numbers& terms, const Flags& useful, bool of_useful) {
  double sum = 0;
  for (size_t i = 0; i < terms.size(); ++i) sum += useful[i] == of_useful ? terms[i] : 0;
  return sum;
}

// δ, the share of attention that distractors take.
double dilution(const Numbers& logits, const Flags& useful) { return sum_over(attention(logits), useful, false); }

// With a* the attention to U alone, of the same logits: TV(a, a*) = ½ Σ |a − a*| = δ.
TEST(Dilution, IsTheTotalVariationDistanceToAttentionWithoutDistractors) {
  Draws draws(1);
  for (int draw = 0; draw < 500; ++draw) {
    const Seen seen = draw_seen(draws);
    Numbers useful_logits = seen.logits;
    for (size_t i = 0; i < useful_logits.size(); ++i) {
      if (!seen.useful[i]) useful_logits[i] = -std::numeric_limits<double>::infinity();
    }
    const Numbers full = attention(seen.logits), oracle = attention(useful_logits);
    double distance = 0;
    for (size_t i = 0; i < full.size(); ++i) distance += std::abs(full[i] - oracle[i]) / 2;
    ASSERT_NEAR(distance, dilution(seen.logits, seen.useful), kRounding) << "draw " << draw;
  }
}

// Proposition 3.1 of n distractors D' whose logits are at least max_U z − Γ.
double least_dilution(double close_distractors, double useful, double gap) {
  return close_distractors / (close_distractors + useful * std::exp(gap));
}

// Proposition 3.1: δ >= |D'| / (|D'| + |U| e^Γ), whatever the others' logits are.
TEST(Dilution, IsAtLeastWhatCloseDistractorsMakeOfIt) {
  Draws draws(2);
  for (int draw = 0; draw < 500; ++draw) {
    Seen seen;
    const int useful = draws.integer(1, 8), close = draws.integer(0, 200), far = draws.integer(0, 50);
    const double gap = draws.uniform(0, 4), spread = draws.uniform(0, 3);
    for (int i = 0; i < useful; ++i) seen.add(draws.uniform(-spread, spread), true);
    const double largest = *std::max_element(seen.logits.begin(), seen.logits.end());
    const double above = draws.coin(0.5) ? draws.uniform(0, 2 * gap) : 0;
    for (int i = 0; i < close; ++i) seen.add(largest - gap + draws.uniform(0, above), false);
    for (int i = 0; i < far; ++i) seen.add(largest - gap - draws.uniform(0, 10), false);
    ASSERT_GE(dilution(seen.logits, seen.useful), least_dilution(close, useful, gap) - kRounding) << "draw " << draw;
  }
}

// There is no better bound: where useful logits are all equal and all distractors exactly Γ below, it is δ itself.
TEST(Dilution, IsItsBoundWhereDistractorsAreAllEquallyClose) {
  Draws draws(3);
  for (int draw = 0; draw < 500; ++draw) {
    Seen seen;
    const int useful = draws.integer(1, 100), close = draws.integer(0, 200);
    const double largest = draws.uniform(-10, 10), gap = draws.uniform(0, 20);
    for (int i = 0; i < useful; ++i) seen.add(largest, true);
    for (int i = 0; i < close; ++i) seen.add(largest - gap, false);
    ASSERT_NEAR(dilution(seen.logits, seen.useful), least_dilution(close, useful, gap), kRounding) << "draw " << draw;
  }
}

// With U and Γ fixed and c |U| e^Γ close distractors, δ >= c / (c + 1): useful entries lose nearly everything to them.
TEST(Dilution, GrowsToOneWithTheNumberOfCloseDistractors) {
  Draws draws(4);
  for (int draw = 0; draw < 20; ++draw) {
    Seen seen;
    const int useful = draws.integer(1, 4);
    const double gap = draws.uniform(0, 3);
    for (int i = 0; i < useful; ++i) seen.add(draws.uniform(-2, 2), true);
    const double largest = *std::max_element(seen.logits.begin(), seen.logits.end());
    double before = 0;
    for (const double odds : {0.1, 1.0, 10.0, 100.0}) {
      const auto entries = static_cast<size_t>(std::ceil(useful * (odds * std::exp(gap) + 1)));
      while (seen.logits.size() < entries) seen.add(largest - draws.uniform(0, gap), false);
      const double now = dilution(seen.logits, seen.useful);
      ASSERT_GT(now, before) << "draw " << draw;
      // Sums of up to 10^4 terms.
      ASSERT_GE(now, odds / (odds + 1) - 100 * kRounding) << "draw " << draw;
      before = now;
    }
    ASSERT_GT(before, 0.99);
  }
}

// Weights r in [0, 1] that entries keep of e^logit; 0 is eviction.
Numbers draw_retentions(Draws& draws, size_t count) {
  Numbers all(count);
  for (double& r : all) r = draws.coin(0.2) ? 0 : draws.coin(0.2) ? 1 : draws.uniform(0, 1);
  return all;
}

double retained_dilution(const Seen& seen, const Numbers& retentions) {
  Numbers logits = seen.logits;
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += std::log(retentions[i]);
  return dilution(logits, seen.useful);
}

// r̄ of a side: its mean retention, an entry counting as e^logit.
double mean_retention(const Seen& seen, const Numbers& retentions, bool of_useful) {
  const Numbers weights = attention(seen.logits);
  Numbers kept = weights;
  for (size_t i = 0; i < kept.size(); ++i) kept[i] *= retentions[i];
  return sum_over(kept, seen.useful, of_useful) / sum_over(weights, seen.useful, of_useful);
}

// δ r̄_D / (δ r̄_D + (1 − δ) r̄_U).
double predicted_dilution(const Seen& seen, const Numbers& retentions) {
  const Numbers full = attention(seen.logits);
  const double distracting = sum_over(full, seen.useful, false) * mean_retention(seen, retentions, false);
  const double useful = sum_over(full, seen.useful, true) * mean_retention(seen, retentions, true);
  return distracting / (distracting + useful);
}

// Corollary 3.2: with weights r e^z instead of e^z, δ̃ = δ r̄_D / (δ r̄_D + (1 − δ) r̄_U).
TEST(RetainedDilution, FollowsFromTheMeanRetentionsOfBothSides) {
  Draws draws(5);
  for (int draw = 0; draw < 500; ++draw) {
    const Seen seen = draw_seen(draws);
    Numbers retentions = draw_retentions(draws, seen.logits.size());
    retentions[0] = draws.uniform(0.1, 1);  // something is kept
    ASSERT_NEAR(retained_dilution(seen, retentions), predicted_dilution(seen, retentions), kRounding) << draw;
  }
}

// Corollary 3.2: δ̃ <= δ if and only if r̄_U >= r̄_D. All it takes is that distractors are kept less on average.
TEST(RetainedDilution, IsLessThanDilutionWhereUsefulEntriesAreRetainedMore) {
  Draws draws(6);
  int less = 0, more = 0;
  for (int draw = 0; draw < 500; ++draw) {
    const Seen seen = draw_seen(draws);
    const size_t count = seen.logits.size();
    const double full = dilution(seen.logits, seen.useful);
    ASSERT_NEAR(retained_dilution(seen, Numbers(count, draws.uniform(0.01, 1))), full, kRounding) << draw;

    Numbers retentions = draw_retentions(draws, count);
    retentions[0] = draws.uniform(0.1, 1);
    const double change = retained_dilution(seen, retentions) - full;
    if (std::abs(change) <= kRounding) continue;
    const bool keeps_useful = mean_retention(seen, retentions, true) > mean_retention(seen, retentions, false);
    ASSERT_EQ(change < 0, keeps_useful) << "draw " << draw;
    ++(change < 0 ? less : more);
  }
  EXPECT_GT(std::min(less, more), 100);
}

// Corollary 3.2: δ̃ -> 0 as r̄_D / r̄_U -> 0, at most as their ratio times δ / (1 − δ).
TEST(RetainedDilution, VanishesWithTheRetentionOfDistractors) {
  Draws draws(7);
  for (int draw = 0; draw < 100; ++draw) {
    const Seen seen = draw_seen(draws);
    Numbers retentions = draw_retentions(draws, seen.logits.size());
    retentions[0] = draws.uniform(0.1, 1);
    const Numbers full = attention(seen.logits);
    const double odds = sum_over(full, seen.useful, false) / sum_over(full, seen.useful, true);
    double last = 1;
    for (int halvings = 0; halvings <= 200; halvings += 20) {
      const double ratio = mean_retention(seen, retentions, false) / mean_retention(seen, retentions, true);
      last = retained_dilution(seen, retentions);
      ASSERT_LE(last, odds * ratio * (1 + kRounding)) << "draw " << draw;
      for (size_t i = 0; i < retentions.size(); ++i) retentions[i] *= seen.useful[i] ? 1 : 0x1p-20;
    }
    ASSERT_LE(last, 1e-10) << "draw " << draw;
  }
}

// A sequence of one head whose values are 1 for useful tokens and 0 for others, so that an output is the useful mass.
// Some tokens are forgotten fast, some slowly: useful ones at rates of their own.
struct Student {
  static constexpr int kDim = 16;
  static constexpr float kScale = 0.25F;  // 1 / √kDim

  Student(Draws& draws, int tokens) : queries(vectors(draws, tokens)), keys(vectors(draws, tokens)) {
    const double useful_rate = std::exp(draws.uniform(-8, 0)), rate = std::exp(draws.uniform(-8, 0));
    for (int j = 0; j < tokens; ++j) {
      // The query's own key, of which β^0 = 1 is left, and the first, which is a distractor: both sides have one.
      useful.push_back(j == tokens - 1 || (j > 0 && draws.coin(0.2)));
      log_retentions.push_back(static_cast<float>(draws.uniform(-1, -0.5) * (useful.back() ? useful_rate : rate)));
    }
  }
  static std::vector<float> vectors(Draws& draws, int tokens) {
    std::vector<float> all(static_cast<size_t>(tokens) * kDim);
    for (float& x : all) x = static_cast<float>(draws.uniform(-2, 2));
    return all;
  }
  int tokens() const { return static_cast<int>(useful.size()); }

  std::vector<float> queries, keys, log_retentions;
  Flags useful;
};

// What attention leaves to useful tokens in the last query.
double useful_mass(Backend& backend, const Student& of, KeyBias::Form form) {
  std::vector<float> indicators(of.keys.size());
  for (size_t j = 0; j < of.useful.size(); ++j) indicators[j * Student::kDim] = of.useful[j] ? 1 : 0;
  const Tensor queries = upload_activations(backend, of.queries), keys = upload_activations(backend, of.keys);
  const Tensor values = upload_activations(backend, indicators);
  Tensor biases = upload_array(backend, of.log_retentions), segments = upload_segments(backend, {{0, 0, of.tokens()}});
  Tensor output(backend, backend.activation_type(), queries.elements()), log_sums(backend, DType::kF32, of.tokens());
  const bool has_bias = form != KeyBias::Form::kNone;
  backend.biased_attention({.attention = {.queries = queries.ref(),
                                          .keys = keys.ref(),
                                          .values = values.ref(),
                                          .bias = {.form = form, .values = has_bias ? data_of<float>(biases) : nullptr},
                                          .segments = segments_of(segments),
                                          .segment_count = 1,
                                          .max_count = of.tokens(),
                                          .tokens = of.tokens(),
                                          .q_heads = 1,
                                          .kv_heads = 1,
                                          .head_dim = Student::kDim,
                                          .scale = Student::kScale},
                            .output = output.ref(),
                            .log_sums = data_of<float>(log_sums)});
  backend.synchronize();
  return download_activations(output).at((of.useful.size() - 1) * Student::kDim);
}

// The last query in theory, r_j = β_j^(i − j). What the op may be off by, in roundings: if each weight e^z is off by a
// share ε_j, mass m is by Σ_j p_j |u_j − m| ε_j with u_j 1 for useful keys, else 0. A logit's product has kDim + 1
// roundings, the bias one, their sum and the difference from the maximum one each; e^x is within 2, and is rescaled
// twice in tiles of 128 keys, by 3 each time. Both sums over keys and their quotient have up to tokens + 1.
struct LastQuery {
  explicit LastQuery(const Student& of) : seen{.logits = {}, .useful = of.useful} {
    const int i = of.tokens() - 1;
    Numbers errors, biased;
    for (int j = 0; j <= i; ++j) {
      double logit = 0, size = 0;
      for (int d = 0; d < Student::kDim; ++d) {
        const double product = double{of.queries[i * Student::kDim + d]} * of.keys[j * Student::kDim + d];
        logit += Student::kScale * product;
        size += Student::kScale * std::abs(product);
      }
      const double bias = (i - j) * double{of.log_retentions[j]};
      seen.logits.push_back(logit);
      biased.push_back(logit + bias);
      retentions.push_back(std::exp(bias));
      errors.push_back((Student::kDim + 3) * size + 3 * std::abs(bias) + 2 + 2 * 3);
    }
    const Numbers weights = attention(biased);
    const double mass = predicted_mass();
    const double largest = std::abs(*std::max_element(biased.begin(), biased.end()));
    roundings = of.tokens() + 1;
    for (int j = 0; j <= i; ++j) roundings += weights[j] * (of.useful[j] ? 1 - mass : mass) * (errors[j] + largest);
  }
  double predicted_mass() const { return 1 - predicted_dilution(seen, retentions); }

  Seen seen;
  Numbers retentions;
  double roundings = 0;
};

// What students are trained with is the corollary's attention: log r as a bias (i − j) log β.
TEST(RetainedDilution, IsThatOfTheAttentionStudentsHave) {
  const auto backend = make_backend("cpu");
  Draws draws(8);
  int raised = 0, lowered = 0;
  for (int draw = 0; draw < 60; ++draw) {
    Student student(draws, draws.integer(2, 300));
    const double full = useful_mass(*backend, student, KeyBias::Form::kNone);
    for (int step = 0; step < 5; ++step) {
      const LastQuery query(student);
      const Tolerance tolerance{.roundings = query.roundings};
      const double mass = useful_mass(*backend, student, KeyBias::Form::kDistance), want = query.predicted_mass();
      ASSERT_TRUE(is_close(mass, want, tolerance)) << "draw " << draw;
      if (std::abs(want - (1 - dilution(query.seen.logits, query.seen.useful))) > 2 * tolerance.allowed()) {
        const double of_useful = mean_retention(query.seen, query.retentions, true);
        ASSERT_EQ(mass > full, of_useful > mean_retention(query.seen, query.retentions, false)) << "draw " << draw;
        ++(mass > full ? raised : lowered);
      }
      for (size_t j = 0; j < student.useful.size(); ++j) student.log_retentions[j] *= student.useful[j] ? 1 : 16;
    }
    // Distractors are forgotten: rates of e^-8 / 2 and more have grown by 16^5, to at least 175.
    ASSERT_TRUE(is_close(useful_mass(*backend, student, KeyBias::Form::kDistance), 1,
                         {.roundings = LastQuery(student).roundings}))
        << draw;
  }
  EXPECT_GT(std::min(raised, lowered), 20);
}

// Chances of a Markov chain's inner states to go to each other; what is missing to 1 leaves them, for good.
using Chain = std::vector<Numbers>;

// By state, the chance to be inside still after so many steps, and all the time until then.
Numbers survival(const Chain& chain, int steps) {
  Numbers inside(chain.size(), 1);
  for (; steps > 0; --steps) {
    Numbers next;
    for (const Numbers& chances : chain) {
      next.push_back(std::inner_product(chances.begin(), chances.end(), inside.begin(), 0.0));
    }
    inside = next;
  }
  return inside;
}

// p: what the chance to leave within `steps` is at least, from wherever one is inside.
double least_exit(const Chain& chain, int steps) {
  const Numbers inside = survival(chain, steps);
  return 1 - *std::max_element(inside.begin(), inside.end());
}

// Many states have no way out of their own, so that it takes several steps.
Chain draw_chain(Draws& draws) {
  const auto states = static_cast<size_t>(draws.integer(1, 6));
  Chain chain(states, Numbers(states));
  for (Numbers& chances : chain) {
    double sum = draws.coin(0.4) ? draws.uniform(0, 1) : 0;  // of leaving
    for (double& chance : chances) sum += chance = draws.coin(0.5) ? draws.uniform(0, 1) : 0;
    for (double& chance : chances) chance /= sum > 0 ? sum : 1;
  }
  return chain;
}

// 003, Sec. 3.2. If from every query state inside an entry's relaxed top-k region the chance to leave it within m steps
// is at least p, then P(inside through t + h) <= (1 − p)^⌊h/m⌋ <= C β^h with β = (1 − p)^(1/m) and C = 1 / (1 − p).
TEST(GeometricRetention, BoundsTheChanceToStayInsideForHSteps) {
  Draws draws(9);
  int bounded = 0, in_several_steps = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const Chain chain = draw_chain(draws);
    const int m = draws.integer(1, 5);
    const double p = least_exit(chain, m);
    if (p < 1e-6 || p > 1 - 1e-6) continue;  // it says nothing, or all are gone after m steps
    ++bounded;
    in_several_steps += least_exit(chain, 1) < 1e-6 ? 1 : 0;
    const double beta = std::pow(1 - p, 1.0 / m);
    for (int h = 0; h <= 40; ++h) {
      const double by_blocks = std::pow(1 - p, h / m);
      for (const double inside : survival(chain, h)) ASSERT_LE(inside, by_blocks * (1 + 1e-9)) << draw << ", " << h;
      ASSERT_LE(by_blocks, std::pow(beta, h) / (1 - p) * (1 + 1e-9)) << draw << ", " << h;
    }
  }
  EXPECT_GT(bounded, 300);
  EXPECT_GT(in_several_steps, 100);
}

// A cycle of m states whose last one is left with probability p. From the first, the bound by blocks of m steps is the
// chance itself, and β^h alone is none: C is needed wherever h is no multiple of m.
TEST(GeometricRetention, IsMetByACycleWithOneWayOut) {
  Draws draws(10);
  for (int draw = 0; draw < 50; ++draw) {
    const int m = draws.integer(1, 6);
    const double p = draws.uniform(0.05, 0.95);
    Chain chain(static_cast<size_t>(m), Numbers(static_cast<size_t>(m)));
    for (int state = 0; state < m; ++state) chain[state][(state + 1) % m] = state == m - 1 ? 1 - p : 1;
    ASSERT_NEAR(least_exit(chain, m), p, kRounding);
    const double beta = std::pow(1 - p, 1.0 / m);
    for (int h = 0; h <= 40; ++h) {
      const double inside = survival(chain, h)[0];
      ASSERT_NEAR(inside, std::pow(1 - p, h / m), kRounding) << "m " << m << ", h " << h;
      ASSERT_EQ(inside > std::pow(beta, h) * (1 + 1e-9), h % m != 0) << "m " << m << ", h " << h;
    }
  }
}

// Entries of one head, at positions 0, 1, 2, … of a sequence.
struct Asked {
  std::vector<float> log_retentions;
  int tokens_seen = 0;
  int horizon = 1;

  double age(size_t entry) const { return tokens_seen - static_cast<double>(entry); }
};

Asked draw_asked(Draws& draws) {
  Asked asked;
  // From forgotten at once to hardly ever.
  for (int i = 0; i < 100; ++i) {
    asked.log_retentions.push_back(static_cast<float>(-std::exp(draws.uniform(std::log(1e-8), std::log(5)))));
  }
  asked.tokens_seen = draws.integer(100, 1000);
  asked.horizon = draws.integer(1, 512);
  return asked;
}

std::vector<float> scores_of(Backend& backend, const Asked& asked) {
  const auto count = static_cast<int32_t>(asked.log_retentions.size());
  CacheRows rows = random_rows({count}, 1, 16, 1, 1);
  rows.columns[0] = asked.log_retentions;
  const PagedCache cache(backend, std::move(rows));
  Tensor seen = upload_array<int32_t>(backend, {asked.tokens_seen}), scores(backend, DType::kF32, count);
  backend.retention_scores({.cache = cache.view(),
                            .tokens_seen = data_of<int32_t>(seen),
                            .horizon = asked.horizon,
                            .scores = scores.slots<float>(count)});
  backend.synchronize();
  return download_array<float>(scores);
}

// log Σ_{h = 1..H} β^(a + h − 1), which of ages up to 1000 and β >= e^-5 is no less than e^-7600: a long double has it.
double log_utility(const Asked& asked, size_t entry) {
  long double sum = 0;
  for (int h = 1; h <= asked.horizon; ++h) {
    sum += std::exp(static_cast<long double>(asked.log_retentions[entry]) * (asked.age(entry) + h - 1));
  }
  return static_cast<double>(std::log(sum));
}

// Of the sum, H log β, both differences from 1, their quotient and its logarithm have one rounding each, of at most 1
// or the logarithm; a log β and what joins it to that have one each.
Tolerance tolerance(const Asked& asked, size_t entry) {
  const double fading = std::abs(asked.age(entry) * asked.log_retentions[entry]);
  return {.roundings = 5, .magnitude = 1 + 2 * fading + std::log(static_cast<double>(asked.horizon))};
}

// 003, Sec. 4.2: entries are ranked by what is predicted of them over the next H steps, Σ_h β^(t − i + h).
TEST(RetentionScore, IsTheLogarithmOfUtilityOverTheHorizon) {
  const auto backend = make_backend("cpu");
  Draws draws(11);
  for (int draw = 0; draw < 40; ++draw) {
    const Asked asked = draw_asked(draws);
    const std::vector<float> scores = scores_of(*backend, asked);
    for (size_t i = 0; i < scores.size(); ++i) {
      ASSERT_TRUE(is_close(scores[i], log_utility(asked, i), tolerance(asked, i)))
          << "log β " << asked.log_retentions[i] << ", age " << asked.age(i) << ", horizon " << asked.horizon;
    }
  }
}

// Utility grows with β and H and falls with age. Scores do so wherever their differences are more than roundings, and
// never go the other way; but β that are few roundings apart may change places.
TEST(RetentionScore, IsHigherForLongerRetentionYoungerEntriesAndFartherHorizons) {
  const auto backend = make_backend("cpu");
  Draws draws(12);
  int told_apart[3] = {};
  for (int draw = 0; draw < 40; ++draw) {
    const Asked lower = draw_asked(draws);
    const std::vector<float> low = scores_of(*backend, lower);
    Asked longer = lower, younger = lower, farther = lower;
    for (float& x : longer.log_retentions) x *= static_cast<float>(draws.uniform(0, 0.999));
    younger.tokens_seen -= draws.integer(1, lower.tokens_seen - 99);
    farther.horizon += draws.integer(1, 100);
    for (const Asked* higher : {&longer, &younger, &farther}) {
      const size_t kind = higher == &longer ? 0 : higher == &younger ? 1 : 2;
      SCOPED_TRACE(::testing::Message() << "draw " << draw << ", kind " << kind);
      const std::vector<float> high = scores_of(*backend, *higher);
      for (size_t i = 0; i < low.size(); ++i) {
        const double rounding = tolerance(lower, i).allowed() + tolerance(*higher, i).allowed();
        const bool is_plain = log_utility(*higher, i) - log_utility(lower, i) > rounding;
        ASSERT_GE(high[i], low[i] - (kind == 0 ? rounding : 0)) << "entry " << i;
        ASSERT_TRUE(!is_plain || high[i] > low[i]) << "entry " << i;
        told_apart[kind] += is_plain ? 1 : 0;
      }
    }
  }
  for (const int count : told_apart) EXPECT_GT(count, 1000);
}

}  // namespace
}  // namespace kv::ref
