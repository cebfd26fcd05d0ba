#include <string>

#include "kernels/attention_mass.h"
#include "kernels/projected_norms.h"
#include "kernels/retained_mass.h"
#include "kernels/survival.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// Statistics of the full cache that metrics and oracles read: sampled queries over the whole context.

namespace kv::bench {
namespace {

struct Shape {
  int32_t tokens;
  int32_t queries;
  int head_dim;
  int64_t width;
};
constexpr Shape kReference{4096, 64, 64, 384};
constexpr Shape kLlama{32768, 256, 128, 4096};

Shape shape_of(const Device& device) { return device.pick(kReference, kLlama); }

// Query i of the sample stands at the end of the i-th part of the context.
std::vector<int32_t> sampled_positions(const Shape& shape) {
  std::vector<int32_t> positions;
  for (int32_t i = 1; i <= shape.queries; ++i) positions.push_back(shape.tokens / shape.queries * i - 1);
  return positions;
}

// Query-key pairs of one head.
double pairs_of(const Shape& shape) {
  double pairs = 0;
  for (const int32_t position : sampled_positions(shape)) pairs += position + 1;
  return pairs;
}

// Values through the Gram matrix of each head's output weight, and the Gram matrices themselves.
void projected_norms(Device& device, Samples& samples) {
  const Shape shape = shape_of(device);
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const int64_t count = int64_t{shape.tokens} * heads.kv * shape.head_dim;
  const int64_t weights = shape.width * heads.query * shape.head_dim;
  const Tensor values = random_activations(backend, count, 1), weight = random_activations(backend, weights, 2);
  Tensor norms(backend, DType::kF32, int64_t{shape.tokens} * heads.query);
  const double square = static_cast<double>(shape.head_dim) * shape.head_dim;
  const Work work = {
      .bytes = device.activation() * static_cast<double>(count + weights) + 4.0 * static_cast<double>(norms.elements()),
      .flops = 2 * square * heads.query * (static_cast<double>(shape.tokens) + static_cast<double>(shape.width))};
  samples.take(work, [&] {
    backend.projected_norms({.values = values.ref(),
                             .output_weight = weight.ref(),
                             .norms = norms.ref().as<float>(),
                             .tokens = shape.tokens,
                             .q_heads = heads.query,
                             .kv_heads = heads.kv,
                             .head_dim = shape.head_dim,
                             .width = shape.width});
  });
}

// Each query's mass on the 64 positions before it.
void attention_mass(Device& device, Samples& samples) {
  const Shape shape = shape_of(device);
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const CacheLayer cache(
      backend, {.lengths = equal_lengths(heads.kv, shape.tokens), .kv_heads = heads.kv, .head_dim = shape.head_dim});
  std::vector<int32_t> set, begin = {0};
  for (const int32_t position : sampled_positions(shape)) {
    for (int32_t p = std::max(0, position - 63); p <= position; ++p) set.push_back(p);
    begin.push_back(static_cast<int32_t>(set.size()));
  }
  const Tensor positions = upload(backend, sampled_positions(shape));
  const Tensor sequences = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.queries), 0));
  const Tensor set_positions = upload(backend, set), set_begin = upload(backend, begin);
  const Tensor queries = random_activations(backend, int64_t{shape.queries} * heads.query * shape.head_dim, 5);
  Tensor mass(backend, DType::kF32, int64_t{shape.queries} * heads.query);
  const Work work = {.bytes = cache.half_bytes(), .flops = 2.0 * shape.head_dim * heads.query * pairs_of(shape)};
  samples.take(work, [&] {
    backend.attention_mass({.queries = queries.ref(),
                            .sequences = sequences.ref().as<int32_t>(),
                            .query_positions = positions.ref().as<int32_t>(),
                            .set_positions = set_positions.ref().as<int32_t>(),
                            .set_begin = set_begin.ref().as<int32_t>(),
                            .count = shape.queries,
                            .cache = cache.view(),
                            .q_heads = heads.query,
                            .scale = scale_of(shape.head_dim),
                            .mass = mass.ref().as<float>()});
  });
}

