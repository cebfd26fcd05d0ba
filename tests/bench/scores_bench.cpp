#include <fmt/format.h>

#include <cmath>

#include "kernels/attention_columns.h"
#include "kernels/blend.h"
#include "kernels/column_add.h"
#include "kernels/draw_order.h"
#include "kernels/expected_attention.h"
#include "kernels/future_scores.h"
#include "kernels/key_difference.h"
#include "kernels/layer_mean.h"
#include "kernels/pool.h"
#include "kernels/random_uniform.h"
#include "kernels/rate_entries.h"
#include "kernels/redundancy.h"
#include "kernels/visibility.h"
#include "kernels/window_attention.h"
#include "policies/parts/foresight_scorer.h"
#include "sim/model/source_info.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What a policy's scores cost at an eviction event: on the CPU 8 layers x 4 KV heads of 1280 entries (the reference
// model, B = 1024, L = 256), else a layer of 64 sequences x 8 KV heads of 2304 entries (B = 2048, L = 256).

namespace kv::bench {
namespace {

struct Event {
  int64_t rows;
  int32_t length;
  int head_dim;
};
constexpr Event kReference{32, 1280, 64};
constexpr Event kServing{512, 2304, 128};

Event event_of(const Device& device) { return device.pick(kReference, kServing); }

CacheLayer cache_of(Device& device, const Event& event, bool similar_keys = false) {
  return CacheLayer(device.backend(), {.lengths = equal_lengths(event.rows, event.length),
                                       .kv_heads = heads_of(device).kv,
                                       .head_dim = event.head_dim,
                                       .similar_keys = similar_keys});
}

double entries_of(const Event& event) { return static_cast<double>(event.rows) * event.length; }

using Mode = WindowAttentionArgs::Mode;

struct Window {
  std::string name;
  int sequences;
  int32_t length;
  int window;
  int head_dim;
  Mode mode;
};

// Keys once, one query product a pair, the scores out.
void window_attention(Device& device, Samples& samples, const Window& shape) {
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const int64_t rows = int64_t{shape.sequences} * heads.kv;
  const CacheLayer cache(
      backend, {.lengths = equal_lengths(rows, shape.length), .kv_heads = heads.kv, .head_dim = shape.head_dim});
  WindowAttentionArgs args{.mode = shape.mode,
                           .window = shape.window,
                           .q_heads = heads.query,
                           .scale = scale_of(shape.head_dim),
                           .suffix_count = 4};
  std::vector<int32_t> suffixes;
  for (int s = 0; s < shape.sequences; ++s) suffixes.insert(suffixes.end(), {8, 16, 32, shape.window});
  Tensor device_suffixes(backend, DType::kI32, std::ssize(suffixes));
  device_suffixes.upload(suffixes.data(), suffixes.size() * sizeof(int32_t));
  args.suffixes = device_suffixes.ref().as<int32_t>();
  const int group = is_group_max(shape.mode) ? 1 : heads.query / heads.kv;
  args.planes = std::max(1, statistics_of(args)) * group;
  const Tensor queries =
      random_activations(backend, int64_t{shape.sequences} * shape.window * heads.query * shape.head_dim, 5);
  Tensor scores(backend, DType::kF32, rows * args.planes * shape.length);
  // As attend() knows them for the scorer that asks for suffixes or extremes.
  const Tensor log_sums =
      upload(backend, std::vector<float>(static_cast<size_t>(shape.sequences) * shape.window * heads.query, 8.0f));
  if (statistics_of(args) > 0) args.log_sums = log_sums.ref().as<float>();
  args.queries = queries.ref();
  args.cache = cache.view();
  args.scores = scores.slots<float>(shape.length);
  const Work work = {.bytes = cache.half_bytes() + 4.0 * args.planes * cache.entries(),
                     .flops = 2.0 * shape.head_dim * shape.window * heads.query / heads.kv * cache.entries()};
  samples.take(work, [&] { backend.window_attention(args); });
}

const std::vector<Window> kCpuWindows = {
    {"window_attention/8x1280 W8 d64", 8, 1280, 8, 64, Mode::kPerQueryHead},
    {"window_attention/8x1280 W32 d64", 8, 1280, 32, 64, Mode::kPerQueryHead},
    {"window_attention/8x1280 W8 d64 group max", 8, 1280, 8, 64, Mode::kGroupMaxOlder},
    {"window_attention/8x1280 W256 d64 group max probability", 8, 1280, 256, 64, Mode::kGroupMaxProbabilityOlder},
};
const std::vector<Window> kCudaWindows = {
    {"window_attention/64x2304 W8 d128", 64, 2304, 8, 128, Mode::kPerQueryHead},
    {"window_attention/64x2304 W8 d128 group max", 64, 2304, 8, 128, Mode::kGroupMaxOlder},
    {"window_attention/64x2304 W32 d128 sums", 64, 2304, 32, 128, Mode::kSuffixSums},
    {"window_attention/64x2304 W256 d128 sums", 64, 2304, 256, 128, Mode::kSuffixSums},
    {"window_attention/64x2304 W256 d128 extremes", 64, 2304, 256, 128, Mode::kExtremes},
    {"window_attention/64x2304 W256 d128 group max probability", 64, 2304, 256, 128, Mode::kGroupMaxProbabilityOlder},
    {"window_attention/1x128K W8 d128", 1, 128 * 1024, 8, 128, Mode::kPerQueryHead},
    {"window_attention/1x128K W64 d128", 1, 128 * 1024, 64, 128, Mode::kPerQueryHead},
    {"window_attention/1x128K W256 d128", 1, 128 * 1024, 256, 128, Mode::kPerQueryHead},
    {"window_attention/1x400K W256 d128", 1, 400 * 1024, 256, 128, Mode::kPerQueryHead},
};

// Without similar keys every pair of a row is looked at once; with them the column mean alone remains.
void redundancy(Device& device, Samples& samples, bool similar_keys) {
  const Event event = event_of(device);
  CacheLayer cache = cache_of(device, event, similar_keys);
  Tensor scores(device.backend(), DType::kF32, event.rows * event.length);
  const double means = 4.0 * event.head_dim * entries_of(event);
  const double pairs = similar_keys ? 0 : static_cast<double>(event.head_dim) * event.length * entries_of(event);
  samples.take({.bytes = cache.half_bytes() + 4 * entries_of(event), .flops = means + pairs}, [&] {
    device.backend().redundancy({.cache = cache.view(), .scores = scores.slots<float>(event.length)});
  });
}

void key_difference(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const CacheLayer cache = cache_of(device, event, true);
  Tensor scores(device.backend(), DType::kF32, event.rows * event.length);
  samples.take(
      {.bytes = cache.half_bytes() + 4 * entries_of(event), .flops = 6.0 * event.head_dim * entries_of(event)},
      [&] { device.backend().key_difference({.cache = cache.view(), .scores = scores.slots<float>(event.length)}); });
}

Tensor frequencies(Backend& backend, int head_dim) {
  std::vector<float> values(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_dim));
  }
  return upload(backend, values);
}

