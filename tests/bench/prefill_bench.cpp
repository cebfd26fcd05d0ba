#include <string>

#include "kernels/attend.h"
#include "tests/bench/attention.h"
#include "tests/bench/bench.h"

// Attention of one sequence's new tokens: prefill, with and without column statistics, and the block step of the (B, L)
// protocol.

namespace kv::bench {
namespace {

enum class Columns { kNone, kSums, kSumsAndMax };

struct Shape {
  std::string name;
  int32_t length;
  int32_t count;
  int head_dim;
  Columns columns = Columns::kNone;
};

// Causal pairs once: a query and a value product of 2·D each, and the query product once more where column statistics
// are wanted, for they need each row's final normaliser.
Work work_of(const Shape& shape, const Heads& heads, double activation) {
  const double pairs = 0.5 * shape.count * (2.0 * shape.length - shape.count + 1);
  const int products = shape.columns == Columns::kNone ? 2 : 3;
  const double statistics = static_cast<int>(shape.columns) * 4.0 * heads.query * shape.length;
  return {.bytes = activation * shape.head_dim * (2.0 * shape.count * heads.query + 2.0 * shape.length * heads.kv) +
                   statistics,
          .flops = 2.0 * products * shape.head_dim * heads.query * pairs};
}

void run(Device& device, Samples& samples, const Shape& shape) {
  const Heads heads = heads_of(device);
  Backend& backend = device.backend();
  const CacheLayer cache(
      backend, {.lengths = equal_lengths(heads.kv, shape.length), .kv_heads = heads.kv, .head_dim = shape.head_dim});
  const int64_t values = int64_t{heads.query} * shape.count * shape.head_dim;
  const Tensor queries = random_activations(backend, values, 5);
  Tensor output(backend, backend.activation_type(), values);
  const int64_t statistics = int64_t{heads.query} * shape.length;
  Tensor sums(backend, DType::kF32, shape.columns == Columns::kNone ? 0 : statistics);
  Tensor maxima(backend, DType::kF32, shape.columns == Columns::kSumsAndMax ? statistics : 0);
  const Tensor segments =
      upload_segments(backend, {{.count = shape.count, .first_position = shape.length - shape.count}});
  samples.take(work_of(shape, heads, device.activation()), [&] {
    backend.attend(
        {.queries = queries.ref(),
         .cache = cache.view(),
         .segments = segments_of(segments),
         .segment_count = 1,
         .max_count = shape.count,
         .output = output.ref(),
         .column_sums = shape.columns == Columns::kNone ? Slots<float>{} : sums.slots<float>(shape.length),
         .column_max = shape.columns == Columns::kSumsAndMax ? maxima.slots<float>(shape.length) : Slots<float>{},
         .q_heads = heads.query,
         .scale = scale_of(shape.head_dim)});
  });
}

constexpr int kK = 1024;

const std::vector<Shape> kCpu = {
    {"prefill/4K d64", 4 * kK, 4 * kK, 64},
    {"prefill/4K d64 sums", 4 * kK, 4 * kK, 64, Columns::kSums},
    {"prefill/4K d64 sums+max", 4 * kK, 4 * kK, 64, Columns::kSumsAndMax},
    {"prefill/512 d64", 512, 512, 64},
    {"block/128 of 4K d64 sums", 4 * kK, 128, 64, Columns::kSums},
};
const std::vector<Shape> kCuda = {
    {"prefill/8K d64", 8 * kK, 8 * kK, 64},
    {"prefill/32K d64", 32 * kK, 32 * kK, 64},
    {"prefill/128K d64", 128 * kK, 128 * kK, 64},
    {"prefill/2K d128", 2 * kK, 2 * kK, 128},
    {"prefill/4K d128", 4 * kK, 4 * kK, 128},
    {"prefill/8K d128", 8 * kK, 8 * kK, 128},
    {"prefill/16K d128", 16 * kK, 16 * kK, 128},
    {"prefill/32K d128", 32 * kK, 32 * kK, 128},
    {"prefill/128K d128", 128 * kK, 128 * kK, 128},
    {"prefill/200K d128", 200 * kK, 200 * kK, 128},
    {"prefill/400K d128", 400 * kK, 400 * kK, 128},
    {"prefill/32K d128 sums", 32 * kK, 32 * kK, 128, Columns::kSums},
    {"prefill/128K d128 sums", 128 * kK, 128 * kK, 128, Columns::kSums},
    {"prefill/32K d128 sums+max", 32 * kK, 32 * kK, 128, Columns::kSumsAndMax},
    {"block/8K of 32K d128", 32 * kK, 8 * kK, 128},
    {"block/256 of 2304 d128", 2304, 256, 128},
    {"block/256 of 2304 d128 sums", 2304, 256, 128, Columns::kSums},
};

const Family kPrefill{[](Device& device) {
  for (const Shape& shape : device.pick(kCpu, kCuda)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
