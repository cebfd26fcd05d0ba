#include "kernels/advance.h"
#include "kernels/append.h"
#include "kernels/column_add.h"
#include "kernels/compact.h"
#include "kernels/keep_recent.h"
#include "kernels/select_pooled.h"
#include "kernels/select_top.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// What changes the cache: selection, eviction, new entries and the columns that policies keep beside them.

namespace kv::bench {
namespace {

struct Selection {
  std::string name;
  int64_t rows;
  int32_t length;
  int32_t kept;
};

// One look at every score, a mark out for each.
void select_top(Device& device, Samples& samples, const Selection& shape) {
  Backend& backend = device.backend();
  CacheLayer cache(
      backend,
      {.lengths = equal_lengths(shape.rows, shape.length), .kv_heads = heads_of(device).kv, .positions_only = true});
  const Tensor scores = random_floats(backend, shape.rows * shape.length, 5);
  const Tensor counts = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.rows), shape.kept));
  Tensor keep(backend, DType::kU8, shape.rows * shape.length);
  samples.take({.bytes = 5 * cache.entries()}, [&] {
    backend.select_top({.cache = cache.view(),
                        .scores = scores.slots<float>(shape.length),
                        .counts = counts.ref().as<int32_t>(),
                        .sinks = 4,
                        .recent = 8,
                        .keep = keep.slots<uint8_t>(shape.length)});
  });
}

const std::vector<Selection> kCpuSelections = {{"select_top/32x1280 keep 1024", 32, 1280, 1024}};
const std::vector<Selection> kCudaSelections = {
    {"select_top/512x2304 keep 2048", 512, 2304, 2048},
    {"select_top/288x128K keep 20%", 288, 128 * 1024, 26214},
    {"select_top/288x128K keep 2048", 288, 128 * 1024, 2048},
};

struct PooledSelection {
  std::string name;
  int64_t layers;
  int32_t length;
  int32_t kept;  // a head, on average
};

// One sequence, whose heads share one budget: as above, once for all layers.
void select_pooled(Device& device, Samples& samples, const PooledSelection& shape) {
  Backend& backend = device.backend();
  const int64_t heads = heads_of(device).kv, entries = heads * shape.length;
  CacheLayer cache(
      backend,
      {.lengths = equal_lengths(heads, shape.length), .kv_heads = static_cast<int>(heads), .positions_only = true});
  const Tensor scores = random_floats(backend, shape.layers * entries, 5);
  const Tensor counts = upload(backend, std::vector<int32_t>{static_cast<int32_t>(shape.layers * heads * shape.kept)});
  Tensor keep(backend, DType::kU8, shape.layers * entries), kept(backend, DType::kI32, shape.layers * heads);
  std::vector<SelectPooledArgs::Layer> layers;
  for (int64_t l = 0; l < shape.layers; ++l) {
    layers.push_back({.cache = cache.view(),
                      .scores = {scores.ref().as<float>() + l * entries, heads, shape.length},
                      .keep = {keep.ref().as<uint8_t>() + l * entries, heads, shape.length},
                      .kept = kept.ref().as<int32_t>() + l * heads});
  }
  samples.take({.bytes = 5.0 * static_cast<double>(shape.layers * entries)}, [&] {
    backend.select_pooled({.layers = layers.data(),
                           .layer_count = shape.layers,
                           .counts = counts.ref().as<int32_t>(),
                           .sinks = 4,
                           .recent = 8});
  });
}

const std::vector<PooledSelection> kCpuPooled = {{"select_pooled/8 layers 1280 keep 1024", 8, 1280, 1024}};
const std::vector<PooledSelection> kCudaPooled = {{"select_pooled/288x128K keep 20%", 36, 128 * 1024, 26214}};

struct Shape {
  std::string name;
  int64_t rows;
  int32_t length;
  int32_t change;  // entries evicted from, or appended to, each row
  int head_dim;
};

