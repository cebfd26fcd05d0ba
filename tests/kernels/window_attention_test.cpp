#include "kernels/window_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/expiry.h"
#include "tests/ref/window_attention.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, WindowAttention);

using Mode = WindowAttentionArgs::Mode;

struct Case {
  int window = 1;
  int kv_heads = 1;
  int group = 1;
  int dim = 16;
  Mode mode = Mode::kPerQueryHead;
  int suffixes = 3;  // that are asked for
};

constexpr int kTestedSuffixes[WindowAttentionArgs::kMostSuffixes] = {5, 16, 32, 37};

int64_t vectors_of(const Case& c) {
  switch (c.mode) {
    case Mode::kPerQueryHead:
      return c.group;
    case Mode::kGroupMaxOlder:
    case Mode::kGroupMaxProbabilityOlder:
      return 1;
    case Mode::kSuffixSums:
      return int64_t{c.suffixes} * c.group + 1;  // one that nobody may touch
    case Mode::kExtremes:
      return int64_t{WindowAttentionArgs::kExtremeCount} * c.group + 1;
  }
  return 0;
}

// What is known of the queries.
struct Known {
  std::vector<float> log_sums = {};  // as AttendArgs has them; empty: they saw what is here, and no more
  std::vector<int32_t> rows = {};    // empty: as the queries lie
};

// What attend() would have said of queries that saw what is here: [sequence, query, query head]. One that sees
// nothing is in no suffix here, and has NaN, which nobody may read.
std::vector<float> log_sums_of(const Case& c, const std::vector<float>& queries, const ref::CacheRows& rows,
                               const std::vector<int32_t>& newest) {
  std::vector<float> log_sums;
  const double scale = 1 / std::sqrt(static_cast<float>(c.dim));
  for (int64_t s = 0; s < rows.rows() / c.kv_heads; ++s) {
    for (int i = 0; i < c.window; ++i) {
      for (int head = 0; head < c.kv_heads * c.group; ++head) {
        const int64_t row = s * c.kv_heads + head / c.group, age = c.window - 1 - i;
        const float* query = queries.data() + (s * c.window + i) * c.kv_heads * c.group * c.dim + head * c.dim;
        double sum = 0;
        for (int64_t slot = 0; slot < rows.length(row) - age; ++slot) {
          if (!newest.empty() && rows.expires[row][slot] <= newest[s] - age) continue;
          const float* key = rows.keys[row].data() + slot * c.dim;
          double logit = 0;
          for (int d = 0; d < c.dim; ++d) logit += scale * double{query[d]} * double{key[d]};
          sum += std::exp(logit);
        }
        log_sums.push_back(sum == 0 ? NAN : static_cast<float>(std::log(sum)));
      }
    }
  }
  return log_sums;
}

std::vector<float> window_attention(Backend& backend, const Case& c, const ref::PagedCache& cache,
                                    const std::vector<float>& queries, int64_t pitch, const std::vector<uint8_t>& due,
                                    std::vector<int32_t> suffixes = {}, const std::vector<int32_t>& newest = {},
                                    Known known = {}) {
  const int64_t vectors = vectors_of(c);
  const bool has_planes = c.mode == Mode::kSuffixSums || c.mode == Mode::kExtremes;
  if (has_planes && known.log_sums.empty()) known.log_sums = log_sums_of(c, queries, cache.rows(), newest);
  if (suffixes.empty()) {
    for (int64_t s = 0; s < cache.rows().rows() / c.kv_heads; ++s) {
      suffixes.insert(suffixes.end(), kTestedSuffixes, kTestedSuffixes + c.suffixes);
    }
  }
  Tensor device_queries = ref::upload_activations(backend, queries);
  Tensor device_due = ref::upload_array(backend, due);
  Tensor device_suffixes = ref::upload_array(backend, suffixes), device_newest = ref::upload_array(backend, newest);
  Tensor log_sums = ref::upload_array(backend, known.log_sums), query_rows = ref::upload_array(backend, known.rows);
  Tensor scores(backend, DType::kF32, cache.rows().rows() * vectors * pitch);
  backend.window_attention({.mode = c.mode,
                            .queries = device_queries.ref(),
                            .query_rows = known.rows.empty() ? nullptr : ref::data_of<int32_t>(query_rows),
                            .cache = cache.view(),
                            .log_sums = known.log_sums.empty() ? nullptr : ref::data_of<float>(log_sums),
                            .window = c.window,
                            .q_heads = c.kv_heads * c.group,
                            .scale = 1 / std::sqrt(static_cast<float>(c.dim)),
                            .suffix_count = c.suffixes,
                            .suffixes = c.mode == Mode::kSuffixSums ? ref::data_of<int32_t>(device_suffixes) : nullptr,
                            .newest_positions = newest.empty() ? nullptr : ref::data_of<int32_t>(device_newest),
                            .planes = static_cast<int>(vectors),
                            .rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due),
                            .scores = scores.slots<float>(pitch)});
  backend.synchronize();
  return ref::download_array<float>(scores);
}

