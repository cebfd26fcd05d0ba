#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "kernels/attend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/random_normal.h"
#include "tests/ref/attend.h"
#include "tests/support/drawn_cache.h"
#include "tests/support/large_on_cuda.h"
#include "tests/support/slices.h"

// Prefill in one call over more tokens than the host could make or compare: the backend draws queries, keys and values,
// and a sample of (query, head) pairs is compared with the reference.
namespace kv {
namespace {

struct Sequence {
  int32_t length;
  int32_t count;  // the newest, whose queries attend
};

struct Shape {
  int head_dim;
  int q_heads;
  int kv_heads;
  std::vector<Sequence> sequences;
  int32_t first_token = 0;  // queries and output before it are nobody's, and NaN

  int64_t token_values() const { return int64_t{q_heads} * head_dim; }
  int64_t tokens() const {
    int64_t sum = first_token;
    for (const Sequence& sequence : sequences) sum += sequence.count;
    return sum;
  }
  std::vector<int32_t> row_lengths() const {
    std::vector<int32_t> lengths;
    for (const Sequence& sequence : sequences) lengths.insert(lengths.end(), kv_heads, sequence.length);
    return lengths;
  }
};

constexpr int kSamples = 64;  // of a sequence

// Ascending: the first and the last; about borders of the kernels' tiles (32 or 48 queries, 128 slots) early, halfway
// and late; about those from which on offsets of values want 32 and 33 bits; the rest anywhere.
std::vector<int32_t> sampled_queries(const Shape& shape, const Segment& segment) {
  const int64_t count = segment.count;
  std::vector<int64_t> borders = {0, 32, 48, 128, count / 2 / 384 * 384, count / 384 * 384, count};
  for (const int bits : {31, 32}) borders.push_back((int64_t{1} << bits) / shape.token_values() - segment.first_token);
  std::set<int32_t> chosen;
  for (const int64_t border : borders) {
    for (const int64_t query : {border - 1, border, border + 1}) {
      if (query >= 0 && query < count) chosen.insert(static_cast<int32_t>(query));
    }
  }
  std::mt19937 engine(1);
  while (std::ssize(chosen) < std::min<int64_t>(kSamples, count)) {
    chosen.insert(static_cast<int32_t>(engine() % static_cast<uint32_t>(count)));
  }
  return {chosen.begin(), chosen.end()};
}

class Prefill {
 public:
  Prefill(Backend& backend, const Shape& shape)
      : backend_(backend), shape_(shape), cache_(backend, shape.row_lengths(), shape.kv_heads, shape.head_dim, 2) {
    int32_t token = shape.first_token;
    for (const auto& [length, count] : shape.sequences) {
      segments_.push_back({static_cast<int32_t>(std::ssize(segments_)), token, count, length - count});
      token += count;
      max_count_ = std::max(max_count_, count);
    }
    const int64_t values = shape.tokens() * shape.token_values(), first = shape.first_token * shape.token_values();
    queries_ = Tensor(backend, backend.activation_type(), values);
    // Logits with a standard deviation of 4: of half a million slots the heaviest takes about a tenth of a query's
    // attention, and some dozens most of it. Were all about alike, outputs would be next to nothing.
    backend.random_normal({.output = queries_.at(first), .count = values - first, .seed = 1, .sigma = 4});
  }

  void run(bool on_any_card = false) {
    on_any_card_ = on_any_card;
    Tensor segments = ref::upload_segments(backend_, segments_);
    output_ = Tensor(backend_, queries_.dtype(), queries_.elements());
    backend_.check_pages(cache_.view());
    backend_.attend({.queries = queries_.ref(),
                     .cache = cache_.view(),
                     .segments = ref::segments_of(segments),
                     .segment_count = std::ssize(segments_),
                     .max_count = max_count_,
                     .output = output_.ref(),
                     .q_heads = shape_.q_heads,
                     .scale = scale(),
                     .on_any_card = on_any_card});
    backend_.synchronize();
  }

