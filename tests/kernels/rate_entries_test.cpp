#include "kernels/rate_entries.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/ref/rate_entries.h"
#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RateEntries);

constexpr int kDrop = 3;
constexpr int64_t kPitch = 136;

struct Rows {
  int kv_heads;
  std::vector<int32_t> lengths = {};
  std::vector<uint8_t> due = {};

  int64_t count() const { return std::ssize(lengths); }
  int64_t rated(int64_t row) const { return std::max(0, lengths[row] - kDrop); }
};
const Rows kRows{2, {0, 3, 4, 18, 19, 20, 131, 132, 35, 36}, {1, 1, 1, 1, 1, 1, 1, 1, 0, 1}};

struct Shape {
  int dim;
  int features;
  int hidden;
  bool reads_entries = true;
};
const std::vector<Shape> kShapes = {{16, 6, 16},   {20, 1, 8},   {32, 5, 8},    {64, 12, 16},      {96, 17, 16},
                                    {128, 24, 32}, {128, 8, 64}, {256, 48, 16}, {16, 6, 16, false}};

// A cache with features and networks, on the backend and as a reference reads them.
class Rated {
 public:
  Rated(Backend& backend, const Shape& shape, const Rows& rows = kRows)
      : backend_(backend),
        shape_(shape),
        rows_(rows),
        cache_(backend, ref::random_rows(rows.lengths, rows.kv_heads, shape.dim, 4), 2),
        network_({.entry_dim = shape.reads_entries ? shape.dim : 0,
                  .feature_count = shape.features,
                  .hidden = shape.hidden}),
        features_(ref::random_values(rows.count() * shape.features * kPitch, 5)),
        parameters_(ref::random_values(rows.kv_heads * network_.parameter_count(), 6)),
        due_(ref::upload_array(backend, rows.due)) {
    const int64_t planes = rows.count() * shape.features;
    for (int64_t plane = 0; plane < planes; ++plane) {
      // Beyond the rated entries nothing may be read.
      const auto row = features_.begin() + plane * kPitch;
      std::fill(row + rows.rated(plane / shape.features), row + kPitch, NAN);
    }
    device_features_ = ref::upload_array(backend, features_);
    device_parameters_ = ref::upload_array(backend, parameters_);
    network_.features = device_features_.slots<float>(kPitch);
    network_.parameters = ref::data_of<float>(device_parameters_);
  }

  const EntryNetwork& network() const { return network_; }
  int64_t parameter_count() const { return network_.parameter_count(); }

  std::vector<float> rate() {
    Tensor output(backend_, DType::kF32, rows_.count() * kPitch);
    backend_.rate_entries({.cache = cache_.view(),
                           .network = network_,
                           .rows_due = ref::data_of<uint8_t>(due_),
                           .drop_newest = kDrop,
                           .output = output.slots<float>(kPitch)});
    return ref::download_array<float>(output);
  }
  // Adds to `start` in every place.
  std::vector<float> backward(const std::vector<float>& output_gradient, float start) {
    const std::vector<float> before(rows_.count() * parameter_count(), start);
    Tensor gradients = ref::upload_array(backend_, before), by = ref::upload_array(backend_, output_gradient);
    backend_.rate_entries_backward({.cache = cache_.view(),
                                    .network = network_,
                                    .rows_due = ref::data_of<uint8_t>(due_),
                                    .drop_newest = kDrop,
                                    .output_gradient = by.slots<float>(kPitch),
                                    .gradients = ref::data_of<float>(gradients)});
    return ref::download_array<float>(gradients);
  }

  std::vector<double> inputs(int64_t row, int64_t slot) const {
    std::vector<double> x;
    for (const auto* pool : {&cache_.rows().keys, &cache_.rows().values}) {
      if (!shape_.reads_entries) break;
      for (int d = 0; d < shape_.dim; ++d) x.push_back((*pool)[row][slot * shape_.dim + d]);
    }
    for (int f = 0; f < shape_.features; ++f) x.push_back(features_[(row * shape_.features + f) * kPitch + slot]);
    return x;
  }
  std::vector<double> parameters(int64_t row) const {
    const auto first = parameters_.begin() + row % rows_.kv_heads * parameter_count();
    return {first, first + parameter_count()};
  }

 private:
  Backend& backend_;
  Shape shape_;
  Rows rows_;
  ref::PagedCache cache_;
  EntryNetwork network_;
  std::vector<float> features_, parameters_;
  Tensor due_, device_features_, device_parameters_;
};