// Evicts every (length / change)-th entry. The pools change at the first run; later ones move other bytes in the same
// way. Counted: the keys, values and positions behind the first hole, read and written, and the marks.
void compact(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  CacheLayer cache(backend, {.lengths = equal_lengths(shape.rows, shape.length),
                             .kv_heads = heads_of(device).kv,
                             .head_dim = shape.head_dim});
  const int32_t stride = shape.length / shape.change;
  std::vector<uint8_t> marks(static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.length), 1);
  for (size_t i = 0; i < marks.size(); ++i) {
    if (i % static_cast<size_t>(shape.length) % static_cast<size_t>(stride) == 0) marks[i] = 0;
  }
  const Tensor keep = upload(backend, marks);
  const int32_t stay = shape.length - (shape.length + stride - 1) / stride;
  const double moved = static_cast<double>(shape.rows) * stay;
  const double entry = 2 * device.activation() * shape.head_dim + 4;
  samples.take({.bytes = 2 * entry * moved + cache.entries()}, [&] {
    backend.compact({.cache = cache.view(),
                     .keep = keep.slots<uint8_t>(shape.length),
                     .pool_keys = cache.pool_keys(),
                     .pool_values = cache.pool_values(),
                     .pool_positions = cache.pool_positions()});
  });
}

const std::vector<Shape> kCpuEvictions = {{"compact/32x1280-256 d64", 32, 1280, 256, 64}};
const std::vector<Shape> kCudaEvictions = {{"compact/512x2304-256 d128", 512, 2304, 256, 128},
                                           {"compact/8x2304-768 d128", 8, 2304, 768, 128},
                                           {"compact/8x128K-32K d128", 8, 131072, 32768, 128}};

// Keys and values of `change` new tokens a sequence, read and written, and their positions.
void append(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const int kv_heads = heads_of(device).kv;
  CacheLayer cache(
      backend, {.lengths = equal_lengths(shape.rows, shape.length), .kv_heads = kv_heads, .head_dim = shape.head_dim});
  const int64_t values = shape.rows * shape.change * shape.head_dim;
  const Tensor keys = random_activations(backend, values, 5), others = random_activations(backend, values, 6);
  std::vector<Segment> list;
  for (int32_t s = 0; s < shape.rows / kv_heads; ++s) {
    list.push_back({.sequence = s,
                    .first_token = s * shape.change,
                    .count = shape.change,
                    .first_position = shape.length - shape.change});
  }
  const Tensor segments = upload_segments(backend, list);
  const double bytes =
      4 * device.activation() * static_cast<double>(values) + 4 * static_cast<double>(shape.rows) * shape.change;
  samples.take({.bytes = bytes}, [&] {
    backend.append({.keys = keys.ref(),
                    .values = others.ref(),
                    .segments = segments_of(segments),
                    .segment_count = static_cast<int64_t>(list.size()),
                    .max_count = shape.change,
                    .cache = cache.view(),
                    .pool_keys = cache.pool_keys(),
                    .pool_values = cache.pool_values(),
                    .pool_positions = cache.pool_positions()});
  });
}

const std::vector<Shape> kCpuAppends = {{"append/4x4096+256 d64", 4, 4096, 256, 64}};
const std::vector<Shape> kCudaAppends = {{"append/8x32K+8K d128", 8, 32768, 8192, 128},
                                         {"append/512x2304+256 d128", 512, 2304, 256, 128},
                                         {"append/768x1280+1 d128", 768, 1280, 1, 128}};

std::vector<Segment> one_token_each(int32_t sequences) {
  std::vector<Segment> list;
  for (int32_t s = 0; s < sequences; ++s) list.push_back({.sequence = s, .first_token = s, .count = 1});
  return list;
}

// H2O's accumulators, one a query head: the block's column sums in, the columns read and written.
void column_add(Device& device, Samples& samples, const Shape& shape) {
  const Heads heads = heads_of(device);
  const int group = heads.query / heads.kv;
  Backend& backend = device.backend();
  CacheLayer cache(backend, {.lengths = equal_lengths(shape.rows, shape.length),
                             .kv_heads = heads.kv,
                             .column_width = group,
                             .positions_only = true});
  const Tensor addend = random_floats(backend, shape.rows * group * shape.length, 5);
  const std::vector<Segment> list = one_token_each(static_cast<int32_t>(shape.rows / heads.kv));
  const Tensor segments = upload_segments(backend, list);
  samples.take({.bytes = 12.0 * group * cache.entries(), .flops = group * cache.entries()}, [&] {
    backend.column_add({.cache = cache.view(),
                        .segments = segments_of(segments),
                        .segment_count = static_cast<int64_t>(list.size()),
                        .addend = addend.slots<float>(shape.length),
                        .count = group,
                        .pool_columns = cache.pool_columns()});
  });
}

