#include "kernels/sample.h"

#include "tests/bench/bench.h"
#include "tests/bench/tensors.h"

// The next token of each sequence of a batch from its logits: greedy, and as Qwen3 is sampled.

namespace kv::bench {
namespace {

struct Shape {
  std::string name;
  int64_t rows;
  int64_t vocab;
  float temperature;
  int top_k;
  float top_p;
};

void run(Device& device, Samples& samples, const Shape& shape) {
  Backend& backend = device.backend();
  const Tensor logits = random_floats(backend, shape.rows * shape.vocab, 5), rows = counting(backend, shape.rows);
  const Tensor positions = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.rows), 7)),
               origins = upload(backend, std::vector<int32_t>(static_cast<size_t>(shape.rows), 8));  // the next ones
  Tensor ids(backend, DType::kI32, shape.rows), texts(backend, DType::kI32, shape.rows);
  const auto* row = rows.ref().as<int32_t>();
  samples.take({.bytes = 4.0 * static_cast<double>(shape.rows * shape.vocab)}, [&] {
    backend.sample({.logits = logits.ref().as<float>(),
                    .sequences = row,
                    .positions = positions.ref().as<int32_t>(),
                    .numbers = row,
                    .origins = origins.ref().as<int32_t>(),
                    .rows = shape.rows,
                    .vocab = shape.vocab,
                    .sequence_count = shape.rows,
                    .temperature = shape.temperature,
                    .top_k = shape.top_k,
                    .top_p = shape.top_p,
                    .seed = 1,
                    .ids = ids.ref().as<int32_t>(),
                    .texts = texts.ref().as<int32_t>()});
  });
}

const std::vector<Shape> kCpu = {{"sample/4x8K top-p", 4, 8192, 0.6F, 20, 0.95F}};
const std::vector<Shape> kCuda = {{"sample/64x152K greedy", 64, 151'936, 0, 0, 1},
                                  {"sample/64x152K top-p", 64, 151'936, 0.6F, 20, 0.95F}};

const Family kSample{[](Device& device) {
  for (const Shape& shape : device.pick(kCpu, kCuda)) {
    device.add(shape.name, [shape](Device& on, Samples& samples) { run(on, samples, shape); });
  }
}};

}  // namespace
}  // namespace kv::bench