// The row's window queries as the reference reads them: [window, group, dim].
std::vector<float> row_queries(const Case& c, const std::vector<float>& queries, int64_t row) {
  std::vector<float> out;
  const int64_t sequence = row / c.kv_heads, head = row % c.kv_heads;
  for (int i = 0; i < c.window; ++i) {
    const int64_t from = (((sequence * c.window + i) * c.kv_heads + head) * c.group) * c.dim;
    const std::vector<float> heads = ref::slice(queries, from, c.group * c.dim);
    out.insert(out.end(), heads.begin(), heads.end());
  }
  return out;
}

// A logit sums dim products of at most √dim in all, and its error passes to the probability as a relative one; then
// come the exponential, the sum over slots in at least 16 lanes and the mean over the window.
ref::Tolerance probability_tolerance(const Case& c, const std::vector<double>& want) {
  const double largest = want.empty() ? 0 : *std::max_element(want.begin(), want.end());
  return {.roundings = (c.dim + 2) * std::sqrt(double(c.dim)) + want.size() / 16.0 + c.window + 8.0,
          .magnitude = largest};
}

// What a mode without planes gives a row.
std::vector<std::vector<double>> reference(const Case& c, const std::vector<float>& queries,
                                           const std::vector<float>& keys) {
  const double scale = 1 / std::sqrt(static_cast<float>(c.dim));
  if (c.mode == Mode::kPerQueryHead) {
    return ref::window_attention_per_head(queries, keys, c.window, c.group, c.dim, scale);
  }
  return {c.mode == Mode::kGroupMaxOlder
              ? ref::window_attention_group_max(queries, keys, c.window, c.group, c.dim, scale)
              : ref::window_attention_group_max_probability(queries, keys, c.window, c.group, c.dim, scale)};
}

void expect_agreement(Backend& backend, const Case& c, const std::vector<int32_t>& lengths,
                      const std::vector<uint8_t>& due) {
  const ref::CacheRows rows = ref::random_rows(lengths, c.kv_heads, c.dim, 5, 0, 3);
  const ref::PagedCache cache(backend, rows, 1);
  const int64_t sequences = rows.rows() / c.kv_heads, pitch = rows.max_length() + 3;
  const std::vector<float> queries =
      ref::rounded(backend, ref::random_values(sequences * c.window * c.kv_heads * c.group * c.dim, 6));
  const std::vector<float> got = window_attention(backend, c, cache, queries, pitch, due);
  const int64_t vectors = vectors_of(c);
  for (int64_t row = 0; row < rows.rows(); ++row) {
    const bool skipped = !due.empty() && !due[row];
    std::vector<std::vector<double>> want(vectors);
    if (!skipped) want = reference(c, row_queries(c, queries, row), cache.rows().keys[row]);
    for (int64_t g = 0; g < vectors; ++g) {
      const int64_t base = (row * vectors + g) * pitch, count = static_cast<int64_t>(want[g].size());
      ref::expect_close(ref::slice(got, base, count), want[g], probability_tolerance(c, want[g]));
      ref::expect_untouched(got, base + count, base + pitch);
    }
  }
}

