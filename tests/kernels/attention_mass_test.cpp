#include "kernels/attention_mass.h"

#include "kernels/expiry.h"
#include "tests/ref/attention_mass.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, AttentionMass);

struct Query {
  int32_t sequence = 0;
  int32_t position = 0;
  std::vector<int32_t> set = {};
};

std::vector<float> attention_mass(Backend& backend, const ref::PagedCache& cache, int group,
                                  const std::vector<Query>& list, const std::vector<float>& queries) {
  std::vector<int32_t> sequences, positions, set, begin = {0};
  for (const Query& query : list) {
    sequences.push_back(query.sequence);
    positions.push_back(query.position);
    set.insert(set.end(), query.set.begin(), query.set.end());
    begin.push_back(static_cast<int32_t>(set.size()));
  }
  const int q_heads = cache.rows().kv_heads * group;
  const int64_t count = static_cast<int64_t>(list.size());
  Tensor device_queries = ref::upload_activations(backend, queries),
         device_sequences = ref::upload_array(backend, sequences);
  Tensor device_positions = ref::upload_array(backend, positions), device_set = ref::upload_array(backend, set);
  Tensor device_begin = ref::upload_array(backend, begin), mass(backend, DType::kF32, count * q_heads);
  backend.attention_mass({.queries = device_queries.ref(),
                          .sequences = ref::data_of<int32_t>(device_sequences),
                          .query_positions = ref::data_of<int32_t>(device_positions),
                          .set_positions = ref::data_of<int32_t>(device_set),
                          .set_begin = ref::data_of<int32_t>(device_begin),
                          .count = count,
                          .cache = cache.view(),
                          .q_heads = q_heads,
                          .scale = 1 / std::sqrt(static_cast<float>(cache.rows().head_dim)),
                          .mass = ref::data_of<float>(mass)});
  backend.synchronize();
  return ref::download_array<float>(mass);
}

TEST_P(AttentionMass, CountsVisibleResidentsOfTheSet) {
  KV_BACKEND_OR_SKIP(backend);
  // Zero keys at positions 0, 2, 4, 6: the query at 5 sees three of them. Of its set {1, 2, 6}, 1 is not resident and 6
  // is not visible yet.
  ref::CacheRows rows = ref::random_rows({4}, 1, 16, 1, 0, 2);
  std::fill(rows.keys[0].begin(), rows.keys[0].end(), 0.0f);
  const ref::PagedCache cache(*backend, rows);
  const std::vector<Query> list = {
      {.position = 5, .set = {1, 2, 6}}, {.position = 5}, {.position = 6, .set = {0, 2, 4, 6}}};
  ref::expect_close(attention_mass(*backend, cache, 1, list, ref::random_values(48, 1)),
                    std::vector<double>{1.0 / 3, 0, 1}, {.roundings = 2});
}

TEST_P(AttentionMass, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  const int kv_heads = 2, group = 3, dim = 64, q_heads = kv_heads * group;
  const ref::PagedCache cache(*backend, ref::random_rows({1, 17, 100, 64, 33, 16}, kv_heads, dim, 2, 0, 3), 1);
  std::vector<Query> list;
  for (int n = 0; n < 57; ++n) {
    Query query{.sequence = n / 20, .position = (n * 37) % 310};
    for (int p = n % 5; p < 300; p += 1 + n % 7) query.set.push_back(p);
    list.push_back(query);
  }
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(list.size() * q_heads * dim, 3));
  const std::vector<float> got = attention_mass(*backend, cache, group, list, queries);
  const double scale = 1 / std::sqrt(static_cast<float>(dim));
  for (size_t n = 0; n < list.size(); ++n) {
    for (int h = 0; h < q_heads; ++h) {
      const int64_t row = list[n].sequence * kv_heads + h / group;
      const double want = ref::attention_mass(ref::slice(queries, (n * q_heads + h) * dim, dim), cache.rows().keys[row],
                                              cache.rows().positions[row], list[n].position, list[n].set, scale);
      // A logit is off by (dim + 2) roundings of √dim, the mass relatively by as much.
      ref::expect_close(got[n * q_heads + h], want, {.roundings = (dim + 2) * 8.0 + 16, .magnitude = want});
    }
  }
}

// Against the same cache without what has expired by then; a query may see nothing of a row.
TEST_P(AttentionMass, LeavesOutWhatHasExpired) {
  KV_BACKEND_OR_SKIP(backend);
  const int dim = 64, group = 2, kv_heads = 2, q_heads = kv_heads * group;
  ref::CacheRows rows = ref::random_rows({40, 90, 33, 64}, kv_heads, dim, 4, 0, 2);
  for (size_t row = 0; row < rows.positions.size(); ++row) {
    rows.expires.emplace_back();
    for (size_t slot = 0; slot < rows.positions[row].size(); ++slot) {
      const int32_t position = rows.positions[row][slot];
      rows.expires[row].push_back(row == 1 ? position : (slot * 7 + row) % 3 == 0 ? kNeverExpires : position + 20);
    }
  }
  const ref::PagedCache cache(*backend, rows);
  std::vector<Query> list;
  for (int n = 0; n < 24; ++n) {
    Query query{.sequence = n / 12, .position = 3 + n * 7};
    for (int p = n % 3; p < 180; p += 1 + n % 4) query.set.push_back(p);
    list.push_back(query);
  }
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(list.size() * q_heads * dim, 5));
  const std::vector<float> got = attention_mass(*backend, cache, group, list, queries);
  const double scale = 1 / std::sqrt(static_cast<float>(dim));
  for (size_t n = 0; n < list.size(); ++n) {
    for (int h = 0; h < q_heads; ++h) {
      const auto row = static_cast<size_t>(list[n].sequence * kv_heads + h / group);
      std::vector<float> keys;
      std::vector<int32_t> positions;
      for (size_t slot = 0; slot < cache.rows().positions[row].size(); ++slot) {
        if (cache.rows().expires[row][slot] <= list[n].position) continue;
        const std::vector<float> key = ref::slice(cache.rows().keys[row], slot * dim, dim);
        keys.insert(keys.end(), key.begin(), key.end());
        positions.push_back(cache.rows().positions[row][slot]);
      }
      const double want = ref::attention_mass(ref::slice(queries, (n * q_heads + h) * dim, dim), keys, positions,
                                              list[n].position, list[n].set, scale);
      ref::expect_close(got[n * q_heads + h], want, {.roundings = (dim + 2) * 8.0 + 16, .magnitude = want});
      if (row == 1) {
        EXPECT_EQ(got[n * q_heads + h], 0);
      }
    }
  }
}

}  // namespace
}  // namespace kv