  // The heads take turns over the sampled queries. `chain` as in ref::outputs_are_close.
  void expect_reference(double chain) const {
    ref::Attended want;
    std::vector<float> got;
    for (const Segment& segment : segments_) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::vector<int64_t> vectors = sampled_vectors(segment, head);
        for (const ref::AttendedRow& row : attend_rows(segment, head, vectors)) {
          EXPECT_GT(row.spread, 0.02 * std::sqrt(shape_.head_dim)) << "outputs next to nothing show no error";
          want.output.insert(want.output.end(), row.output.begin(), row.output.end());
          want.spreads.push_back(row.spread);
          want.largest_logit_terms = std::max(want.largest_logit_terms, row.logit_terms);
          want.largest_value = std::max(want.largest_value, row.largest_value);
        }
        for (const int64_t vector : vectors) {
          const std::vector<float> output = download(output_, vector);
          got.insert(got.end(), output.begin(), output.end());
        }
      }
    }
    EXPECT_TRUE(ref::outputs_are_close(backend_, got, want, shape_.head_dim, chain));
    // The error of all vectors together, for --gtest_output=xml. Two roundings to bf16 make 0.6 · 2^-8, 2300
    // millionths.
    double error = 0, length = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - want.output[i], 2);
      length += std::pow(want.output[i], 2);
    }
    const std::string key = "relative_error_in_millionths_d" + std::to_string(shape_.head_dim);
    ::testing::Test::RecordProperty(key + (on_any_card_ ? "_any_card" : ""),
                                    std::llround(1e6 * std::sqrt(error / length)));
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }
  std::vector<float> download(const Tensor& tensor, int64_t vector) const {
    return ref::download_activations(backend_, tensor.at(vector * shape_.head_dim), shape_.head_dim);
  }

  // Places in queries and output of the query heads of one KV head.
  std::vector<int64_t> sampled_vectors(const Segment& segment, int kv_head) const {
    std::vector<int64_t> vectors;
    int head = 0;
    for (const int32_t query : sampled_queries(shape_, segment)) {
      head = (head + 5) % shape_.q_heads;  // neighbours are of different KV heads
      if (head / (shape_.q_heads / shape_.kv_heads) != kv_head) continue;
      vectors.push_back((int64_t{segment.first_token} + query) * shape_.q_heads + head);
    }
    return vectors;
  }

  std::vector<ref::AttendedRow> attend_rows(const Segment& segment, int kv_head,
                                            const std::vector<int64_t>& vectors) const {
    const int64_t row = int64_t{segment.sequence} * shape_.kv_heads + kv_head;
    const std::vector<float> keys = cache_.download_keys(row), values = cache_.download_values(row);
    std::vector<std::vector<float>> queries;
    for (const int64_t vector : vectors) queries.push_back(download(queries_, vector));
    std::vector<ref::AttendedRow> rows(vectors.size());
    cpu::parallel_for(std::ssize(vectors), [&](int64_t index) {
      const auto i = static_cast<size_t>(index);
      const int64_t visible = segment.first_position + vectors[i] / shape_.q_heads - segment.first_token + 1;
      rows[i] = ref::attend_row(queries[i].data(), keys.data(), values.data(), visible, shape_.head_dim, scale());
    });
    return rows;
  }

  Backend& backend_;
  Shape shape_;
  ref::DrawnCache cache_;
  std::vector<Segment> segments_;
  int32_t max_count_ = 0;
  bool on_any_card_ = false;
  Tensor queries_, output_;
};

KV_OVER_BACKENDS(Ops, SampledPrefill);

TEST_P(SampledPrefill, MatchesTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (const int head_dim : {64, 128}) {
    Prefill prefill(*backend, {head_dim, 8, 2, {{2001, 2001}, {1000, 700}}, 5});
    prefill.run();
    prefill.expect_reference(2001);
  }
}

// A tensor core's step takes the products of sixteen slots to a sum.
double chain_of(int32_t length) { return length / 16.0; }

// Too much for the sanitizers: no parameter "cuda" in the names.
class SlowLongPrefill : public ref::LargeOnCuda {
 protected:
  void SetUp() override { take_gpu(2'000'000'000); }
};

TEST_F(SlowLongPrefill, Of32KTokens) {
  for (const int head_dim : {64, 128}) {
    Prefill prefill(*backend_, {head_dim, 32, 8, {{32'768, 32'768}, {21'003, 20'000}}});
    for (const bool on_any_card : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "head dimension " << head_dim << (on_any_card ? ", any card" : ""));
      prefill.run(on_any_card);
      prefill.expect_reference(chain_of(32'768));
    }
  }
}

class SlowLongestPrefill : public ref::LargeOnCuda {
 protected:
  void SetUp() override { take_gpu(20'000'000'000); }
};

// Offsets of values in queries and output pass 2^31 and 2^32 within the sequence. One that wraps leads to NaN.
TEST_F(SlowLongestPrefill, OfHalfAMillionTokensBehindAsMany) {
  constexpr int32_t kTokens = (1 << 19) + 1000;
  Prefill prefill(*backend_, {128, 32, 8, {{kTokens, kTokens}}, (1 << 19) - 500});
  prefill.run();
  prefill.expect_reference(chain_of(kTokens));
}

}  // namespace
}  // namespace kv