// Inputs and parameters lie in [-1, 1): a hidden unit sums `inputs` products and its GELU is no larger, its slope at
// most 1.13; so is what the output sums, `hidden` of them.
double magnitude(const Shape& shape, const EntryNetwork& network) {
  return 1.13 * shape.hidden * (1.0 + network.inputs());
}

void expect_ratings(Backend& backend, const Shape& shape, const Rows& rows) {
  Rated rated(backend, shape, rows);
  const std::vector<float> got = rated.rate();
  for (int64_t row = 0; row < rows.count(); ++row) {
    const int64_t count = rows.due[row] ? rows.rated(row) : 0;
    const std::vector<double> parameters = rated.parameters(row);
    std::vector<double> want;
    for (int64_t slot = 0; slot < count; ++slot) {
      want.push_back(ref::rate_entry(parameters, rated.inputs(row, slot), shape.hidden));
    }
    // A rounding of each of its terms' sums, of which the typical one is far below the bound.
    ref::expect_close(ref::slice(got, row * kPitch, count), want,
                      {.roundings = 4, .magnitude = magnitude(shape, rated.network())});
    ref::expect_untouched(got, row * kPitch + count, (row + 1) * kPitch);
  }
}

TEST_P(RateEntries, AgreesWithDoubleArithmeticAndSkipsRowsNotDue) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) expect_ratings(*backend, shape, kRows);
  expect_ratings(*backend, {256, 96, 64}, kRows);  // more weights than a card has room for in three parts
}

// More heads than a card has blocks at a time, or nearly, so that a head's few have many entries in turn, with rows
// between them that have none.
TEST_P(RateEntries, AgreesWhereAHeadHasManyRows) {
  KV_BACKEND_OR_SKIP(backend);
  Rows rows{.kv_heads = 160};
  for (int32_t row = 0; row < 5 * rows.kv_heads; ++row) {
    rows.lengths.push_back(row * 37 % 133);
    rows.due.push_back(row % 7 == 0 ? 0 : 1);
  }
  for (const Shape& shape : {Shape{64, 20, 16}, Shape{32, 5, 8}}) expect_ratings(*backend, shape, rows);
}

TEST_P(RateEntries, BackwardIsTheSlopeOfTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    Rated rated(*backend, shape);
    std::vector<float> output_gradient = ref::random_values(kRows.count() * kPitch, 8);
    for (int64_t row = 0; row < kRows.count(); ++row) {
      for (int64_t slot = kRows.rated(row); slot < kPitch; ++slot) output_gradient[row * kPitch + slot] = NAN;
    }
    constexpr float kStart = 0.5F;
    const std::vector<float> got = rated.backward(output_gradient, kStart);
    const int64_t parameters = rated.parameter_count();
    for (const int64_t row : {0, 3, 7, 8, 9}) {
      const int64_t count = kRows.due[row] ? kRows.rated(row) : 0;
      const std::vector<double> at_row = rated.parameters(row);
      std::vector<std::vector<double>> x;
      for (int64_t slot = 0; slot < count; ++slot) x.push_back(rated.inputs(row, slot));
      // A sample of the parameters, the last ones (biases and output weights) all.
      for (int64_t p = 0; p < parameters; p += p < parameters - 2 * shape.hidden - 2 ? 37 : 1) {
        constexpr double kStep = 1e-5;
        std::vector<double> ahead = at_row, behind = at_row;
        ahead[p] += kStep;
        behind[p] -= kStep;
        double slope = 0;
        for (int64_t slot = 0; slot < count; ++slot) {
          slope += output_gradient[row * kPitch + slot] *
                   (ref::rate_entry(ahead, x[slot], shape.hidden) - ref::rate_entry(behind, x[slot], shape.hidden)) /
                   (2 * kStep);
        }
        // A slope sums `count` terms, each off by its hidden unit's rounding; the quotient of differences is exact to
        // 1e-9 of them.
        const double bound = count * (1.0 + rated.network().inputs());
        ref::expect_close(got[row * parameters + p], kStart + slope, {.roundings = 4, .magnitude = 1 + bound});
      }
    }
  }
}

TEST(RateEntriesThreads, DoNotChangeABit) {
  const auto backend = ref::try_backend("cpu");
  std::array<std::vector<float>, 2> gradients;
  for (const int threads : {1, 2}) {
    const ref::Threads limit(threads);
    Rated rated(*backend, kShapes[2]);
    gradients[threads - 1] = rated.backward(std::vector<float>(kRows.count() * kPitch, 0.25F), 0);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

}  // namespace
}  // namespace kv
