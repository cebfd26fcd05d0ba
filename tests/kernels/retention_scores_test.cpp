#include "kernels/retention_scores.h"

#include <algorithm>
#include <cmath>

#include "tests/ref/retention_scores.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RetentionScores);

constexpr int kColumns = 3, kColumn = 1;

struct Asked {
  std::vector<int32_t> tokens_seen;
  int horizon = 1;
  int age_offset = 1;
  std::vector<uint8_t> due = {};
};

std::vector<float> retention_scores(Backend& backend, const ref::PagedCache& cache, int64_t pitch, const Asked& asked,
                                    int column = kColumn) {
  Tensor seen = ref::upload_array(backend, asked.tokens_seen), due = ref::upload_array(backend, asked.due);
  Tensor scores(backend, DType::kF32, cache.rows().rows() * pitch);
  backend.retention_scores({.cache = cache.view(),
                            .column = column,
                            .tokens_seen = ref::data_of<int32_t>(seen),
                            .horizon = asked.horizon,
                            .age_offset = asked.age_offset,
                            .rows_due = asked.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                            .scores = scores.slots<float>(pitch)});
  backend.synchronize();
  return ref::download_array<float>(scores);
}

// Relative to the sum: H log β, both expm1, their quotient and its logarithm move it by 5 roundings, of which each
// factor's size is at most 1; a · log β and what joins the two by one of their own sizes each.
ref::Tolerance tolerance(double log_retention, double age, int horizon) {
  return {.roundings = 5, .magnitude = 1 + 2 * std::abs(age * log_retention) + std::log(static_cast<double>(horizon))};
}

// One entry of one head, at position 0.
ref::CacheRows one_entry(float log_retention) {
  return {.kv_heads = 1,
          .head_dim = 16,
          .column_width = 1,
          .keys = {std::vector<float>(16, 1.0F)},
          .values = {std::vector<float>(16, 1.0F)},
          .positions = {{0}},
          .columns = {{log_retention}}};
}

// Age is t − i, of which one less was the newest token's position.
TEST_P(RetentionScores, AreThoseComputedByHand) {
  KV_BACKEND_OR_SKIP(backend);
  struct Vector {
    double retention;
    int32_t age;
    int horizon;
    double want;
  };
  for (const Vector& v : {Vector{0.9, 0, 1, -0.105361},
                          {0.9, 3, 1, -0.421442},
                          {0.9, 3, 8, 1.318204},
                          {0.999, 3, 8, 2.071940},
                          {0.999, 200, 128, 4.588081},
                          {0.5, 0, 128, 0}}) {
    const auto log_retention = static_cast<float>(std::log(v.retention));
    const ref::PagedCache cache(*backend, one_entry(log_retention));
    const std::vector<float> got = retention_scores(*backend, cache, 1, {{v.age + 1}, v.horizon}, 0);
    // Printed with six digits behind the point.
    EXPECT_NEAR(got[0], v.want, 6e-7 + tolerance(log_retention, v.age + 1, v.horizon).allowed())
        << v.retention << ", " << v.age << ", " << v.horizon;
  }
}

// β from far to so near 1 that H · log β is below a rounding of 1.
std::vector<float> log_retentions() {
  std::vector<float> all = {0.0F, -30.0F, -5.0F, -1.0F, -0.7F, -0.69F};
  for (float x = -0.5F; x < -1e-12F; x /= 3) all.push_back(x);
  all.push_back(-1e-8F);
  all.push_back(-1e-40F);  // below the normal range
  return all;
}

TEST_P(RetentionScores, AgreeWithExtendedArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {0, 1, 15, 16, 17, 33, 257, 300};
  constexpr int64_t kPitch = 310;
  const std::vector<float> of = log_retentions();
  ref::CacheRows rows = ref::random_rows(lengths, 2, 16, 5, kColumns, 3);
  for (size_t row = 0, next = 0; row < lengths.size(); ++row) {
    for (int32_t slot = 0; slot < lengths[row]; ++slot)
      rows.columns[row][slot * kColumns + kColumn] = of[next++ % of.size()];
  }
  const ref::PagedCache cache(*backend, std::move(rows), 1);
  const std::vector<uint8_t> due = {1, 1, 1, 1, 0, 1, 1, 1};
  for (const int horizon : {1, 2, 8, 128, 5000}) {
    for (const int offset : {0, 1, 2}) {
      const std::vector<int32_t> seen = {50, 60, 100, 1000};
      const std::vector<float> got = retention_scores(*backend, cache, kPitch, {seen, horizon, offset, due});
      for (size_t row = 0; row < lengths.size(); ++row) {
        const auto at = static_cast<int64_t>(row) * kPitch;
        const int32_t count = due[row] != 0 ? lengths[row] : 0;
        for (int32_t slot = 0; slot < count; ++slot) {
          const double log_retention = cache.rows().columns[row][slot * kColumns + kColumn];
          const double age = seen[row / 2] - 1 - cache.rows().positions[row][slot] + offset;
          ASSERT_TRUE(ref::is_close(got[at + slot], ref::retention_score(log_retention, age, horizon),
                                    tolerance(log_retention, age, horizon)))
              << "log β " << log_retention << ", age " << age << ", horizon " << horizon;
        }
        ref::expect_untouched(got, at + count, at + kPitch);
      }
    }
  }
}

// What is told apart by log β alone: β rounds to 1 for all of them.
TEST_P(RetentionScores, TellRetentionsNearOneApart) {
  KV_BACKEND_OR_SKIP(backend);
  ref::CacheRows rows = ref::random_rows({4}, 1, 16, 5, 1);
  rows.columns[0] = {-3e-8F, -1e-8F, -2e-8F, 0.0F};
  const ref::PagedCache cache(*backend, std::move(rows));
  const std::vector<float> got = retention_scores(*backend, cache, 4, {{1000}}, 0);
  ref::expect_close(got, std::vector<double>{-3e-5, 999 * -1e-8, 998 * -2e-8, 0}, {.roundings = 2, .magnitude = 3e-5});
  ref::expect_close(retention_scores(*backend, cache, 4, {{1000}, 128}, 0)[3], std::log(128.0),
                    {.magnitude = std::log(128.0)});
}

TEST(RetentionScoresThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const ref::PagedCache cache(*backend, ref::random_rows({40, 30, 20, 10}, 2, 16, 5, kColumns));
  ref::CacheRows rows = cache.rows();
  for (auto& row : rows.columns) {
    for (float& x : row) x = -std::abs(x);
  }
  const ref::PagedCache negative(*backend, rows);
  const auto on_threads = [&](int count) {
    const ref::Threads threads(count);
    std::vector<float> got = retention_scores(*backend, negative, 40, {{50, 50}, 8});
    std::replace_if(
        got.begin(), got.end(), [](float x) { return std::isnan(x); }, 0.0F);
    return got;
  };
  EXPECT_EQ(on_threads(1), on_threads(2));
}

}  // namespace
}  // namespace kv
