#include "kernels/select_top.h"

#include <cmath>

#include "tests/ref/select_top.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, SelectTop);

struct Case {
  std::vector<float> scores;     // [rows, pitch]
  std::vector<float> ties = {};  // as scores, or empty
  std::vector<int32_t> counts = {};
  int32_t sinks = 0;
  int32_t recent = 0;
  std::vector<uint8_t> due = {};  // empty: all
  bool may_be_nan = false;
};

constexpr uint8_t kUntouched = 0xFF;

std::vector<uint8_t> select_top(Backend& backend, const ref::PagedCache& cache, const Case& c) {
  Tensor scores = ref::upload_array(backend, c.scores), ties = ref::upload_array(backend, c.ties);
  Tensor counts = ref::upload_array(backend, c.counts), due = ref::upload_array(backend, c.due);
  Tensor keep(backend, DType::kU8, static_cast<int64_t>(c.scores.size()));
  const int64_t pitch = keep.elements() / cache.rows().rows();
  backend.select_top({.cache = cache.view(),
                      .scores = scores.slots<float>(pitch),
                      .ties = c.ties.empty() ? Slots<float>{} : ties.slots<float>(pitch),
                      .counts = ref::data_of<int32_t>(counts),
                      .sinks = c.sinks,
                      .recent = c.recent,
                      .may_be_nan = c.may_be_nan,
                      .rows_due = c.due.empty() ? nullptr : ref::data_of<uint8_t>(due),
                      .keep = keep.slots<uint8_t>(pitch)});
  backend.synchronize();
  return ref::download_array<uint8_t>(keep);
}

std::vector<uint8_t> selected(Backend& backend, const Case& c) {
  return select_top(backend, ref::PagedCache(backend, ref::random_rows({int32_t(c.scores.size())}, 1, 16, 1)), c);
}

using Keep = std::vector<uint8_t>;

TEST_P(SelectTop, KeepsTheHighestScores) {
  KV_BACKEND_OR_SKIP(backend);
  EXPECT_EQ(selected(*backend, {.scores = {3, -1, 4, -2, 5}, .counts = {3}}), (Keep{1, 0, 1, 0, 1}));
  EXPECT_EQ(selected(*backend, {.scores = {-3, -1, -4, -INFINITY, -5}, .counts = {2}}), (Keep{1, 1, 0, 0, 0}));
}

TEST_P(SelectTop, BreaksEqualScoresByTheSecondKeyAndThenByAge) {
  KV_BACKEND_OR_SKIP(backend);
  EXPECT_EQ(selected(*backend, {.scores = {1, 1, 1, 1}, .counts = {2}}), (Keep{0, 0, 1, 1}));
  EXPECT_EQ(selected(*backend, {.scores = {1, 1, 1, 1}, .ties = {0, 9, 0, -1}, .counts = {2}}), (Keep{0, 1, 1, 0}));
  // Zero has one value, whatever its sign.
  EXPECT_EQ(selected(*backend, {.scores = {0.0f, -0.0f}, .counts = {1}}), (Keep{0, 1}));
}

TEST_P(SelectTop, ProtectsSinksAndRecentsWithoutReadingTheirScores) {
  KV_BACKEND_OR_SKIP(backend);
  EXPECT_EQ(selected(*backend, {.scores = {NAN, 1, 7, 3, NAN, NAN}, .counts = {4}, .sinks = 1, .recent = 2}),
            (Keep{1, 0, 1, 0, 1, 1}));
}

TEST_P(SelectTop, CutsTheProtectedSetWhereTheCountIsSmaller) {
  KV_BACKEND_OR_SKIP(backend);
  Case c{.scores = {NAN, NAN, 1, NAN, NAN}, .counts = {3}, .sinks = 2, .recent = 2};
  EXPECT_EQ(selected(*backend, c), (Keep{1, 1, 0, 0, 1}));
  c.counts = {1};
  EXPECT_EQ(selected(*backend, c), (Keep{1, 0, 0, 0, 0}));
  c.counts = {0};
  EXPECT_EQ(selected(*backend, c), (Keep{0, 0, 0, 0, 0}));
}