// A query product and two value products a pair: all keys, and the retained half of them.
// The older half of the keys is retained.
void retained_mass(Device& device, Samples& samples) {
  const Shape shape = shape_of(device);
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const int64_t count = int64_t{shape.tokens} * heads.kv * shape.head_dim;
  const Tensor keys = random_activations(backend, count, 1), values = random_activations(backend, count, 2);
  const Tensor queries = random_activations(backend, int64_t{shape.tokens} * heads.query * shape.head_dim, 5);
  const CacheLayer cache(backend, {.lengths = equal_lengths(heads.kv, shape.tokens / 2),
                                   .kv_heads = heads.kv,
                                   .head_dim = shape.head_dim,
                                   .positions_only = true});
  const Tensor positions = upload(backend, sampled_positions(shape));
  const Tensor sequences = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.queries)));
  const int64_t results = int64_t{shape.queries} * heads.query;
  Tensor evicted(backend, DType::kF32, results), error(backend, DType::kF32, results),
      cosine(backend, DType::kF32, results), longest(backend, DType::kF32, int64_t{shape.queries} * heads.kv);
  const Work work = {.bytes = 2 * device.activation() * static_cast<double>(count),
                     .flops = 5.0 * shape.head_dim * heads.query * pairs_of(shape)};
  samples.take(work, [&] {
    backend.retained_mass({.queries = queries.ref(),
                           .keys = keys.ref(),
                           .values = values.ref(),
                           .cache = cache.view(),
                           .sequences = sequences.ref().as<int32_t>(),
                           .positions = positions.ref().as<int32_t>(),
                           .count = shape.queries,
                           .tokens = shape.tokens,
                           .q_heads = heads.query,
                           .scale = scale_of(shape.head_dim),
                           .evicted = evicted.ref().as<float>(),
                           .error = error.ref().as<float>(),
                           .cosine = cosine.ref().as<float>(),
                           .longest = longest.ref().as<float>()});
  });
}

// The last block of queries of a full pass; each selects its 64 largest probabilities.
void survival(Device& device, Samples& samples) {
  const Shape shape = shape_of(device);
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const CacheLayer cache(
      backend, {.lengths = equal_lengths(heads.kv, shape.tokens), .kv_heads = heads.kv, .head_dim = shape.head_dim});
  const Tensor queries = random_activations(backend, int64_t{shape.queries} * heads.query * shape.head_dim, 5);
  const Tensor segments =
      upload_segments(backend, {{.count = shape.queries, .first_position = shape.tokens - shape.queries}});
  Tensor last(backend, DType::kI32, int64_t{heads.query} * shape.tokens);
  const double pairs = 0.5 * shape.queries * (2.0 * shape.tokens - shape.queries + 1);
  const Work work = {.bytes = cache.half_bytes() + 8.0 * static_cast<double>(last.elements()),
                     .flops = 2.0 * shape.head_dim * heads.query * pairs};
  samples.take(work, [&] {
    backend.survival({.queries = queries.ref(),
                      .cache = cache.view(),
                      .segments = segments_of(segments),
                      .segment_count = 1,
                      .q_heads = heads.query,
                      .scale = scale_of(shape.head_dim),
                      .last_selected = last.slots<int32_t>(shape.tokens)});
  });
}

const Family kOracle{[](Device& device) {
  const std::string context = device.pick<std::string>("4K", "32K");
  const std::string dim = device.pick<std::string>(" d64", " d128");
  const std::string sampled = device.pick<std::string>("64 of 4K", "256 of 32K") + dim;
  device.add("projected_norms/" + context + dim, projected_norms);
  device.add("attention_mass/" + sampled, attention_mass);
  device.add("retained_mass/" + sampled, retained_mass);
  device.add("survival/" + sampled, survival);
}};

}  // namespace
}  // namespace kv::bench
