#include "kernels/retained_mass.h"

#include <algorithm>
#include <limits>

#include "tests/ref/retained_mass.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RetainedMass);

struct Case {
  int64_t tokens = 1;
  int kv_heads = 1;
  int group = 1;
  int dim = 16;
  std::vector<int32_t> sequences = {}, positions = {};  // of the queries
  std::vector<uint8_t> keep = {};                       // [sequences, kv_heads, tokens]
  std::vector<float> queries = {}, keys = {}, values = {};

  int q_heads() const { return kv_heads * group; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
};

// Queries of each sequence from `first_query` on. Every `keep_every`-th token before stays, shifted by head.
Case random_case(const Backend& backend, int64_t tokens, int kv_heads, int group, int dim, int64_t first_query,
                 int keep_every, int sequences = 1) {
  Case c{.tokens = tokens, .kv_heads = kv_heads, .group = group, .dim = dim};
  for (int s = 0; s < sequences; ++s) {
    for (int64_t p = first_query; p < tokens; ++p) {
      c.sequences.push_back(s);
      c.positions.push_back(static_cast<int32_t>(p));
    }
  }
  for (int64_t i = 0; i < sequences * kv_heads * tokens; ++i) {
    const int64_t token = i % tokens;
    c.keep.push_back(token >= first_query || (token + i / tokens) % keep_every == 0);
  }
  c.queries = ref::rounded(backend, ref::random_values(sequences * tokens * c.q_heads() * dim, 1));
  for (float& q : c.queries) q *= 4;  // exact in every type; a peaked softmax
  c.keys = ref::rounded(backend, ref::random_values(sequences * tokens * kv_heads * dim, 2));
  c.values = ref::rounded(backend, ref::random_values(sequences * tokens * kv_heads * dim, 3));
  return c;
}

// A cache that holds what is kept, with keys and values of its own: these do not count.
ref::PagedCache cache_of(Backend& backend, const Case& c) {
  std::vector<std::vector<int32_t>> positions;
  std::vector<int32_t> lengths;
  for (size_t first = 0; first < c.keep.size(); first += c.tokens) {
    positions.emplace_back();
    for (int64_t t = 0; t < c.tokens; ++t) {
      if (c.keep[first + t]) positions.back().push_back(static_cast<int32_t>(t));
    }
    lengths.push_back(static_cast<int32_t>(positions.back().size()));
  }
  ref::CacheRows rows = ref::random_rows(lengths, c.kv_heads, c.dim, 9);
  rows.positions = positions;
  return {backend, rows, 1};
}

struct Result {
  std::vector<float> evicted, error, cosine, longest;
};

Result retained_mass(Backend& backend, const Case& c) {
  const int64_t count = static_cast<int64_t>(c.positions.size());
  const ref::PagedCache cache = cache_of(backend, c);
  Tensor queries = ref::upload_activations(backend, c.queries), keys = ref::upload_activations(backend, c.keys);
  Tensor values = ref::upload_activations(backend, c.values), positions = ref::upload_array(backend, c.positions);
  Tensor sequences = ref::upload_array(backend, c.sequences), evicted(backend, DType::kF32, count * c.q_heads());
  Tensor error(backend, DType::kF32, count * c.q_heads()), cosine(backend, DType::kF32, count * c.q_heads());
  Tensor longest(backend, DType::kF32, count * c.kv_heads);
  backend.retained_mass({.queries = queries.ref(),
                         .keys = keys.ref(),
                         .values = values.ref(),
                         .cache = cache.view(),
                         .sequences = ref::data_of<int32_t>(sequences),
                         .positions = ref::data_of<int32_t>(positions),
                         .count = count,
                         .tokens = c.tokens,
                         .q_heads = c.q_heads(),
                         .scale = c.scale(),
                         .evicted = ref::data_of<float>(evicted),
                         .error = ref::data_of<float>(error),
                         .cosine = ref::data_of<float>(cosine),
                         .longest = ref::data_of<float>(longest)});
  backend.synchronize();
  return {ref::download_array<float>(evicted), ref::download_array<float>(error), ref::download_array<float>(cosine),
          ref::download_array<float>(longest)};
}

// Tokens [0, count) of one sequence and KV head of a [sequences, tokens, kv_heads, dim] tensor.
std::vector<float> head_rows(const Case& c, const std::vector<float>& all, int64_t sequence, int head, int64_t count) {
  std::vector<float> out;
  for (int64_t t = 0; t < count; ++t) {
    const std::vector<float> row = ref::slice(all, ((sequence * c.tokens + t) * c.kv_heads + head) * c.dim, c.dim);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

double largest_norm(const std::vector<float>& values, int dim) {
  double largest = 0;
  for (size_t v = 0; v < values.size(); v += dim) {
    double square = 0;
    for (int d = 0; d < dim; ++d) square += double(values[v + d]) * values[v + d];
    largest = std::max(largest, std::sqrt(square));
  }
  return largest;
}

void expect_agreement(Backend& backend, const Case& c) {
  const Result got = retained_mass(backend, c);
  for (size_t n = 0; n < c.positions.size(); ++n) {
    const int64_t sequence = c.sequences[n], seen = c.positions[n] + 1;
    for (int h = 0; h < c.q_heads(); ++h) {
      const int head = h / c.group;
      const std::vector<float> values = head_rows(c, c.values, sequence, head, seen);
      const ref::RetainedMass want =
          ref::retained_mass(ref::slice(c.queries, ((sequence * c.tokens + seen - 1) * c.q_heads() + h) * c.dim, c.dim),
                             head_rows(c, c.keys, sequence, head, seen), values,
                             ref::slice(c.keep, (sequence * c.kv_heads + head) * c.tokens, seen), c.scale());
      const size_t i = n * c.q_heads() + h;
      // Logits of at most 4·√dim are off by dim + 2 roundings, probabilities relatively by as much; each output element
      // is a mean of values below one, so the error's length is off by √dim such differences.
      const double relative = (c.dim + 2) * 4 * std::sqrt(double(c.dim)) + seen / 16.0 + 16;
      ref::expect_close(got.evicted[i], want.evicted, {.roundings = relative, .magnitude = want.evicted});
      ref::expect_close(got.error[i], want.error, {.roundings = relative, .magnitude = 2 * std::sqrt(double(c.dim))});
      ref::expect_close(got.cosine[i], want.cosine, {.roundings = relative, .magnitude = 2 * std::sqrt(double(c.dim))});
      const double longest = largest_norm(values, c.dim);
      ref::expect_close(got.longest[n * c.kv_heads + head], longest, {.roundings = 1, .magnitude = longest});
    }
  }
}

TEST_P(RetainedMass, AgreesWithDoubleArithmetic) {
  KV_BACKEND_OR_SKIP(backend);
  expect_agreement(*backend, random_case(*backend, 1, 1, 1, 16, 0, 1));
  expect_agreement(*backend, random_case(*backend, 17, 1, 2, 16, 16, 2));
  expect_agreement(*backend, random_case(*backend, 100, 2, 2, 64, 67, 3));
  expect_agreement(*backend, random_case(*backend, 130, 2, 3, 32, 100, 50));
  expect_agreement(*backend, random_case(*backend, 70, 2, 1, 16, 45, 4, 3));
}

// The tensors' tokens from `first` on, of one sequence.
void poison(Case& c, int64_t sequence, int64_t first) {
  const auto fill = [&](std::vector<float>& values, int heads) {
    const int64_t token = int64_t{heads} * c.dim;
    std::fill(values.begin() + (sequence * c.tokens + first) * token,
              values.begin() + (sequence + 1) * c.tokens * token, std::numeric_limits<float>::quiet_NaN());
  };
  fill(c.queries, c.q_heads());
  fill(c.keys, c.kv_heads);
  fill(c.values, c.kv_heads);
}

// Keys in several pieces; a sequence without a query, one that ends early, and entries newer than a query.
TEST_P(RetainedMass, AgreesWithDoubleArithmeticOverALongText) {
  KV_BACKEND_OR_SKIP(backend);
  Case c = random_case(*backend, 2100, 2, 2, 32, 2090, 3, 3);
  c.sequences = {0, 0, 2, 2};
  c.positions = {2099, 1023, 1024, 1600};
  poison(c, 1, 0);
  poison(c, 2, 1601);
  expect_agreement(*backend, c);
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
  Case c{.tokens = 2, .sequences = {0}, .positions = {1}, .keep = {0, 1}};
  c.queries = std::vector<float>(32, 1);
  c.keys = std::vector<float>(32, 0);
  c.values = std::vector<float>(32, 0);
  c.values[0] = c.values[16 + 1] = 1;
  const Result got = retained_mass(*backend, c);
  ref::expect_close(got.evicted[0], 0.5, {.roundings = 2});
  ref::expect_close(got.error[0], std::sqrt(0.5), {.roundings = 4});
  ref::expect_close(got.cosine[0], std::sqrt(0.5), {.roundings = 4});
  EXPECT_EQ(got.longest[0], 1);
}

// 001 Prop. A.1: ‖o − ô‖ <= 2 max‖v‖ ε.
TEST_P(RetainedMass, ErrorStaysBelowTwiceTheEvictedMassTimesTheLongestValue) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int keep_every : {2, 5, 30}) {
    const Case c = random_case(*backend, 120, 2, 2, 64, 90, keep_every);
    const Result got = retained_mass(*backend, c);
    const double longest = largest_norm(c.values, c.dim);
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
  std::vector<Result> results;
  for (const int threads : {1, 2, 3}) {
    const ref::Threads limit(threads);
    results.push_back(retained_mass(*backend, c));
  }
  for (const int other : {1, 2}) {
    EXPECT_EQ(results[0].evicted, results[other].evicted);
    EXPECT_EQ(results[0].error, results[other].error);
    EXPECT_EQ(results[0].cosine, results[other].cosine);
    EXPECT_EQ(results[0].longest, results[other].longest);
  }
}

}  // namespace
}  // namespace kv