TEST_P(SelectTop, KeepsAllWhereTheCountIsAtLeastTheLength) {
  KV_BACKEND_OR_SKIP(backend);
  EXPECT_EQ(selected(*backend, {.scores = {1, 2, 3}, .counts = {3}}), (Keep{1, 1, 1}));
  EXPECT_EQ(selected(*backend, {.scores = {1, 2, 3}, .counts = {99}}), (Keep{1, 1, 1}));
}

TEST_P(SelectTop, AgreesWithAFullSortOfTheDocumentedOrder) {
  KV_BACKEND_OR_SKIP(backend);
  // Positions are spread out, so a sink is a matter of position and not of slot.
  const std::vector<int32_t> lengths = {1, 2, 15, 16, 17, 64, 65, 1025, 9001, 40};
  const ref::CacheRows rows = ref::random_rows(lengths, 2, 16, 1, 0, 3);
  const ref::PagedCache cache(*backend, rows, 1);
  const int64_t pitch = 9010;
  // Few distinct values: ties are the common case after a max pool.
  std::vector<float> scores = ref::random_values(rows.rows() * pitch, 2),
                     ties = ref::random_values(rows.rows() * pitch, 3);
  for (float& x : scores) x = std::round(x * 4);
  for (float& x : ties) x = std::round(x * 3);
  for (const auto& [sinks, recent] : std::vector<std::pair<int, int>>{{0, 0}, {4, 0}, {0, 8}, {10, 20}, {5000, 3}}) {
    for (const int numerator : {0, 1, 3, 7, 10, 11}) {
      for (const bool with_ties : {false, true}) {
        Case c{.scores = scores, .ties = with_ties ? ties : std::vector<float>{}, .sinks = sinks, .recent = recent};
        for (const int32_t length : lengths) c.counts.push_back(length * numerator / 10);
        c.due = {1, 1, 1, 1, 0, 1, 1, 1, 1, 1};
        const Keep got = select_top(*backend, cache, c);
        for (int64_t row = 0; row < rows.rows(); ++row) {
          const int64_t length = rows.length(row);
          const std::vector<float> row_ties = with_ties ? ref::slice(ties, row * pitch, length) : std::vector<float>{};
          const Keep want = c.due[row] ? ref::select_top(ref::slice(scores, row * pitch, length), row_ties,
                                                         rows.positions[row], c.counts[row], sinks, recent)
                                       : Keep(length, kUntouched);
          ASSERT_EQ(ref::slice(got, row * pitch, length), want)
              << "row " << row << " count " << c.counts[row] << " sinks " << sinks << " recent " << recent;
          ASSERT_EQ(ref::slice(got, row * pitch + length, pitch - length), Keep(pitch - length, kUntouched));
        }
      }
    }
  }
}

// Its place is that of one, and no more.
TEST_P(SelectTop, GivesWhatMayBeNoNumberSomePlace) {
  KV_BACKEND_OR_SKIP(backend);
  for (const bool ties : {false, true}) {
    const std::vector<float> scores = {1, NAN, 2, 3}, zeros = {0, 0, NAN, 0};
    const Keep got = selected(
        *backend, {.scores = scores, .ties = ties ? zeros : std::vector<float>{}, .counts = {2}, .may_be_nan = true});
    EXPECT_EQ(std::count(got.begin(), got.end(), 1), 2);
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[3], 1);
  }
}

TEST(SelectTopDeathTest, StopsAtAScoreThatIsNotANumber) {
  const auto backend = ref::try_backend("cpu");
  EXPECT_DEATH(selected(*backend, {.scores = {1, NAN, 2}, .counts = {1}}), "internal error");
}

}  // namespace
}  // namespace kv