// Zeros in memory that holds doubles.
Tensor doubles(Backend& backend, int64_t count) {
  Tensor tensor(backend, DType::kU8, count * static_cast<int64_t>(sizeof(double)));
  tensor.fill_zero();
  return tensor;
}

// A quadratic form an entry and query head; values for their norms.
void expected_attention(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const CacheLayer cache = cache_of(device, event);
  const int64_t sequences = event.rows / heads.kv;
  const int64_t dim = event.head_dim;
  const Tensor sums = doubles(backend, sequences * heads.query * dim);
  // Moments of 1000 independent queries of unit variance.
  std::vector<double> identity(static_cast<size_t>(dim * dim));
  for (int64_t d = 0; d < dim; ++d) identity[static_cast<size_t>(d * dim + d)] = 1000;
  const int64_t bytes_each = dim * dim * static_cast<int64_t>(sizeof(double));
  Tensor products(backend, DType::kU8, sequences * heads.query * bytes_each);
  for (int64_t i = 0; i < sequences * heads.query; ++i) {
    backend.upload(products.at(i * bytes_each).data, identity.data(), static_cast<size_t>(bytes_each));
  }
  const Tensor counts = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), 1000));
  const Tensor next = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), event.length));
  const Tensor inv_freq = frequencies(backend, event.head_dim);
  Tensor scores(backend, DType::kF32, event.rows * event.length);
  const double group = static_cast<double>(heads.query) / heads.kv;
  const Work work = {.bytes = 2 * cache.half_bytes() + 4 * entries_of(event),
                     .flops = 2.0 * static_cast<double>(dim * dim) * group * entries_of(event)};
  samples.take(work, [&] {
    backend.expected_attention({.cache = cache.view(),
                                .sums = static_cast<const double*>(sums.ref().data),
                                .products = static_cast<const double*>(products.ref().data),
                                .counts = counts.ref().as<int32_t>(),
                                .next_position = next.ref().as<int32_t>(),
                                .inv_freq = inv_freq.ref().as<float>(),
                                .q_heads = heads.query,
                                .scores = scores.slots<float>(event.length)});
  });
}