TEST_P(WindowAttention, AgreesWithDoubleArithmeticPerQueryHead) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agreement(*backend, {.window = 1}, {1}, {});
  expect_agreement(*backend, {.window = 1, .kv_heads = 2, .group = 2}, {1, 2, 15, 16, 17, 64, 65, 513}, {});
  expect_agreement(*backend, {.window = 8, .kv_heads = 2, .group = 3, .dim = 64}, {8, 9, 33, 100, 8, 600}, {});
  expect_agreement(*backend, {.window = 32, .kv_heads = 1, .group = 4, .dim = 64}, {32, 47}, {});
  expect_agreement(*backend, {.window = 70, .kv_heads = 2, .group = 3, .dim = 128}, {70, 71, 150, 530}, {});
}

TEST_P(WindowAttention, AgreesWithDoubleArithmeticForTheMaximumOverTheGroup) {
  KV_BACKEND_OR_SKIP(backend);
  const Mode mode = Mode::kGroupMaxOlder;
  expect_agreement(*backend, {.window = 1, .mode = mode}, {1, 2}, {});
  expect_agreement(*backend, {.window = 8, .kv_heads = 2, .group = 2, .dim = 64, .mode = mode},
                   {8, 9, 23, 24, 25, 100, 519, 521}, {});
  expect_agreement(*backend, {.window = 3, .kv_heads = 1, .group = 5, .mode = mode}, {40}, {});
  expect_agreement(*backend, {.window = 70, .kv_heads = 2, .group = 3, .dim = 128, .mode = mode}, {70, 71, 150, 530},
                   {});
}

// Windows around multiples of 16 and groups around multiples of 4, of which a GPU's tiles are made, and more of both
// than a CPU holds at a time.
TEST_P(WindowAttention, AgreesWithDoubleArithmeticForTheMaximalProbabilityOfTheGroup) {
  KV_BACKEND_OR_SKIP(backend);
  const Mode mode = Mode::kGroupMaxProbabilityOlder;
  expect_agreement(*backend, {.window = 1, .mode = mode}, {1, 2}, {});
  expect_agreement(*backend, {.window = 8, .kv_heads = 2, .group = 2, .dim = 64, .mode = mode},
                   {8, 9, 23, 24, 25, 100, 519, 521}, {});
  expect_agreement(*backend, {.window = 3, .group = 5, .mode = mode}, {40}, {});
  expect_agreement(*backend, {.window = 16, .group = 8, .mode = mode}, {16, 17, 200}, {});
  expect_agreement(*backend, {.window = 17, .kv_heads = 2, .group = 3, .dim = 64, .mode = mode},
                   {17, 18, 81, 145, 146, 600}, {});
  expect_agreement(*backend, {.window = 48, .group = 4, .dim = 32, .mode = mode}, {49, 176, 177}, {});
  expect_agreement(*backend, {.window = 70, .kv_heads = 2, .group = 3, .dim = 128, .mode = mode}, {70, 71, 150, 530},
                   {});
  expect_agreement(*backend, {.window = 5, .group = 2, .dim = 256, .mode = mode}, {6, 69, 70, 140}, {});
  expect_agreement(*backend, {.window = 2, .group = 130, .mode = mode}, {3, 70}, {});
  expect_agreement(*backend, {.window = 256, .group = 4, .dim = 128, .mode = mode}, {256, 257, 700}, {});
}

