#include "kernels/retained_mass.h"

#include <omp.h>

#include <algorithm>

#include "tests/ref/close.h"
#include "tests/ref/retained_mass.h"
#include "tests/ref/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RetainedMass);

struct Case {
  int64_t tokens = 1;
  int kv_heads = 1;
  int group = 1;
  int dim = 16;
  std::vector<int32_t> positions = {};  // of the queries
  std::vector<uint8_t> keep = {};       // [kv_heads, tokens]
  std::vector<float> queries = {}, keys = {}, values = {};

  int q_heads() const { return kv_heads * group; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
};

// Every `keep_every`-th token stays, shifted by head.
Case random_case(const Backend& backend, int64_t tokens, int kv_heads, int group, int dim, int64_t first_query,
                 int keep_every) {
  Case c{.tokens = tokens, .kv_heads = kv_heads, .group = group, .dim = dim};
  for (int64_t p = first_query; p < tokens; ++p) c.positions.push_back(static_cast<int32_t>(p));
  for (int64_t i = 0; i < kv_heads * tokens; ++i) {
    const int64_t token = i % tokens;
    c.keep.push_back(token >= first_query || (token + i / tokens) % keep_every == 0);
  }
  c.queries = ref::rounded(backend, ref::random_values(c.positions.size() * c.q_heads() * dim, 1));
  for (float& q : c.queries) q *= 4;  // exact in every type; a peaked softmax
  c.keys = ref::rounded(backend, ref::random_values(tokens * kv_heads * dim, 2));
  c.values = ref::rounded(backend, ref::random_values(tokens * kv_heads * dim, 3));
  return c;
}

struct Result {
  std::vector<float> evicted, error, cosine;
};

Result retained_mass(Backend& backend, const Case& c) {
  const int64_t count = static_cast<int64_t>(c.positions.size());
  Tensor queries = ref::upload_activations(backend, c.queries), keys = ref::upload_activations(backend, c.keys);
  Tensor values = ref::upload_activations(backend, c.values), positions = ref::upload_array(backend, c.positions);
  Tensor keep = ref::upload_array(backend, c.keep), evicted(backend, DType::f32, count * c.q_heads());
  Tensor error(backend, DType::f32, count * c.q_heads()), cosine(backend, DType::f32, count * c.q_heads());
  backend.retained_mass({.queries = queries.ref(),
                         .keys = keys.ref(),
                         .values = values.ref(),
                         .query_positions = ref::data_of<int32_t>(positions),
                         .keep = ref::data_of<uint8_t>(keep),
                         .count = count,
                         .tokens = c.tokens,
                         .q_heads = c.q_heads(),
                         .kv_heads = c.kv_heads,
                         .head_dim = c.dim,
                         .scale = c.scale(),
                         .evicted = ref::data_of<float>(evicted),
                         .error = ref::data_of<float>(error),
                         .cosine = ref::data_of<float>(cosine)});
  backend.synchronize();
  return {ref::download_array<float>(evicted), ref::download_array<float>(error), ref::download_array<float>(cosine)};
}

// Rows [0, count) of one KV head of a [tokens, kv_heads, dim] tensor.
std::vector<float> head_rows(const Case& c, const std::vector<float>& all, int head, int64_t count) {
  std::vector<float> out;
  for (int64_t t = 0; t < count; ++t) {
    const std::vector<float> row = ref::slice(all, (t * c.kv_heads + head) * c.dim, c.dim);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

void expect_agreement(Backend& backend, const Case& c) {
  const Result got = retained_mass(backend, c);
  for (size_t n = 0; n < c.positions.size(); ++n) {
    const int64_t seen = c.positions[n] + 1;
    for (int h = 0; h < c.q_heads(); ++h) {
      const int head = h / c.group;
      const ref::RetainedMass want = ref::retained_mass(
          ref::slice(c.queries, (n * c.q_heads() + h) * c.dim, c.dim), head_rows(c, c.keys, head, seen),
          head_rows(c, c.values, head, seen), ref::slice(c.keep, head * c.tokens, seen), c.scale());
      const size_t i = n * c.q_heads() + h;
      // Logits of at most 4·√dim are off by dim + 2 roundings, probabilities relatively by as much; each output element
      // is a mean of values below one, so the error's length is off by √dim such differences.
      const double relative = (c.dim + 2) * 4 * std::sqrt(double(c.dim)) + seen / 16.0 + 16;
      ref::expect_close(got.evicted[i], want.evicted, {.roundings = relative, .magnitude = want.evicted});
      ref::expect_close(got.error[i], want.error, {.roundings = relative, .magnitude = 2 * std::sqrt(double(c.dim))});
      ref::expect_close(got.cosine[i], want.cosine, {.roundings = relative, .magnitude = 2 * std::sqrt(double(c.dim))});
    }
  }
}

TEST_P(RetainedMass, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agreement(*backend, random_case(*backend, 1, 1, 1, 16, 0, 1));
  expect_agreement(*backend, random_case(*backend, 17, 1, 2, 16, 16, 2));
  expect_agreement(*backend, random_case(*backend, 100, 2, 2, 64, 67, 3));
  expect_agreement(*backend, random_case(*backend, 130, 2, 3, 32, 100, 50));
}

TEST_P(RetainedMass, IsFreeOfErrorWhereAllIsKept) {
  KV_BACKEND_OR_SKIP(backend);
  const Result got = retained_mass(*backend, random_case(*backend, 40, 1, 2, 64, 30, 1));
  for (size_t i = 0; i < got.evicted.size(); ++i) {
    EXPECT_EQ(got.evicted[i], 0);
    ref::expect_close(got.error[i], 0, {.roundings = 8});
    ref::expect_close(got.cosine[i], 1, {.roundings = 2});
  }
}

TEST_P(RetainedMass, GivesTheArithmeticOfTwoEqualKeys) {
  KV_BACKEND_OR_SKIP(backend);
  // Zero keys, values e0 and e1, the older one evicted: o = (½, ½), ô = (0, 1), error √½, cosine 1/√2, mass ½ gone.
  Case c{.tokens = 2, .positions = {1}, .keep = {0, 1}};
  c.queries = std::vector<float>(16, 1);
  c.keys = std::vector<float>(32, 0);
  c.values = std::vector<float>(32, 0);
  c.values[0] = c.values[16 + 1] = 1;
  const Result got = retained_mass(*backend, c);
  ref::expect_close(got.evicted[0], 0.5, {.roundings = 2});
  ref::expect_close(got.error[0], std::sqrt(0.5), {.roundings = 4});
  ref::expect_close(got.cosine[0], std::sqrt(0.5), {.roundings = 4});
}

// 001 Prop. A.1: ‖o − ô‖ <= 2 max‖v‖ ε.
TEST_P(RetainedMass, ErrorStaysBelowTwiceTheEvictedMassTimesTheLongestValue) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int keep_every : {2, 5, 30}) {
    const Case c = random_case(*backend, 120, 2, 2, 64, 90, keep_every);
    const Result got = retained_mass(*backend, c);
    double longest = 0;
    for (size_t v = 0; v < c.values.size(); v += c.dim) {
      double square = 0;
      for (int d = 0; d < c.dim; ++d) square += double(c.values[v + d]) * c.values[v + d];
      longest = std::max(longest, std::sqrt(square));
    }
    double tightest = 0;
    for (size_t i = 0; i < got.error.size(); ++i) {
      ASSERT_LE(got.error[i], 2 * longest * got.evicted[i] * (1 + 1e-5));
      tightest = std::max(tightest, got.error[i] / (2 * longest * got.evicted[i]));
    }
    EXPECT_GT(tightest, 0.05);  // the bound is not met by errors that are merely zero
  }
}

TEST(RetainedMassThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  const Case c = random_case(*backend, 200, 2, 2, 64, 150, 4);
  const int before = omp_get_max_threads();
  std::vector<Result> results;
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    results.push_back(retained_mass(*backend, c));
  }
  omp_set_num_threads(before);
  for (const int other : {1, 2}) {
    EXPECT_EQ(results[0].evicted, results[other].evicted);
    EXPECT_EQ(results[0].error, results[other].error);
    EXPECT_EQ(results[0].cosine, results[other].cosine);
  }
}

}  // namespace
}  // namespace kv
