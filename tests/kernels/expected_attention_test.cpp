#include "kernels/expected_attention.h"

#include <algorithm>

#include "tests/ref/expected_attention.h"
#include "tests/ref/softmax.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, ExpectedAttention);
KV_OVER_BACKENDS(Ops, QueryMoments);

// f64 arrays, which Tensor has no type for.
Tensor doubles(Backend& backend, size_t count) {
  Tensor tensor(backend, DType::kI32, static_cast<int64_t>(2 * count));
  tensor.fill_zero();
  return tensor;
}
double* doubles_of(Tensor& tensor) { return reinterpret_cast<double*>(ref::data_of<int32_t>(tensor)); }
std::vector<double> download_doubles(const Tensor& tensor) {
  std::vector<double> values(tensor.elements() / 2);
  tensor.download(values.data(), values.size() * sizeof(double));
  return values;
}

std::vector<float> frequencies(int dim) {
  std::vector<float> inv_freq;
  for (int d = 0; d < dim / 2; ++d) inv_freq.push_back(std::pow(10000.0f, -2.0f * d / dim));
  return inv_freq;
}

struct Case {
  int kv_heads = 1;
  int group = 1;
  ref::ExpectedAttentionCase options;

  int q_heads() const { return kv_heads * group; }
};

// All sequences have seen `tokens` queries [tokens, q_heads, dim]; scores [rows, pitch].
std::vector<float> expected_attention(Backend& backend, const Case& c, const ref::PagedCache& cache,
                                      const std::vector<std::vector<float>>& queries, int64_t pitch,
                                      const std::vector<uint8_t>& due) {
  const int dim = c.options.dim;
  const int64_t sequences = static_cast<int64_t>(queries.size());
  Tensor sums = doubles(backend, sequences * c.q_heads() * dim);
  Tensor products = doubles(backend, sequences * c.q_heads() * dim * dim);
  std::vector<int32_t> counts, next;
  for (int32_t s = 0; s < sequences; ++s) {
    const int32_t tokens = static_cast<int32_t>(queries[s].size()) / (c.q_heads() * dim);
    Tensor device = ref::upload_activations(backend, queries[s]);
    Tensor words = ref::upload_segments(backend, {{.sequence = s, .count = tokens}});
    backend.query_moments({.queries = device.ref(),
                           .segments = ref::segments_of(words),
                           .segment_count = 1,
                           .first_position = c.options.sinks,
                           .q_heads = c.q_heads(),
                           .head_dim = dim,
                           .sums = doubles_of(sums),
                           .products = doubles_of(products)});
    backend.synchronize();
    counts.push_back(std::max(0, tokens - c.options.sinks));
    next.push_back(c.options.next_position);
  }
  Tensor device_counts = ref::upload_array(backend, counts), device_next = ref::upload_array(backend, next);
  Tensor inv_freq = ref::upload_array(backend, c.options.inv_freq), device_due = ref::upload_array(backend, due);
  Tensor scores(backend, DType::kF32, cache.rows().rows() * pitch);
  backend.expected_attention({.cache = cache.view(),
                              .sums = doubles_of(sums),
                              .products = doubles_of(products),
                              .counts = ref::data_of<int32_t>(device_counts),
                              .next_position = ref::data_of<int32_t>(device_next),
                              .inv_freq = ref::data_of<float>(inv_freq),
                              .q_heads = c.q_heads(),
                              .future = c.options.future,
                              .sinks = c.options.sinks,
                              .epsilon = static_cast<float>(c.options.epsilon),
                              .use_covariance = c.options.use_covariance,
                              .rows_due = due.empty() ? nullptr : ref::data_of<uint8_t>(device_due),
                              .scores = scores.slots<float>(pitch)});
  backend.synchronize();
  return ref::download_array<float>(scores);
}