// Adds the outer products of some queries of each sequence, in double.
void query_moments(Device& device, Samples& samples, int sequences, int32_t count) {
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const int dim = device.pick(64, 128);
  const int64_t values = int64_t{sequences} * count * heads.query * dim;
  const Tensor queries = random_activations(backend, values, 1);
  std::vector<Segment> list;
  for (int s = 0; s < sequences; ++s) list.push_back({.sequence = s, .first_token = s * count, .count = count});
  const Tensor segments = upload_segments(backend, list);
  const int64_t entries = int64_t{sequences} * heads.query * dim;
  Tensor sums = doubles(backend, entries);
  Tensor products = doubles(backend, entries * dim);
  const double moments = 2.0 * sizeof(double) * static_cast<double>(entries) * (1 + dim);  // read and written
  const Work work = {.bytes = device.activation() * static_cast<double>(values) + moments,
                     .flops = 2.0 * static_cast<double>(values) * dim};
  samples.take(work, [&] {
    backend.query_moments({.queries = queries.ref(),
                           .segments = segments_of(segments),
                           .segment_count = sequences,
                           .q_heads = heads.query,
                           .head_dim = dim,
                           .sums = static_cast<double*>(sums.ref().data),
                           .products = static_cast<double*>(products.ref().data)});
  });
}

void future_scores(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const CacheLayer cache = cache_of(device, event);
  Backend& backend = device.backend();
  const int64_t blocks = device.pick(16, 32), tokens = int64_t{2} * event.length;
  const Tensor table = random_floats(backend, event.rows * blocks * tokens, 5);
  const int64_t sequences = event.rows / heads_of(device).kv;
  const Tensor from = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), 3));
  Tensor scores(backend, DType::kF32, event.rows * event.length);
  samples.take({.bytes = 12 * entries_of(event)}, [&] {
    backend.future_scores({.cache = cache.view(),
                           .table = table.ref().as<float>(),
                           .from_block = from.ref().as<int32_t>(),
                           .blocks = blocks,
                           .tokens = tokens,
                           .scores = scores.slots<float>(event.length)});
  });
}

void future_table(Device& device, Samples& samples) {
  Backend& backend = device.backend();
  const int64_t heads = device.pick(8, 32), blocks = device.pick(16, 128), tokens = device.pick(4096, 32768);
  const int64_t count = heads * blocks * tokens;
  const Tensor input = random_floats(backend, count, 1);
  Tensor output(backend, DType::kF32, count);
  samples.take({.bytes = 8.0 * static_cast<double>(count), .flops = static_cast<double>(count)}, [&] {
    backend.future_table({.input = input.ref().as<float>(),
                          .output = output.ref().as<float>(),
                          .heads = heads,
                          .blocks = blocks,
                          .tokens = tokens});
  });
}

