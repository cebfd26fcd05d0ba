#include <string>

#include "kernels/attend.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"

// One new token for each sequence of a batch over the paged cache: all that counts is how fast keys and values stream.

namespace kv::bench {
namespace {

enum class Lengths { kEqual, kRagged };

struct Shape {
  std::string name;
  int sequences;
  int32_t length;
  int head_dim;
  Lengths lengths = Lengths::kEqual;  // ragged: of each sequence and KV head on its own
  PageOrder pages = PageOrder::kPrefilled;
  bool with_sums = false;  // of each column
};

void run(Device& device, Samples& samples, const Shape& shape) {
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const int64_t rows = int64_t{shape.sequences} * heads.kv;
  const CacheLayer cache(backend, {.lengths = shape.lengths == Lengths::kEqual ? equal_lengths(rows, shape.length)
                                                                               : ragged_lengths(rows, shape.length, 6),
                                   .pages = shape.pages,
                                   .kv_heads = heads.kv,
                                   .head_dim = shape.head_dim});
  const int64_t values = int64_t{shape.sequences} * heads.query * shape.head_dim;
  const Tensor queries = random_activations(backend, values, 5);
  Tensor output(backend, backend.activation_type(), values);
  std::vector<Segment> list;
  for (int s = 0; s < shape.sequences; ++s) {
    list.push_back({.sequence = s, .first_token = s, .count = 1, .first_position = shape.length - 1});
  }
  const Tensor segments = upload_segments(backend, list);
  const double queries_and_output = 2.0 * device.activation() * static_cast<double>(values);
  const double probabilities = static_cast<double>(heads.query) / heads.kv * cache.entries();
  Tensor sums(backend, DType::kF32, shape.with_sums ? int64_t{shape.sequences} * heads.query * shape.length : 0);
  const Work work = {
      .bytes = 2 * cache.half_bytes() + queries_and_output + (shape.with_sums ? sizeof(float) * probabilities : 0),
      .flops = 4.0 * shape.head_dim * probabilities};
  samples.take(work, [&] {
    backend.attend({.queries = queries.ref(),
                    .cache = cache.view(),
                    .segments = segments_of(segments),
                    .segment_count = shape.sequences,
                    .max_count = 1,
                    .output = output.ref(),
                    .column_sums = shape.with_sums ? sums.slots<float>(shape.length) : Slots<float>{},
                    .q_heads = heads.query,
                    .scale = scale_of(shape.head_dim)});
  });
}

const std::vector<Shape> kCpu = {{"decode/1x4K d64", 1, 4096, 64}};
const std::vector<Shape> kCuda = {
    {"decode/96x1280 d128", 96, 1280, 128},
    {"decode/96x1280 d128 ragged", 96, 1280, 128, Lengths::kRagged},
    {"decode/96x1280 d128 shuffled", 96, 1280, 128, Lengths::kEqual, PageOrder::kShuffled},
    {"decode/96x2304 d128", 96, 2304, 128},
    {"decode/32x4096 d128", 32, 4096, 128},
    {"decode/32x4096 d128 ragged", 32, 4096, 128, Lengths::kRagged},
    {"decode/32x4096 d128 shuffled", 32, 4096, 128, Lengths::kEqual, PageOrder::kShuffled},
    {"decode/8x32K d128", 8, 32'000, 128},
    {"decode/1x100K d128", 1, 100'000, 128},
    {"decode/1x100K d128 ragged", 1, 100'000, 128, Lengths::kRagged},
    {"decode/1x100K d128 shuffled", 1, 100'000, 128, Lengths::kEqual, PageOrder::kShuffled},
    {"decode/1x200K d128", 1, 200'000, 128},
    {"decode/1x400K d128", 1, 400'000, 128},
    {"decode/1x400K d128 ragged", 1, 400'000, 128, Lengths::kRagged},
    {"decode/96x1280 d64", 96, 1280, 64},
    {"decode/32x4096 d64", 32, 4096, 64},
    {"decode/1x100K d64", 1, 100'000, 64},
    {"decode/1x200K d64", 1, 200'000, 64},
    {.name = "decode/64x2304 d128 sums", .sequences = 64, .length = 2304, .head_dim = 128, .with_sums = true},
    {.name = "decode/1x100K d128 sums", .sequences = 1, .length = 100'000, .head_dim = 128, .with_sums = true},
};

const Family kDecode{[](Device& device) {
  for (const Shape& shape : device.pick(kCpu, kCuda)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
