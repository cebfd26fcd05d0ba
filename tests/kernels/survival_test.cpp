#include "kernels/survival.h"

#include <algorithm>

#include "tests/ref/survival.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, Survival);

struct Options {
  int q_heads = 1;
  int top_k = 0;
  float mass = 0;
  int64_t pitch = 0;
};

std::vector<int32_t> survival(Backend& backend, const ref::PagedCache& cache, const std::vector<Segment>& segments,
                              const std::vector<float>& queries, const Options& options,
                              const std::vector<int32_t>& before) {
  Tensor device_queries = ref::upload_activations(backend, queries), words = ref::upload_segments(backend, segments);
  Tensor last = ref::upload_array(backend, before);
  backend.survival({.queries = device_queries.ref(),
                    .cache = cache.view(),
                    .segments = ref::segments_of(words),
                    .segment_count = static_cast<int64_t>(segments.size()),
                    .q_heads = options.q_heads,
                    .scale = 1 / std::sqrt(static_cast<float>(cache.rows().head_dim)),
                    .top_k = options.top_k,
                    .mass = options.mass,
                    .last_selected = last.slots<int32_t>(options.pitch)});
  backend.synchronize();
  return ref::download_array<int32_t>(last);
}

// Keys along one axis, so a query (1, 0, …) has the logits c / 4; exact in every arithmetic.
ref::CacheRows keys_along_an_axis(const std::vector<float>& c) {
  ref::CacheRows rows = ref::random_rows({static_cast<int32_t>(c.size())}, 1, 16, 1);
  std::fill(rows.keys[0].begin(), rows.keys[0].end(), 0.0f);
  for (size_t j = 0; j < c.size(); ++j) rows.keys[0][j * 16] = c[j];
  return rows;
}

std::vector<float> axis_queries(int count) {
  std::vector<float> queries(count * 16);
  for (int i = 0; i < count; ++i) queries[i * 16] = 1;
  return queries;
}

TEST_P(Survival, RecordsTheLastQueryThatSelectedAKey) {
  KV_BACKEND_OR_SKIP(backend);
  // Queries at 2, 3 and 4 select two keys each: {0, 1}, {0, 3}, {3, 0} (slots 0 … 4: 5, 4, 1, 6, 2).
  const ref::PagedCache cache(*backend, keys_along_an_axis({5, 4, 1, 6, 2}));
  const std::vector<int32_t> before = {-1, -1, -1, -1, -1, 77};
  const std::vector<int32_t> got = survival(*backend, cache, {{.count = 3, .first_position = 2}}, axis_queries(3),
                                            {.q_heads = 1, .top_k = 2, .pitch = 6}, before);
  EXPECT_EQ(got, (std::vector<int32_t>{4, 2, -1, 4, -1, 77}));
}

TEST_P(Survival, GivesTiesToTheNewerKeyAndKeepsLaterRecords) {
  KV_BACKEND_OR_SKIP(backend);
  const ref::PagedCache cache(*backend, keys_along_an_axis({1, 1, 1, 1}));
  const std::vector<int32_t> got = survival(*backend, cache, {{.count = 1, .first_position = 3}}, axis_queries(1),
                                            {.q_heads = 1, .top_k = 2, .pitch = 4}, {-1, -1, 9, -1});
  EXPECT_EQ(got, (std::vector<int32_t>{-1, -1, 9, 3}));
}

// More keys than a thread block looks at in one round.
TEST_P(Survival, CountsTiesOverALongText) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int kKeys = 5003, kTop = 3001;
  std::vector<float> c(kKeys, 1);
  c[7] = 2;
  const ref::PagedCache cache(*backend, keys_along_an_axis(c));
  std::vector<int32_t> want(kKeys, -1);
  std::fill(want.end() - (kTop - 1), want.end(), kKeys - 1);
  want[7] = kKeys - 1;
  EXPECT_EQ(survival(*backend, cache, {{.count = 1, .first_position = kKeys - 1}}, axis_queries(1),
                     {.q_heads = 1, .top_k = kTop, .pitch = kKeys}, std::vector<int32_t>(kKeys, -1)),
            want);
}

TEST_P(Survival, TakesTheSmallestSetThatReachesTheMass) {
  KV_BACKEND_OR_SKIP(backend);
  // Weights ∝ 4, 2, 1, 1 (logits c / 4): 1/2 + 1/4 reaches 0.7 and not 0.8, for which the newer quarter joins.
  const float step = 4 * std::log(2.0f);
  const ref::PagedCache cache(*backend, keys_along_an_axis({2 * step, step, 0, 0}));
  const std::vector<Segment> last_query = {{.count = 1, .first_position = 3}};
  const std::vector<int32_t> none(4, -1);
  EXPECT_EQ(survival(*backend, cache, last_query, axis_queries(1), {.q_heads = 1, .top_k = 0, .mass = 0.7f, .pitch = 4},
                     none),
            (std::vector<int32_t>{3, 3, -1, -1}));
  EXPECT_EQ(survival(*backend, cache, last_query, axis_queries(1), {.q_heads = 1, .top_k = 0, .mass = 0.8f, .pitch = 4},
                     none),
            (std::vector<int32_t>{3, 3, -1, 3}));
}

TEST_P(Survival, AgreesWithASortOfDoubleProbabilities) {
  KV_BACKEND_OR_SKIP(backend);
  const int kv_heads = 2, group = 2, dim = 64, q_heads = kv_heads * group;
  // Sequence 1 has ended; sequence 2 is all new.
  const ref::PagedCache cache(*backend, ref::random_rows({200, 200, 30, 30, 19, 19}, kv_heads, dim, 4), 1);
  const std::vector<Segment> segments = {{.sequence = 0, .first_token = 0, .count = 35, .first_position = 165},
                                         {.sequence = 1, .first_token = 35, .count = 0, .first_position = 30},
                                         {.sequence = 2, .first_token = 35, .count = 19, .first_position = 0}};
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(54 * q_heads * dim, 5));
  const int64_t pitch = 203;
  const std::vector<int32_t> before(6 * group * pitch, -1);
  for (const auto& [top_k, mass] : std::vector<std::pair<int, float>>{{1, 0}, {7, 0}, {64, 0}, {500, 0}, {0, 0.37f}}) {
    std::vector<int32_t> want = before;
    for (const Segment& s : segments) {
      for (int i = 0; i < s.count; ++i) {
        for (int h = 0; h < q_heads; ++h) {
          const int64_t row = s.sequence * kv_heads + h / group, seen = cache.rows().length(row) - s.count + i + 1;
          for (const int slot : ref::selected_slots(ref::slice(queries, ((s.first_token + i) * q_heads + h) * dim, dim),
                                                    ref::slice(cache.rows().keys[row], 0, seen * dim), top_k, mass,
                                                    1 / std::sqrt(float(dim)))) {
            want[(row * group + h % group) * pitch + slot] = s.first_position + i;
          }
        }
      }
    }
    EXPECT_EQ(survival(*backend, cache, segments, queries,
                       {.q_heads = q_heads, .top_k = top_k, .mass = mass, .pitch = pitch}, before),
              want)
        << "top_k " << top_k;
  }
}

}  // namespace
}  // namespace kv