void column_mean(Device& device, Samples& samples, const Shape& shape) {
  const Heads heads = heads_of(device);
  const int group = heads.query / heads.kv;
  Backend& backend = device.backend();
  const CacheLayer cache(backend, {.lengths = equal_lengths(shape.rows, shape.length),
                                   .kv_heads = heads.kv,
                                   .column_width = group,
                                   .positions_only = true});
  Tensor scores(backend, DType::kF32, shape.rows * shape.length);
  samples.take({.bytes = 4.0 * (group + 1) * cache.entries(), .flops = group * cache.entries()}, [&] {
    backend.column_mean({.cache = cache.view(), .count = group, .scores = scores.slots<float>(shape.length)});
  });
}

struct Steps {
  std::string name;
  int32_t sequences;
  int layers;
};
const std::vector<Steps> kCpuSteps = {{"/8x12", 8, 12}};
const std::vector<Steps> kCudaSteps = {{"/64x36", 64, 36}};

// The lengths of all layers, read and written.
void advance(Device& device, Samples& samples, const Steps& shape) {
  Backend& backend = device.backend();
  const int kv_heads = heads_of(device).kv;
  const int64_t rows = int64_t{shape.sequences} * kv_heads;
  Tensor segments = upload_segments(backend, one_token_each(shape.sequences));
  Tensor positions(backend, DType::kI32, shape.sequences);
  Tensor lengths = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.layers * rows), 0));
  samples.take({.bytes = 8.0 * static_cast<double>(shape.layers * rows)}, [&] {
    backend.advance({.segments = static_cast<Segment*>(segments.ref().data),
                     .segment_count = shape.sequences,
                     .positions = positions.ref().as<int32_t>(),
                     .lengths = lengths.ref().as<int32_t>(),
                     .layers = shape.layers,
                     .rows = rows,
                     .kv_heads = kv_heads});
  });
}

// One new query a sequence, read and written.
void keep_recent(Device& device, Samples& samples, const Steps& shape) {
  constexpr int kWindow = 32;
  Backend& backend = device.backend();
  const int64_t width = int64_t{heads_of(device).query} * 128, values = shape.sequences * width;
  const Tensor vectors = random_activations(backend, values, 5);
  Tensor recent = random_activations(backend, kWindow * values, 6);
  const Tensor segments = upload_segments(backend, one_token_each(shape.sequences));
  samples.take({.bytes = 2.0 * device.activation() * static_cast<double>(values)}, [&] {
    backend.keep_recent({.vectors = vectors.ref(),
                         .segments = segments_of(segments),
                         .segment_count = shape.sequences,
                         .max_count = 1,
                         .window = kWindow,
                         .width = width,
                         .recent = recent.ref()});
  });
}

const std::vector<Shape> kCpuColumns = {{"/32x1280", 32, 1280, 0, 64}};
const std::vector<Shape> kCudaColumns = {{"/512x2304", 512, 2304, 0, 128}, {"/8x32K", 8, 32768, 0, 128}};

template <class T>
void add_all(Device& device, const std::string& prefix, const std::vector<T>& shapes,
             void (*run)(Device&, Samples&, const T&)) {
  for (const T& shape : shapes) {
    device.add(prefix + shape.name, [=](Device& on, Samples& samples) { run(on, samples, shape); });
  }
}

const Family kEviction{[](Device& device) {
  add_all(device, "", device.pick(kCpuSelections, kCudaSelections), select_top);
  add_all(device, "", device.pick(kCpuPooled, kCudaPooled), select_pooled);
  add_all(device, "", device.pick(kCpuEvictions, kCudaEvictions), compact);
  add_all(device, "", device.pick(kCpuAppends, kCudaAppends), append);
  add_all(device, "column_add", device.pick(kCpuColumns, kCudaColumns), column_add);
  add_all(device, "column_mean", device.pick(kCpuColumns, kCudaColumns), column_mean);
  add_all(device, "advance", device.pick(kCpuSteps, kCudaSteps), advance);
  add_all(device, "keep_recent", device.pick(kCpuSteps, kCudaSteps), keep_recent);
}};

}  // namespace
}  // namespace kv::bench
