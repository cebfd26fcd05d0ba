#include "tests/bench/tensors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/tasks/random.h"
#include "tests/support/backends.h"

namespace kv::bench {

namespace {

constexpr int64_t kBlock =
    (int64_t{1} << 20) - 7;  // odd: the repeated vectors are shifted, so that none is like another

std::vector<float> normals(int64_t count, uint32_t seed) {
  const std::vector<float> uniform = ref::random_values(static_cast<size_t>(4 * count), seed);
  std::vector<float> values(static_cast<size_t>(count));
  const float scale = std::sqrt(0.75f);  // a uniform of [-1, 1) has the variance 1/3
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * (uniform[4 * i] + uniform[4 * i + 1] + uniform[4 * i + 2] + uniform[4 * i + 3]);
  }
  return values;
}

// `block` again and again, copied on the device.
Tensor repeated(Backend& backend, const Tensor& block, int64_t count) {
  Tensor tensor(backend, block.dtype(), count);
  for (int64_t done = 0; done < count; done += block.elements()) {
    const auto size = static_cast<size_t>(std::min(block.elements(), count - done));
    backend.copy(tensor.at(done).data, block.ref().data, size * bytes_of(block.dtype()));
  }
  return tensor;
}

// Keys of unit variance around a direction that all of them share, if asked to.
Tensor random_keys(Backend& backend, int64_t count, const CacheShape& shape) {
  std::vector<float> block = normals(kBlock, 1);
  if (shape.similar_keys) {
    block.resize(block.size() / static_cast<size_t>(shape.head_dim) * static_cast<size_t>(shape.head_dim));
    const std::vector<float> direction = normals(shape.head_dim, 2);
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] = 0.5f * block[i] + direction[i % static_cast<size_t>(shape.head_dim)];
    }
  }
  return repeated(backend, ref::upload_activations(backend, block), count);
}

int64_t pages_for(int32_t length) { return (length + kPageTokens - 1) / kPageTokens; }

constexpr int64_t kChunkPages = 8192 / kPageTokens;  // of a row and chunk of a long prompt, as latency specs have it

// Places in the pool, in the order in which they are handed out.
std::vector<int32_t> places(int64_t count, PageOrder pages) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (pages == PageOrder::kPrefilled) return order;
  Random random(7);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace

Tensor random_activations(Backend& backend, int64_t count, uint32_t seed) {
  return repeated(backend, ref::upload_activations(backend, normals(std::min(count, kBlock), seed)), count);
}

Tensor random_floats(Backend& backend, int64_t count, uint32_t seed) {
  return repeated(backend, upload(backend, normals(std::min(count, kBlock), seed)), count);
}

Tensor counting(Backend& backend, int64_t count, int32_t start) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), start);
  return upload(backend, values);
}

Tensor upload_segments(Backend& backend, const std::vector<Segment>& segments) {
  Tensor tensor(backend, DType::kU8, static_cast<int64_t>(segments.size() * sizeof(Segment)));
  tensor.upload(segments.data(), segments.size() * sizeof(Segment));
  return tensor;
}

const Segment* segments_of(const Tensor& tensor) { return static_cast<const Segment*>(tensor.ref().data); }

CacheLayer::CacheLayer(Backend& backend, const CacheShape& shape) {
  const auto rows = static_cast<int64_t>(shape.lengths.size());
  int64_t pages = 0, max_pages = 0;
  for (const int32_t length : shape.lengths) {
    pages += pages_for(length);
    max_pages = std::max(max_pages, pages_for(length));
    entries_ += length;
  }
  const std::vector<int32_t> order = places(pages, shape.pages);
  std::vector<int32_t> table(static_cast<size_t>(rows * max_pages), -1),
      positions(static_cast<size_t>(pages * kPageTokens));
  size_t next = 0;
  for (int64_t chunk = 0; chunk < max_pages; chunk += kChunkPages) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t end = std::min(pages_for(shape.lengths[static_cast<size_t>(row)]), chunk + kChunkPages);
      for (int64_t page = chunk; page < end; ++page) {
        const int32_t place = order[next++];
        table[static_cast<size_t>(row * max_pages + page)] = place;
        for (int64_t i = 0; i < kPageTokens; ++i) {
          positions[static_cast<size_t>(place * kPageTokens + i)] = static_cast<int32_t>(page * kPageTokens + i);
        }
      }
    }
  }
  positions_ = upload(backend, positions);
  table_ = upload(backend, table);
  lengths_ = upload(backend, shape.lengths);
  const int64_t values = pages * kPageTokens * shape.head_dim;
  keys_ = shape.positions_only ? Tensor(backend, backend.activation_type(), 0) : random_keys(backend, values, shape);
  values_ =
      shape.positions_only ? Tensor(backend, backend.activation_type(), 0) : random_activations(backend, values, 3);
  if (shape.column_width) columns_ = random_floats(backend, pages * kPageTokens * shape.column_width, 4);
  view_ = {.keys = keys_.ref(),
           .values = values_.ref(),
           .positions = positions_.ref().as<int32_t>(),
           .columns = pool_columns(),
           .page_table = table_.ref().as<int32_t>(),
           .lengths = lengths_.ref().as<int32_t>(),
           .pool_pages = pages,
           .rows = rows,
           .max_pages = max_pages,
           .max_length = *std::max_element(shape.lengths.begin(), shape.lengths.end()),
           .kv_heads = shape.kv_heads,
           .head_dim = shape.head_dim,
           .column_width = shape.column_width};
}

std::vector<int32_t> equal_lengths(int64_t rows, int32_t length) {
  return std::vector<int32_t>(static_cast<size_t>(rows), length);
}

std::vector<int32_t> ragged_lengths(int64_t rows, int32_t mean, uint32_t seed) {
  std::vector<double> shares(static_cast<size_t>(rows));
  double sum = 0;
  const std::vector<float> uniform = ref::random_values(shares.size(), seed);
  for (size_t i = 0; i < shares.size(); ++i) sum += shares[i] = std::pow(24.0, 0.5 * (uniform[i] + 1.0));  // 1 to 24
  std::vector<int32_t> lengths(shares.size());
  int64_t left = rows * mean;
  for (size_t i = 0; i < shares.size(); ++i) {
    lengths[i] = std::max(1, static_cast<int32_t>(shares[i] / sum * static_cast<double>(rows * mean)));
    left -= lengths[i];
  }
  for (size_t i = 0; left > 0; ++i, --left) ++lengths[i % lengths.size()];  // what rounding down left over
  return lengths;
}

}  // namespace kv::bench