void blend(Device& device, Samples& samples) {
  const Event event = event_of(device);
  Backend& backend = device.backend();
  const Tensor a = random_floats(backend, event.rows * event.length, 1);
  const Tensor b = random_floats(backend, event.rows * event.length, 2);
  const Tensor lengths = upload(backend, equal_lengths(event.rows, event.length));
  Tensor output(backend, DType::kF32, event.rows * event.length);
  samples.take({.bytes = 12 * entries_of(event), .flops = 3 * entries_of(event)}, [&] {
    backend.blend({.a = a.slots<float>(event.length),
                   .b = b.slots<float>(event.length),
                   .weight_a = 0.1f,
                   .weight_b = 0.9f,
                   .output = output.slots<float>(event.length),
                   .lengths = lengths.ref().as<int32_t>(),
                   .rows = event.rows});
  });
}

// Pools the scores of each query head, as SnapKV does.
void pool(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const Heads heads = heads_of(device);
  const int group = heads.query / heads.kv;
  Backend& backend = device.backend();
  const Tensor input = random_floats(backend, event.rows * group * event.length, 1);
  const Tensor lengths = upload(backend, equal_lengths(event.rows, event.length));
  Tensor output(backend, DType::kF32, input.elements());
  samples.take({.bytes = 8.0 * group * entries_of(event), .flops = 7.0 * group * entries_of(event)}, [&] {
    backend.pool({.kernel = 7,
                  .input = input.slots<float>(event.length),
                  .output = output.slots<float>(event.length),
                  .lengths = lengths.ref().as<int32_t>(),
                  .rows = event.rows,
                  .vectors_per_row = group});
  });
}

void group_mean(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const Heads heads = heads_of(device);
  const int group = heads.query / heads.kv;
  Backend& backend = device.backend();
  const Tensor input = random_floats(backend, event.rows * group * event.length, 1);
  const Tensor lengths = upload(backend, equal_lengths(event.rows, event.length));
  Tensor output(backend, DType::kF32, event.rows * event.length);
  samples.take({.bytes = 4.0 * (group + 1) * entries_of(event), .flops = group * entries_of(event)}, [&] {
    backend.group_mean({.input = input.slots<float>(event.length),
                        .output = output.slots<float>(event.length),
                        .lengths = lengths.ref().as<int32_t>(),
                        .rows = event.rows,
                        .group = group});
  });
}

// Averages over heads with the same entries, as TOVA leaves them without an allocation.
void layer_mean(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const Heads heads = heads_of(device);
  const int group = heads.query / heads.kv;
  const CacheLayer cache = cache_of(device, event);
  Backend& backend = device.backend();
  const Tensor input = random_floats(backend, event.rows * group * event.length, 1);
  Tensor output(backend, DType::kF32, event.rows * event.length);
  // From memory each value is read once; each row then adds up those of all heads.
  samples.take({.bytes = (4.0 * group + 8) * entries_of(event), .flops = heads.query * entries_of(event)}, [&] {
    backend.layer_mean({.cache = cache.view(),
                        .input = input.slots<float>(event.length),
                        .group = group,
                        .output = output.slots<float>(event.length)});
  });
}

void visibility(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const CacheLayer cache = cache_of(device, event);
  Backend& backend = device.backend();
  const int64_t sequences = event.rows / heads_of(device).kv;
  const Tensor seen = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), event.length));
  Tensor scores = random_floats(backend, event.rows * event.length, 1);
  samples.take({.bytes = 12 * entries_of(event), .flops = entries_of(event)}, [&] {
    backend.visibility(
        {.cache = cache.view(), .tokens_seen = seen.ref().as<int32_t>(), .scores = scores.slots<float>(event.length)});
  });
}

