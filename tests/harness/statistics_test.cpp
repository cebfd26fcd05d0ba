#include "harness/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <span>
#include <vector>

namespace kv {
namespace {

using Values = std::vector<double>;

TEST(Quantile, InterpolatesBetweenOrderStatistics) {
  // Sorted 1 2 3 4: rank 0.5 * 3 = 1.5 lies half-way between 2 and 3.
  EXPECT_DOUBLE_EQ(quantile(Values{4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(Values{4, 1, 3, 2}, 0.0), 1);
  EXPECT_DOUBLE_EQ(quantile(Values{4, 1, 3, 2}, 1.0), 4);
  EXPECT_DOUBLE_EQ(quantile(Values{7}, 0.3), 7);
}

TEST(Bootstrap, OfEqualSamplesHasNoSpread) {
  const Estimate estimate = bootstrap_mean(Values{2, 2, 2});
  EXPECT_DOUBLE_EQ(estimate.value, 2);
  ASSERT_TRUE(estimate.interval);
  EXPECT_DOUBLE_EQ(estimate.interval->low, 2);
  EXPECT_DOUBLE_EQ(estimate.interval->high, 2);
  EXPECT_EQ(estimate.samples, 3);
}

TEST(Bootstrap, OfOneSampleHasNoInterval) {
  const Estimate estimate = bootstrap_mean(Values{5});
  EXPECT_DOUBLE_EQ(estimate.value, 5);
  EXPECT_FALSE(estimate.interval);
}

TEST(Bootstrap, OfTwoSamplesReachesBothOfThem) {
  // Means of two draws: 0 with probability 1/4, 1/2 with 1/2, 1 with 1/4; so the 2.5 % and 97.5 % quantiles are 0
  // and 1.
  const Estimate estimate = bootstrap_mean(Values{0, 1});
  EXPECT_DOUBLE_EQ(estimate.value, 0.5);
  EXPECT_DOUBLE_EQ(estimate.interval->low, 0);
  EXPECT_DOUBLE_EQ(estimate.interval->high, 1);
}

TEST(Bootstrap, IntervalOfAMeanAgreesWithTheNormalOne) {
  // 100 values of 0 and 100 of 1: the standard error is 0.5 / sqrt(200), the interval 1.96 of it to each side. The
  // bounds leave 15 % for 2000 resamples.
  Values values(200);
  for (std::size_t i = 0; i < 100; ++i) values[i] = 1;
  const Estimate estimate = bootstrap_mean(values);
  const double half = 1.96 * 0.5 / std::sqrt(200.0);
  EXPECT_NEAR(estimate.interval->low, 0.5 - half, 0.15 * half);
  EXPECT_NEAR(estimate.interval->high, 0.5 + half, 0.15 * half);
}

// Four texts of each of 25 documents, whose values are their document's: there are 25 independent values, not 100, and
// the interval is that of 25. Drawn one by one, the texts would pass for 100 and halve it.
TEST(Bootstrap, DrawsClustersWithAllTheirSamples) {
  Values values, alone;
  std::vector<int> clusters;
  for (int document = 0; document < 25; ++document) {
    alone.push_back(document % 5);
    for (int text = 0; text < 4; ++text) {
      values.push_back(document % 5);
      clusters.push_back(document);
    }
  }
  const Estimate clustered = bootstrap_mean(values, {.clusters = clusters});
  EXPECT_EQ(clustered.samples, 100);
  EXPECT_EQ(clustered.clusters, 25);
  const Estimate documents = bootstrap_mean(alone);  // the same draws
  EXPECT_DOUBLE_EQ(clustered.interval->low, documents.interval->low);
  EXPECT_DOUBLE_EQ(clustered.interval->high, documents.interval->high);
  const Estimate texts = bootstrap_mean(values);
  EXPECT_EQ(texts.clusters, 100);
  EXPECT_NEAR((texts.interval->high - texts.interval->low) / (clustered.interval->high - clustered.interval->low), 0.5,
              0.1);
}

// Two draws of the large cluster have four samples, two of the small one have two.
TEST(Bootstrap, OfUnequalClustersDrawsUnequalNumbersOfSamples) {
  std::vector<int> clusters = {0, 0, 1};
  std::set<std::size_t> sizes;
  bootstrap(3,
            [&](std::span<const int> picks) {
              sizes.insert(picks.size());
              return 0.0;
            },
            {.clusters = clusters});
  EXPECT_EQ(sizes, (std::set<std::size_t>{2, 3, 4}));
}

TEST(Bootstrap, OfOneClusterHasNoInterval) {
  const std::vector<int> clusters = {0, 0, 0};
  EXPECT_FALSE(bootstrap_mean(Values{1, 2, 3}, {.clusters = clusters}).interval);
}

TEST(Bootstrap, IsAFunctionOfItsSeed) {
  const Values values = {1, 2, 4, 8, 16};
  EXPECT_EQ(bootstrap_mean(values).interval->low, bootstrap_mean(values).interval->low);
  EXPECT_NE(bootstrap_mean(values, {.seed = 1}).interval->low, bootstrap_mean(values, {.seed = 3}).interval->low);
}

TEST(Bootstrap, OfPairsSeesADifferenceThatTheSpreadOfSamplesHides) {
  const Values a = {1, 10, 100};
  const Values b = {2, 11, 101};
  const Estimate estimate = bootstrap_difference(a, b);
  EXPECT_DOUBLE_EQ(estimate.value, 1);
  EXPECT_DOUBLE_EQ(estimate.interval->low, 1);
  EXPECT_DOUBLE_EQ(estimate.interval->high, 1);
}

TEST(KendallTau, IsOneForOneOrderingAndMinusOneForItsReverse) {
  EXPECT_DOUBLE_EQ(*kendall_tau_b(Values{1, 2, 3, 4}, Values{10, 20, 30, 40}), 1);
  EXPECT_DOUBLE_EQ(*kendall_tau_b(Values{1, 2, 3, 4}, Values{4, 3, 2, 1}), -1);
}

TEST(KendallTau, CountsDiscordantPairs) {
  // One of 6 pairs, (3, 4), is swapped: (5 - 1) / 6.
  EXPECT_DOUBLE_EQ(*kendall_tau_b(Values{1, 2, 3, 4}, Values{1, 2, 4, 3}), 4.0 / 6);
}

TEST(KendallTau, CorrectsForTies) {
  // Pairs: (1,2): + tie in b; (1,3): + +; (2,3): + +. Concordant 2, discordant 0, untied 3 and 2: 2 / sqrt(6).
  EXPECT_DOUBLE_EQ(*kendall_tau_b(Values{1, 2, 3}, Values{1, 1, 2}), 2 / std::sqrt(6.0));
}

TEST(KendallTau, IsAbsentWithoutAnOrdering) {
  EXPECT_FALSE(kendall_tau_b(Values{1, 2}, Values{3, 3}));
  EXPECT_FALSE(kendall_tau_b(Values{1}, Values{1}));
  EXPECT_FALSE(kendall_tau_b(Values{}, Values{}));
}

}  // namespace
}  // namespace kv
