#include "kernels/rate_by_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/close.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RateByAttention);

constexpr int kKvHeads = 2, kDrop = 5;
constexpr int64_t kPitch = 320;
const std::vector<int32_t> kLengths = {0, 0, 40, 41, 64, 300, 128, 129, 255, 77};  // 5 sequences
const std::vector<uint8_t> kDue = {0, 0, 1, 1, 1, 1, 1, 1, 0, 0};

struct Shape {
  int dim, group, hidden, window;
  bool has_recent = true;
  bool reads_entries = true;
};
const std::vector<Shape> kShapes = {{64, 1, 16, 32},         {64, 2, 16, 40, false}, {128, 4, 16, 32},
                                    {128, 4, 16, 40, false}, {128, 5, 16, 32},       {128, 8, 16, 32},
                                    {64, 2, 8, 32},          {32, 2, 16, 32},        {128, 2, 16, 32, true, false}};

// The same event for the op and for the three that it stands for, each with a cache of its own.
class Event {
 public:
  Event(Backend& backend, const Shape& shape)
      : backend_(backend),
        shape_(shape),
        cache_(backend, ref::random_rows(kLengths, kKvHeads, shape.dim, 4, 3 * shape.group), 2),
        queries_(ref::upload_activations(
            backend,
            ref::random_values(kLengths.size() / kKvHeads * shape.window * kKvHeads * shape.group * shape.dim, 5))),
        due_(ref::upload_array(backend, kDue)),
        counted_(ref::upload_array(backend, std::vector<uint8_t>{0, 0, 0, 0, 1, 1, 0, 0, 0, 0})) {
    network_ = {.entry_dim = shape.reads_entries ? shape.dim : 0, .feature_count = planes(), .hidden = shape.hidden};
    std::vector<float> parameters = ref::random_values(kKvHeads * network_.parameter_count(), 6);
    for (float& parameter : parameters) parameter *= 0.2F;
    parameters_ = ref::upload_array(backend, parameters);
    network_.parameters = ref::data_of<float>(parameters_);
  }

  RateByAttentionArgs args(Tensor& output) {
    const int group = shape_.group;
    return {.window = {.mode = WindowAttentionArgs::Mode::kSuffixSums,
                       .queries = queries_.ref(),
                       .cache = cache_.view(),
                       .window = shape_.window,
                       .q_heads = kKvHeads * group,
                       .scale = 4 / std::sqrt(static_cast<float>(shape_.dim)),
                       .suffix_count = shape_.has_recent ? 3 : 4,
                       .suffixes = {8, 16, 32, shape_.window},
                       .planes = planes(),
                       .rows_due = ref::data_of<uint8_t>(due_)},
            .fold = {.cache = cache_.view(),
                     .rows_due = ref::data_of<uint8_t>(due_),
                     .group = group,
                     .has_recent = shape_.has_recent,
                     .rows_counted = shape_.has_recent ? nullptr : ref::data_of<uint8_t>(counted_),
                     .pool_columns = cache_.pool_columns(),
                     .planes = planes(),
                     .first_plane = 3 * group},
            .rate = {.cache = cache_.view(),
                     .network = network_,
                     .rows_due = ref::data_of<uint8_t>(due_),
                     .drop_newest = kDrop,
                     .output = output.slots<float>(kPitch)}};
  }
  int planes() const { return 6 * shape_.group; }
  Tensor slots(int64_t vectors) const { return Tensor(backend_, DType::kF32, vectors * kPitch); }
  std::vector<std::vector<float>> columns() const { return cache_.download().columns; }

 private:
  Backend& backend_;
  Shape shape_;
  ref::PagedCache cache_;
  Tensor queries_, due_, counted_, parameters_;
  EntryNetwork network_;
};

struct Outcome {
  std::vector<float> output, features;
  std::vector<std::vector<float>> columns;
};

Outcome run_apart(Backend& backend, const Shape& shape) {
  Event event(backend, shape);
  const auto rows = std::ssize(kLengths);
  Tensor output = event.slots(rows), features = event.slots(rows * event.planes());
  RateByAttentionArgs args = event.args(output);
  args.window.scores = args.fold.features = features.slots<float>(kPitch);
  args.rate.network.features = features.slots<float>(kPitch);
  backend.window_attention(args.window);
  backend.attention_columns_fold(args.fold);
  backend.rate_entries(args.rate);
  return {ref::download_array<float>(output), ref::download_array<float>(features), event.columns()};
}

Outcome run_together(Backend& backend, const Shape& shape, bool with_features) {
  Event event(backend, shape);
  const auto rows = std::ssize(kLengths);
  Tensor output = event.slots(rows), features = event.slots(rows * event.planes());
  RateByAttentionArgs args = event.args(output);
  if (with_features) args.fold.features = features.slots<float>(kPitch);
  backend.rate_by_attention(args);
  return {ref::download_array<float>(output), ref::download_array<float>(features), event.columns()};
}

// Sums go in another order: of features by a rounding of each, of hidden units by some of the largest.
TEST_P(RateByAttention, IsItsThreePartsInOne) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Shape& shape : kShapes) {
    for (const bool with_features : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "dim " << shape.dim << ", group " << shape.group << ", hidden "
                                        << shape.hidden << ", features " << with_features);
      const Outcome want = run_apart(*backend, shape), got = run_together(*backend, shape, with_features);
      for (int64_t row = 0; row < std::ssize(kLengths); ++row) {
        const int64_t count = kDue[row] ? std::max(0, kLengths[row] - kDrop) : 0;
        ref::expect_close(ref::slice(got.output, row * kPitch, count), ref::slice(want.output, row * kPitch, count),
                          {.roundings = 64, .magnitude = 4.0 * shape.window});
        ref::expect_untouched(got.output, row * kPitch + count, (row + 1) * kPitch);
        ref::expect_close(got.columns[row], want.columns[row], {.roundings = 16, .magnitude = 1.0 * shape.window});
      }
      if (!with_features) {
        ref::expect_untouched(got.features, 0, std::ssize(got.features));
        continue;
      }
      for (size_t i = 0; i < want.features.size(); ++i) {
        ASSERT_EQ(std::isnan(got.features[i]), std::isnan(want.features[i])) << i;
        if (std::isnan(want.features[i])) continue;
        ASSERT_FLOAT_EQ(got.features[i], want.features[i]) << i;
      }
    }
  }
}

// What the tolerance is for: another entry's key, value or column is seen.
TEST_P(RateByAttention, TellsEntriesApart) {
  KV_BACKEND_OR_SKIP(backend);
  const Outcome got = run_together(*backend, {128, 4, 16, 32}, false);
  const std::vector<float> row = ref::slice(got.output, 5 * kPitch, 290);
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const double allowed = 64 * 4.0 * 32 * std::numeric_limits<float>::epsilon();
  EXPECT_GT(*high - *low, 50 * allowed);
}

}  // namespace
}  // namespace kv