void random_uniform(Device& device, Samples& samples) {
  const Event event = event_of(device);
  Backend& backend = device.backend();
  const CacheLayer cache(
      backend,
      {.lengths = equal_lengths(event.rows, event.length), .kv_heads = heads_of(device).kv, .positions_only = true});
  const int64_t sequences = event.rows / heads_of(device).kv;
  const Tensor seen = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), event.length));
  Tensor scores(backend, DType::kF32, event.rows * event.length);
  samples.take({.bytes = 4 * entries_of(event)}, [&] {
    backend.random_uniform({.cache = cache.view(),
                            .seed = 1,
                            .numbers = seen.ref().as<int32_t>(),
                            .tokens_seen = seen.ref().as<int32_t>(),
                            .scores = scores.slots<float>(event.length)});
  });
}

// ForesightKV's features of the columns, and its network of 16 units: keys, values and features once.
void columns_fold(Device& device, Samples& samples) {
  const Event event = event_of(device);
  Backend& backend = device.backend();
  const int group = heads_of(device).query / heads_of(device).kv;
  CacheLayer cache(backend, {.lengths = equal_lengths(event.rows, event.length),
                             .kv_heads = heads_of(device).kv,
                             .column_width = 6 * group,
                             .positions_only = true});
  Tensor features(backend, DType::kF32, event.rows * 6 * group * event.length);
  samples.take({.bytes = (6.0 + 3.0 + 6.0) * 4 * group * entries_of(event)}, [&] {
    backend.attention_columns_fold({.cache = cache.view(),
                                    .group = group,
                                    .suffix_count = 3,
                                    .pool_columns = cache.pool_columns(),
                                    .features = features.slots<float>(event.length),
                                    .planes = 6 * group});
  });
}

void rate_entries(Device& device, Samples& samples) {
  const Event event = event_of(device);
  Backend& backend = device.backend();
  const Heads heads = heads_of(device);
  const CacheLayer cache = cache_of(device, event);
  const int features = 6 * heads.query / heads.kv;
  const Tensor given = random_floats(backend, event.rows * features * event.length, 2);
  EntryNetwork network{.entry_dim = event.head_dim, .feature_count = features};
  const Tensor parameters = random_floats(backend, heads.kv * network.parameter_count(), 3);
  network.features = given.slots<float>(event.length);
  network.parameters = parameters.ref().as<float>();
  Tensor output(backend, DType::kF32, event.rows * event.length);
  samples.take(
      {.bytes = 2 * cache.half_bytes() + (4.0 * features + 4) * entries_of(event),
       .flops = 2.0 * network.inputs() * network.hidden * entries_of(event)},
      [&] {
        backend.rate_entries({.cache = cache.view(), .network = network, .output = output.slots<float>(event.length)});
      });
}

// Scores of one layer at ForesightKV's event: all that its score() runs, from columns to the draw. With sums kept: what
// recomputes them is window_attention's to time.
void foresight_event(Device& device, Samples& samples) {
  const Event event = event_of(device);
  Backend& backend = device.backend();
  const Heads heads = heads_of(device);
  ForesightScorer scorer(ForesightShape{.recomputes_sums = false}, EvictionSampling::kTop2d);
  SourceInfo info;
  info.layers = 1;
  info.q_heads = heads.query;
  info.kv_heads = heads.kv;
  info.head_dim = event.head_dim;
  info.layer_numbers = {0};
  const auto sequences = static_cast<int>(event.rows / heads.kv);
  const int columns = scorer.needs().columns(info.group()), interval = 256;
  CacheLayer cache(backend, {.lengths = equal_lengths(event.rows, event.length),
                             .kv_heads = heads.kv,
                             .head_dim = event.head_dim,
                             .column_width = columns});
  const std::vector<LearnedPart> parts = scorer.shape().parts(info);
  scorer.use(info, std::vector<float>(static_cast<size_t>(heads.kv * elements_of(parts)), 0.01F));
  const std::vector<int32_t> numbers(static_cast<size_t>(sequences), 0);
  scorer.begin({.backend = &backend,
                .source = &info,
                .sequences = sequences,
                .budget = event.length - interval,
                .interval = interval,
                .sample_numbers = numbers});
  const std::vector<int32_t> lengths = equal_lengths(event.rows, event.length);
  const Tensor seen = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), event.length));
  Tensor scores(backend, DType::kF32, event.rows * event.length), ties(backend, DType::kF32, scores.elements());
  const LayerView view{.backend = backend,
                       .sequences = sequences,
                       .q_heads = heads.query,
                       .kv_heads = heads.kv,
                       .head_dim = event.head_dim,
                       .scale = info.scale(),
                       .cache = cache.view(),
                       .lengths = lengths,
                       .columns = cache.pool_columns(),
                       .pitch = event.length};
  const EntryNetwork network = scorer.shape().network(info);
  // Columns are read and half of them written, features written and read, keys and values read; the network's scores
  // are written, read for the candidates and for the draw, whose own are written.
  const double floats = 1.5 * columns + 2 * network.feature_count + 4;
  samples.take({.bytes = 2 * cache.half_bytes() + 4 * floats * entries_of(event),
                .flops = 2.0 * network.inputs() * network.hidden * entries_of(event)},
               [&] {
                 scorer.score(view, {.scores = scores.slots<float>(event.length),
                                     .ties = ties.slots<float>(event.length),
                                     .device_tokens_seen = seen.ref().as<int32_t>()});
               });
}

