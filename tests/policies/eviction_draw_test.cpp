#include "policies/parts/eviction_draw.h"

#include <algorithm>
#include <numeric>

#include "kernels/draw_order.h"
#include "tests/support/paged_cache.h"
#include "tests/support/slices.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {
namespace {

constexpr int kBudget = 24, kInterval = 12;
constexpr int64_t kPitch = 64;

// One event of sequences with a KV head each.
struct DrawnEvent {
  std::vector<std::vector<float>> ties, scores;  // [sequence][candidate or not], without the newest
  bool chooses = false;                          // whether some were no candidates by name
  std::vector<std::vector<uint8_t>> stays = {};  // the same, where it chooses

  int64_t spared(size_t sequence) const { return std::ranges::count(scores[sequence], kStays); }
};

EvictionDraw begun(Backend& backend, EvictionSampling sampling, size_t sequences) {
  const SourceInfo info = tiny_info(1, 1, 1, 4);
  std::vector<int32_t> numbers(sequences);
  std::iota(numbers.begin(), numbers.end(), 0);
  EvictionDraw drawing(sampling);
  drawing.begin({.backend = &backend,
                 .source = &info,
                 .sequences = static_cast<int>(sequences),
                 .budget = kBudget,
                 .interval = kInterval,
                 .seed = 3,
                 .sample_numbers = numbers},
                false);
  return drawing;
}

DrawnEvent draw(Backend& backend, EvictionDraw& drawing, const std::vector<int32_t>& lengths) {
  const auto rows = std::ssize(lengths);
  const PagedCache cache(backend, random_rows(lengths, 1, 4, 1));
  const std::vector<float> network = random_values(rows * kPitch, 2);
  Tensor ties = upload_array(backend, network), seen = upload_array(backend, lengths);
  Tensor scores(backend, DType::kF32, rows * kPitch);
  const LayerView view{.backend = backend,
                       .sequences = static_cast<int>(rows),
                       .q_heads = 1,
                       .kv_heads = 1,
                       .head_dim = 4,
                       .cache = cache.view(),
                       .lengths = lengths,
                       .pitch = kPitch};
  drawing.draw(view, {.scores = scores.slots<float>(kPitch),
                      .ties = ties.slots<float>(kPitch),
                      .device_tokens_seen = data_of<int32_t>(seen)});
  const std::vector<float> drawn = download_array<float>(scores);
  const Slots<const uint8_t> stays = drawing.stays(0);
  DrawnEvent event{.chooses = static_cast<bool>(stays)};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = lengths[static_cast<size_t>(row)] - kInterval;
    event.ties.push_back(slice(network, row * kPitch, count));
    event.scores.push_back(slice(drawn, row * kPitch, count));
    if (!event.chooses) continue;
    event.stays.emplace_back(static_cast<size_t>(count));
    backend.download(event.stays.back().data(), stays.row(row), event.stays.back().size());
  }
  return event;
}

DrawnEvent draw(Backend& backend, EvictionSampling sampling, const std::vector<int32_t>& lengths) {
  EvictionDraw drawing = begun(backend, sampling, lengths.size());
  return draw(backend, drawing, lengths);
}

KV_OVER_BACKENDS(Runs, EvictionDrawOn);

// Of 18 entries beside the newest 12 six leave, and the twelve worst may; of 24 that are 2d themselves, all.
TEST_P(EvictionDrawOn, Top2lDrawsAmongTheWorst) {
  KV_BACKEND_OR_SKIP(backend);
  const DrawnEvent event = draw(*backend, EvictionSampling::kTop2d, {30, 36});
  EXPECT_EQ(event.spared(0), 6);
  EXPECT_EQ(event.spared(1), 0);
  std::vector<float> worst = event.ties[0];
  std::ranges::sort(worst);
  for (size_t slot = 0; slot < event.ties[0].size(); ++slot) {
    EXPECT_EQ(event.scores[0][slot] == kStays, event.ties[0][slot] > worst[11]) << slot;
  }
}

// A prompt beyond the budget leaves 36 of 48 at once: twice as many are not there, so all are candidates, as of
// multinomial, with the same draws.
TEST_P(EvictionDrawOn, Top2lIsMultinomialWhereTwiceAsManyAreNotThere) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {60, 37};
  const DrawnEvent top2l = draw(*backend, EvictionSampling::kTop2d, lengths);
  const DrawnEvent multinomial = draw(*backend, EvictionSampling::kMultinomial, lengths);
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    EXPECT_EQ(top2l.spared(sequence), 0);
    EXPECT_EQ(top2l.scores[sequence], multinomial.scores[sequence]);
    EXPECT_EQ(top2l.stays[sequence], std::vector<uint8_t>(top2l.ties[sequence].size(), 0));
  }
  EXPECT_FALSE(multinomial.chooses);
}

// How many may leave is uploaded where it has changed since the event before, which was of another layer or another
// time.
TEST_P(EvictionDrawOn, EachEventHasItsOwnCandidates) {
  KV_BACKEND_OR_SKIP(backend);
  EvictionDraw drawing = begun(*backend, EvictionSampling::kTop2d, 2);
  for (const std::vector<int32_t>& lengths :
       std::vector<std::vector<int32_t>>{{30, 36}, {30, 36}, {36, 30}, {30, 36}}) {
    const DrawnEvent event = draw(*backend, drawing, lengths);
    const DrawnEvent alone = draw(*backend, EvictionSampling::kTop2d, lengths);
    EXPECT_EQ(event.stays, alone.stays);
    EXPECT_EQ(event.scores, alone.scores);
  }
}

// A head that an allocation has left within the budget: top2l spares every entry of it, multinomial knows no d.
TEST_P(EvictionDrawOn, Top2lSparesAllWhereNoneHasToLeave) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<int32_t> lengths = {kBudget, kBudget - 4, kInterval + 1};
  const DrawnEvent top2l = draw(*backend, EvictionSampling::kTop2d, lengths);
  const DrawnEvent multinomial = draw(*backend, EvictionSampling::kMultinomial, lengths);
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    EXPECT_EQ(top2l.spared(sequence), lengths[sequence] - kInterval);
    EXPECT_EQ(top2l.stays[sequence], std::vector<uint8_t>(top2l.ties[sequence].size(), 1));
    EXPECT_EQ(multinomial.spared(sequence), 0);
  }
}

}  // namespace
}  // namespace kv::ref