// want(row)[k · group + g] are a row's statistics, those of a row that is not due empty; nothing else is written.
template <class Want>
void expect_statistics(Backend& backend, const Case& c, const Want& want_of) {
  const std::vector<int32_t> lengths = {37, 40, 64, 100, 47, 600};
  const std::vector<uint8_t> due = {1, 1, 1, 1, 0, 1};
  const ref::PagedCache cache(backend, ref::random_rows(lengths, c.kv_heads, c.dim, 5, 0, 3), 1);
  const int64_t pitch = 603;
  const std::vector<float> queries =
      ref::rounded(backend, ref::random_values(3 * c.window * c.kv_heads * c.group * c.dim, 6));
  const std::vector<float> got = window_attention(backend, c, cache, queries, pitch, due);
  const int64_t vectors = vectors_of(c);
  for (int64_t row = 0; row < std::ssize(lengths); ++row) {
    std::vector<std::vector<double>> want(vectors - 1);
    if (due[row]) want = want_of(row_queries(c, queries, row), cache.rows().keys[row]);
    for (int64_t v = 0; v < vectors - 1; ++v) {
      const int64_t base = (row * vectors + v) * pitch, count = static_cast<int64_t>(want[v].size());
      ref::expect_close(ref::slice(got, base, count), want[v], probability_tolerance(c, want[v]));
      ref::expect_untouched(got, base + count, base + pitch);
    }
    ref::expect_untouched(got, ((row + 1) * vectors - 1) * pitch, (row + 1) * vectors * pitch);
  }
}

std::vector<std::vector<double>> suffix_sums(const Case& c, const std::vector<float>& queries,
                                             const std::vector<float>& keys, const int32_t* suffixes,
                                             const std::vector<int32_t>& expires, int32_t newest) {
  std::vector<std::vector<double>> want;
  for (int k = 0; k < c.suffixes; ++k) {
    for (const std::vector<double>& sums :
         ref::window_attention_suffix(queries, keys, c.window, suffixes[k], c.group, c.dim,
                                      1 / std::sqrt(static_cast<float>(c.dim)), expires, newest)) {
      want.push_back(sums);
    }
  }
  return want;
}

TEST_P(WindowAttention, AgreesWithDoubleArithmeticForSumsOverSuffixes) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int suffixes : {3, 4}) {
    for (const int group : {1, 2, 3, 8}) {
      const Case c{.window = kTestedSuffixes[suffixes - 1],
                   .kv_heads = 2,
                   .group = group,
                   .dim = 64,
                   .mode = Mode::kSuffixSums,
                   .suffixes = suffixes};
      expect_statistics(*backend, c, [&](const std::vector<float>& queries, const std::vector<float>& keys) {
        return suffix_sums(c, queries, keys, kTestedSuffixes, {}, 0);
      });
    }
  }
}

// Every sequence has suffixes of its own, of no query even, its heads unequally many entries, of which some expire
// while the window's queries come. Rows may be shorter than the window, where it has queries that are in no suffix:
// those are NaN here.
TEST_P(WindowAttention, SumsSuffixesOfEachSequenceOverWhatItsQueriesSee) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {9, 12, 500, 36, 64, 70, 33, 300};
  const std::vector<int32_t> suffixes = {5, 9, 9, 8, 16, 32, 0, 0, 0, 0, 1, 17};
  const std::vector<int32_t> newest = {100, 7000, 5, 333};
  for (const int group : {1, 2, 4}) {
    for (const bool expires : {false, true}) {
      const Case c{.window = 32, .kv_heads = 2, .group = group, .dim = 64, .mode = Mode::kSuffixSums};
      ref::CacheRows rows = ref::random_rows(lengths, 2, c.dim, 5);
      for (int64_t row = 0; row < rows.rows() && expires; ++row) {
        // Of the newest 60 entries, those that the window's queries have brought excepted, two in three expire by and
        // by.
        std::vector<int32_t>& until = rows.expires.emplace_back();
        const int64_t length = rows.length(row), own = suffixes[row / 2 * 3 + 2];
        for (int64_t slot = 0; slot < length; ++slot) {
          const bool stays = slot % 3 == 0 || slot >= length - own || slot < length - 60;
          until.push_back(stays ? kNeverExpires : newest[row / 2] - 31 + static_cast<int32_t>(slot * 7 % 40));
        }
        rows.expiring = 60;
      }
      const ref::PagedCache cache(*backend, rows, 1);
      const int64_t vector = int64_t{c.kv_heads} * group * c.dim, pitch = 503;
      std::vector<float> queries = ref::rounded(*backend, ref::random_values(4 * c.window * vector, 6));
      for (int64_t s = 0; s < 4; ++s) {
        std::fill_n(queries.begin() + s * c.window * vector, (c.window - suffixes[s * 3 + 2]) * vector, NAN);
      }
      const std::vector<int32_t> positions = expires ? newest : std::vector<int32_t>{};
      const std::vector<float> got = window_attention(*backend, c, cache, queries, pitch, {}, suffixes, positions);
      const Known known{.log_sums = std::vector<float>(static_cast<size_t>(4 * c.window * c.kv_heads * group), 1.0f)};
      const std::vector<float> of_known =
          window_attention(*backend, c, cache, queries, pitch, {}, suffixes, positions, known);
      const int64_t vectors = vectors_of(c);
      for (int64_t row = 0; row < rows.rows(); ++row) {
        const std::vector<std::vector<double>> want =
            suffix_sums(c, row_queries(c, queries, row), cache.rows().keys[row], &suffixes[row / 2 * 3],
                        expires ? rows.expires[row] : std::vector<int32_t>{}, newest[row / 2]);
        for (int64_t v = 0; v < vectors - 1; ++v) {
          const int64_t base = (row * vectors + v) * pitch, count = std::ssize(want[v]);
          ref::expect_close(ref::slice(got, base, count), want[v], probability_tolerance(c, want[v]));
          ref::expect_untouched(got, base + count, base + pitch);
          // Whatever the queries' sums, what none of them sees has nothing, and all else something.
          for (int64_t slot = 0; slot < count; ++slot) {
            ASSERT_EQ(of_known[base + slot] > 0, want[v][slot] > 0) << row << ", " << v << ", " << slot;
          }
        }
      }
    }
  }
}