// One row, which begins with `sinks` sinks. Logits are sums of at most `logit` in all; the quadratic form has 2·dim
// roundings. Probabilities take over the logits' absolute error as a relative one; a value norm adds half of dim. A
// sink is one above the largest of the others.
void expect_scores(const std::vector<float>& got, const std::vector<double>& want, int sinks, int dim, double logit) {
  ASSERT_EQ(got.size(), want.size());
  const auto others = want.begin() + std::min<int64_t>(sinks, std::ssize(want));
  const double largest = others == want.end() ? 0 : *std::max_element(others, want.end());
  const double roundings = 2.0 * dim * logit + want.size() / 16.0 + dim + 16;
  for (auto at = want.begin(); at != want.end(); ++at) {
    const double magnitude = at < others ? largest + 1 / roundings : largest;
    ASSERT_TRUE(ref::is_close(got[at - want.begin()], *at, {.roundings = roundings, .magnitude = magnitude}))
        << "slot " << at - want.begin();
  }
}

TEST_P(ExpectedAttention, AgreesWithTheDenseFormulas) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int dim : {16, 20, 64, 128}) {
    for (const bool use_covariance : {true, false}) {
      Case c{.kv_heads = 2,
             .group = 2,
             .options = {.dim = dim,
                         .future = 96,
                         .next_position = 150,
                         .use_covariance = use_covariance,
                         .inv_freq = frequencies(dim)}};
      // Row 1 holds nothing but sinks.
      const ref::CacheRows rows = ref::random_rows({150, 3, 17, 5}, 2, dim, 1);
      const ref::PagedCache cache(*backend, rows, 1);
      std::vector<std::vector<float>> queries;
      for (int s = 0; s < 2; ++s) {
        queries.push_back(ref::rounded(*backend, ref::random_values((150 - 9 * s) * c.q_heads() * dim, 2 + s)));
      }
      const int64_t pitch = 155;
      const std::vector<uint8_t> due = {1, 1, 0, 1};
      const std::vector<float> got = expected_attention(*backend, c, cache, queries, pitch, due);
      for (int64_t row = 0; row < 4; ++row) {
        std::vector<double> want;
        if (due[row]) {
          std::vector<std::vector<float>> heads(c.group);
          const std::vector<float>& all = queries[row / 2];
          for (size_t t = c.options.sinks; t < all.size() / (c.q_heads() * dim); ++t) {
            for (int g = 0; g < c.group; ++g) {
              const std::vector<float> q = ref::slice(all, (t * c.q_heads() + row % 2 * c.group + g) * dim, dim);
              heads[g].insert(heads[g].end(), q.begin(), q.end());
            }
          }
          want = ref::expected_attention(c.options, heads, cache.rows().keys[row], cache.rows().values[row],
                                         cache.rows().positions[row]);
        }
        const int64_t count = static_cast<int64_t>(want.size());
        expect_scores(ref::slice(got, row * pitch, count), want, c.options.sinks, dim, std::sqrt(double(dim)));
        ref::expect_untouched(got, row * pitch + count, (row + 1) * pitch);
      }
    }
  }
}

// With one repeated query Σ is 0, and with one future position R̄ is that position's
// rotation, so the scores are the rotated query's attention times ‖v‖.
TEST_P(ExpectedAttention, OfOneRepeatedQueryIsItsAttention) {
  KV_BACKEND_OR_SKIP(backend);
  const int dim = 16, tokens = 24;
  const Case c{
      .options = {
          .dim = dim, .future = 1, .sinks = 0, .epsilon = 0, .next_position = tokens, .inv_freq = frequencies(dim)}};
  const ref::PagedCache cache(*backend, ref::random_rows({tokens}, 1, dim, 3));
  const std::vector<float> query = ref::rounded(*backend, ref::random_values(dim, 4));
  std::vector<float> repeated;
  for (int t = 0; t < tokens; ++t) repeated.insert(repeated.end(), query.begin(), query.end());
  const std::vector<double> turn = ref::rotation(tokens, c.options.inv_freq);
  std::vector<double> want(tokens);
  for (int j = 0; j < tokens; ++j) {
    for (int a = 0; a < dim; ++a) {
      for (int b = 0; b < dim; ++b) want[j] += cache.rows().keys[0][j * dim + a] * turn[a * dim + b] * query[b] / 4;
    }
  }
  ref::softmax(want);
  for (int j = 0; j < tokens; ++j) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += std::pow(double(cache.rows().values[0][j * dim + d]), 2);
    want[j] *= std::sqrt(square);
  }
  expect_scores(expected_attention(*backend, c, cache, {repeated}, tokens, {}), want, 0, dim, 4);
}