void draw_order(Device& device, Samples& samples) {
  const Event event = event_of(device);
  const CacheLayer cache = cache_of(device, event);
  Backend& backend = device.backend();
  const int64_t sequences = event.rows / heads_of(device).kv;
  const Tensor numbers = upload(backend, std::vector<int32_t>(static_cast<size_t>(sequences), event.length));
  const Tensor scores = random_floats(backend, event.rows * event.length, 4);
  Tensor output(backend, DType::kF32, event.rows * event.length);
  samples.take({.bytes = 8 * entries_of(event)}, [&] {
    backend.draw_order({.cache = cache.view(),
                        .scores = scores.slots<float>(event.length),
                        .seed = 1,
                        .numbers = numbers.ref().as<int32_t>(),
                        .tokens_seen = numbers.ref().as<int32_t>(),
                        .output = output.slots<float>(event.length)});
  });
}

const Family kScores{[](Device& device) {
  for (const Window& shape : device.pick(kCpuWindows, kCudaWindows)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { window_attention(on, samples, shape); });
  }
  const Event event = event_of(device);
  const std::string shape = fmt::format("{}x{}", event.rows, event.length);
  const std::string dim = fmt::format(" d{}", event.head_dim), with_dim = shape + dim;
  device.add("redundancy/" + with_dim + " random", [](Device& on, Samples& s) { redundancy(on, s, false); });
  device.add("redundancy/" + with_dim + " similar", [](Device& on, Samples& s) { redundancy(on, s, true); });
  device.add("key_difference/" + with_dim, key_difference);
  device.add("attention_columns_fold/" + shape, columns_fold);
  device.add("rate_entries/" + with_dim, rate_entries);
  device.add(fmt::format("foresight_event/{}x{}", event.rows / heads_of(device).kv, event.length) + dim,
             foresight_event);
  device.add("draw_order/" + shape, draw_order);
  device.add("expected_attention/" + with_dim, expected_attention);
  const int block = device.pick(256, 8192), batch = device.pick(8, 64);
  device.add(fmt::format("query_moments/1x{}", block) + dim,
             [block](Device& on, Samples& s) { query_moments(on, s, 1, block); });
  device.add(fmt::format("query_moments/{}x1", batch) + dim,
             [batch](Device& on, Samples& s) { query_moments(on, s, batch, 1); });
  device.add("future_scores/" + shape, future_scores);
  device.add(device.pick<std::string>("future_table/8x16x4K", "future_table/32x128x32K"), future_table);
  device.add("blend/" + shape, blend);
  device.add("pool/" + shape, pool);
  device.add("group_mean/" + shape, group_mean);
  device.add("layer_mean/" + shape, layer_mean);
  device.add("visibility/" + shape, visibility);
  device.add("random_uniform/" + shape, random_uniform);
}};

}  // namespace
}  // namespace kv::bench