// Query by query, each a window of its own over the entries that it sees.
TEST_P(WindowAttention, AgreesWithDoubleArithmeticForExtremes) {
  KV_BACKEND_OR_SKIP(backend);
  struct Shape {
    int group, window;
  };
  for (const Shape shape : {Shape{1, 1}, Shape{1, 32}, Shape{2, 37}, Shape{3, 7}, Shape{8, 33}}) {
    const int group = shape.group, window = shape.window;
    const Case c{.window = window, .kv_heads = 2, .group = group, .dim = 64, .mode = Mode::kExtremes};
    expect_statistics(*backend, c, [&](const std::vector<float>& queries, const std::vector<float>& keys) {
      const int64_t vector = int64_t{group} * c.dim, length = std::ssize(keys) / c.dim;
      std::vector<std::vector<double>> want(3 * group, std::vector<double>(length));
      for (int64_t i = 0; i < window; ++i) {
        const std::vector<std::vector<double>> seen = ref::window_attention_per_head(
            ref::slice(queries, i * vector, vector), ref::slice(keys, 0, (length - window + i + 1) * c.dim), 1, group,
            c.dim, 1 / std::sqrt(static_cast<float>(c.dim)));
        for (int64_t g = 0; g < group; ++g) {
          for (int64_t slot = 0; slot < length; ++slot) {
            const double p = slot < std::ssize(seen[g]) ? seen[g][slot] : 0;
            double &highest = want[g][slot], &lowest = want[group + g][slot];
            highest = i == 0 ? p : std::max(highest, p);
            lowest = i == 0 ? p : std::min(lowest, p);
            want[2 * group + g][slot] += p;
          }
        }
      }
      return want;
    });
  }
}