// Two positions with opposite rotations of the only frequency average to nothing: scores are then uniform times ‖v‖.
TEST_P(ExpectedAttention, ForgetsFrequenciesThatTurnAwayWithinTheFuture) {
  KV_BACKEND_OR_SKIP(backend);
  const int dim = 16, tokens = 5;
  Case c{.options = {.dim = dim,
                     .future = 2,
                     .sinks = 1,
                     .epsilon = 0.02,
                     .next_position = tokens,
                     .inv_freq = std::vector<float>(dim / 2, 3.14159265f)}};
  ref::CacheRows rows = ref::random_rows({tokens}, 1, dim, 5);
  std::fill(rows.values[0].begin(), rows.values[0].end(), 0.25f);  // ‖v‖ = 1
  const ref::PagedCache cache(*backend, rows);
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(tokens * dim, 6));
  // π is rounded to f32, off by 9e-8, times position 6.
  ref::expect_close(expected_attention(*backend, c, cache, {queries}, tokens, {}),
                    std::vector<double>{1.27, 0.27, 0.27, 0.27, 0.27}, {.roundings = 64});
}

TEST_P(QueryMoments, AddEveryQueryPastTheSinksInDouble) {
  KV_BACKEND_OR_SKIP(backend);
  const int dim = 16, q_heads = 3, tokens = 23;
  // Sequence 1's first queries are sinks; sequence 0 has ended; sequence 2 comes in two blocks.
  const std::vector<Segment> segments = {{.sequence = 1, .first_token = 0, .count = 9, .first_position = 0},
                                         {.sequence = 0, .first_token = 9, .count = 0, .first_position = 3},
                                         {.sequence = 2, .first_token = 9, .count = 14, .first_position = 2}};
  const std::vector<float> queries = ref::rounded(*backend, ref::random_values(tokens * q_heads * dim, 1));
  Tensor device = ref::upload_activations(*backend, queries), words = ref::upload_segments(*backend, segments);
  Tensor sums = doubles(*backend, 3 * q_heads * dim), products = doubles(*backend, 3 * q_heads * dim * dim);
  for (int round = 0; round < 2; ++round) {
    backend->query_moments({.queries = device.ref(),
                            .segments = ref::segments_of(words),
                            .segment_count = 3,
                            .first_position = 4,
                            .q_heads = q_heads,
                            .head_dim = dim,
                            .sums = doubles_of(sums),
                            .products = doubles_of(products)});
  }
  backend->synchronize();
  std::vector<double> want_sums(3 * q_heads * dim), want_products(3 * q_heads * dim * dim);
  for (const Segment& s : segments) {
    for (int t = 0; t < s.count; ++t) {
      if (s.first_position + t < 4) continue;
      for (int h = 0; h < q_heads; ++h) {
        const float* q = queries.data() + ((s.first_token + t) * q_heads + h) * dim;
        for (int a = 0; a < dim; ++a) {
          want_sums[(s.sequence * q_heads + h) * dim + a] += 2.0 * q[a];
          for (int b = 0; b < dim; ++b) {
            want_products[((s.sequence * q_heads + h) * dim + a) * dim + b] += 2.0 * q[a] * q[b];
          }
        }
      }
    }
  }
  // At most 28 double sums of values below one.
  const ref::Tolerance tolerance{.roundings = 60, .magnitude = 28, .epsilon = std::numeric_limits<double>::epsilon()};
  ref::expect_close(download_doubles(sums), want_sums, tolerance);
  ref::expect_close(download_doubles(products), want_products, tolerance);
}

}  // namespace
}  // namespace kv