// Queries that lie in another order, and had seen twice as much as is here, or nothing.
TEST_P(WindowAttention, GivesTheProbabilityAmongAllThatAQuerySaw) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Mode mode : {Mode::kSuffixSums, Mode::kExtremes}) {
    for (const int group : {1, 2, 3, 8}) {
      const Case c{.window = 32, .kv_heads = 2, .group = group, .dim = 64, .mode = mode};
      const ref::PagedCache cache(*backend, ref::random_rows({37, 40, 64, 100, 47, 600}, 2, c.dim, 5), 1);
      const int64_t heads = int64_t{c.kv_heads} * group, vector = heads * c.dim, count = 3 * c.window, pitch = 603;
      const std::vector<float> queries = ref::rounded(*backend, ref::random_values(count * vector, 6));
      const std::vector<float> log_sums = log_sums_of(c, queries, cache.rows(), {});
      Known known, nothing;
      std::vector<float> reversed;
      for (int64_t i = count - 1; i >= 0; --i) {
        known.rows.push_back(static_cast<int32_t>(i));
        reversed.insert(reversed.end(), queries.begin() + i * vector, queries.begin() + (i + 1) * vector);
        for (int64_t head = 0; head < heads; ++head)
          known.log_sums.push_back(log_sums[i * heads + head] + std::log(2.0f));
      }
      nothing.log_sums.assign(log_sums.size(), std::numeric_limits<float>::infinity());
      const std::vector<int32_t> suffixes = {5, 16, 32, 1, 1, 20, 8, 16, 32};
      const std::vector<float> want = window_attention(*backend, c, cache, queries, pitch, {}, suffixes);
      const std::vector<float> got = window_attention(*backend, c, cache, reversed, pitch, {}, suffixes, {}, known);
      const std::vector<float> none = window_attention(*backend, c, cache, queries, pitch, {}, suffixes, {}, nothing);
      for (int64_t row = 0; row < 6; ++row) {
        for (int64_t v = 0; v < 3 * group; ++v) {
          const int64_t at = (row * vectors_of(c) + v) * pitch, length = cache.rows().length(row);
          std::vector<double> half;
          for (const float among_these : ref::slice(want, at, length)) half.push_back(double{among_these} / 2);
          ref::Tolerance tolerance = probability_tolerance(c, half);
          tolerance.roundings *= 2;
          ref::expect_close(ref::slice(got, at, length), half, tolerance);
          EXPECT_EQ(ref::slice(none, at, length), std::vector<float>(static_cast<size_t>(length), 0));
        }
      }
    }
  }
}

TEST_P(WindowAttention, LeavesRowsThatAreNotDueAlone) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agreement(*backend, {.window = 4, .kv_heads = 2, .group = 2}, {9, 12, 20, 33}, {0, 1, 1, 0});
  expect_agreement(*backend, {.window = 4, .kv_heads = 2, .group = 2, .mode = Mode::kGroupMaxOlder}, {9, 12, 20, 33},
                   {1, 0, 0, 1});
  expect_agreement(*backend, {.window = 4, .kv_heads = 2, .group = 2, .mode = Mode::kGroupMaxProbabilityOlder},
                   {9, 12, 20, 33}, {0, 1, 0, 1});
  // A row that is not due may even be shorter than the window.
  expect_agreement(*backend, {.window = 4, .kv_heads = 1, .group = 2}, {2, 33}, {0, 1});
}

TEST_P(WindowAttention, GivesEqualKeysEqualShares) {
  KV_BACKEND_OR_SKIP(backend);
  // Zero keys: the first query sees slots 0 and 1, the second all three. (1/2 + 1/3) / 2 twice, then 1/3 / 2.
  ref::CacheRows rows = ref::random_rows({3}, 1, 16, 1);
  std::fill(rows.keys[0].begin(), rows.keys[0].end(), 0.0f);
  const ref::PagedCache cache(*backend, rows);
  const Case c{.window = 2};
  const std::vector<float> got = window_attention(*backend, c, cache, ref::random_values(32, 2), 3, {});
  ref::expect_close(got, std::vector<double>{5.0 / 12, 5.0 / 12, 1.0 / 6}, {.roundings = 4});
}

TEST(WindowAttentionThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const Case c{.window = 8, .kv_heads = 2, .group = 2, .dim = 64};
  const ref::PagedCache cache(*backend, ref::random_rows({700, 530, 64, 90}, 2, 64, 7));
  const std::vector<float> queries = ref::random_values(2 * 8 * 4 * 64, 8);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const ref::Threads limit(threads);
    std::vector<float> got = window_attention(*backend, c, cache, queries, 704, {});
    std::replace_if(
        got.begin(), got.end(), [](float x) { return std::isnan(x); }, -1.0f);
    results.push_back(got);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace kv
