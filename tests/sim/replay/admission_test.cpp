// Admission in the loop: what is turned away is seen for its window, exactly, and then leaves the cache.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "sim/replay/replay.h"
#include "tests/ref/attend.h"
#include "tests/support/backends.h"
#include "tests/support/chosen_admission.h"
#include "tests/support/slices.h"
#include "tests/support/tiny_source.h"

namespace kv {
namespace {

constexpr int kWindow = 20, kLayers = 2, kQHeads = 4, kHeads = 2;

// Whom the admission lets stay; by position and head, as WG-KV's gates do.
bool stays(int32_t position, int head) { return (position * 7 + head * 3) % 5 == 0; }

Policy chosen(std::unique_ptr<Scorer> scorer = nullptr) {
  Policy policy = policy_of(scorer ? "by-position" : "full", std::move(scorer));
  policy.admission = std::make_unique<ref::ChosenAdmission>(
      kWindow, [](int32_t position, int /*layer*/, int head) { return stays(position, head); });
  return policy;
}

// Outputs by layer and position of each sequence, and how many entries its rows held.
class Watcher final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef outputs) override {
    const int64_t width = int64_t{view.q_heads} * view.head_dim;
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    const std::vector<float> all = ref::download_activations(view.backend, outputs, tokens * width);
    for (const Segment& segment : view.segments) {
      for (int32_t i = 0; i < segment.count; ++i) {
        const auto from = all.begin() + (segment.first_token + i) * width;
        outputs_[{segment.sequence, view.layer, segment.first_position + i}] = {from, from + width};
      }
    }
    for (const int32_t length : view.lengths) longest_ = std::max(longest_, length);
  }
  std::map<std::tuple<int, int, int>, std::vector<float>> outputs_;
  int32_t longest_ = 0;
};

// Two sequences of different lengths over recorded tensors.
struct Recorded {
  Recorded(Backend& on, int head_dim, std::vector<int32_t> of_lengths)
      : backend(on), dim(head_dim), lengths(std::move(of_lengths)) {
    info = ref::tiny_info(kLayers, kQHeads, kHeads, dim);
    source.emplace(backend, info,
                   std::vector{ref::random_sample(info, lengths[0], 1), ref::random_sample(info, lengths[1], 2)});
    for (const int32_t length : lengths) ids.emplace_back(static_cast<size_t>(length), 0);
    ids[1][0] = 1;
  }
  ReplayResult run(Policy& policy, const Schedule& schedule, Watcher& watcher) {
    const std::span<const int32_t> sequences[] = {ids[0], ids[1]};
    Observer* const observers[] = {&watcher};
    return replay({.backend = backend,
                   .source = *source,
                   .policy = policy,
                   .sequences = sequences,
                   .schedule = schedule,
                   .observers = observers});
  }
  // Dense attention in double precision, but for what the mask hides.
  ref::AttendedRow expected(int sequence, int layer, int position, int q_head) const {
    const int head = q_head / (kQHeads / kHeads);
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    std::vector<float> keys, values;
    const ref::TinySample& sample = source->sample(sequence);
    for (int j = 0; j <= position; ++j) {
      if (!stays(j, head) && position - j >= kWindow) continue;
      const auto at = static_cast<int64_t>(j * kHeads + head) * dim;
      keys.insert(keys.end(), sample.keys[layer].begin() + at, sample.keys[layer].begin() + at + dim);
      values.insert(values.end(), sample.values[layer].begin() + at, sample.values[layer].begin() + at + dim);
    }
    const float* query = sample.queries[layer].data() + static_cast<int64_t>(position * kQHeads + q_head) * dim;
    return ref::attend_row(query, keys.data(), values.data(), std::ssize(keys) / dim, dim, scale);
  }
  int64_t seen_pairs(int sequence) const {
    int64_t pairs = 0;
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < lengths[sequence]; ++i) {
        for (int j = 0; j <= i; ++j) pairs += stays(j, head) || i - j < kWindow;
      }
    }
    return pairs * kLayers;
  }
  int64_t left(int sequence) const {
    int64_t entries = 0;
    for (int head = 0; head < kHeads; ++head) {
      for (int j = 0; j < lengths[sequence]; ++j) entries += stays(j, head) || j + kWindow >= lengths[sequence];
    }
    return entries * kLayers;
  }
  Backend& backend;
  const int dim;
  const std::vector<int32_t> lengths;
  SourceInfo info;
  std::optional<ref::TinySource> source;
  std::vector<std::vector<int32_t>> ids;
};

KV_OVER_BACKENDS(Runs, AdmissionLoop);

struct Case {
  int dim;
  std::vector<int32_t> lengths;
  std::vector<int> blocks;
};

void check(const Recorded& recorded, const Watcher& watcher) {
  for (const auto& [place, got] : watcher.outputs_) {
    const auto& [sequence, layer, position] = place;
    ref::Attended want;
    for (int q = 0; q < kQHeads; ++q) {
      const ref::AttendedRow row = recorded.expected(sequence, layer, position, q);
      want.output.insert(want.output.end(), row.output.begin(), row.output.end());
      want.spreads.push_back(row.spread);
      want.largest_logit_terms = std::max(want.largest_logit_terms, row.logit_terms);
      want.largest_value = std::max(want.largest_value, row.largest_value);
    }
    ASSERT_TRUE(ref::outputs_are_close(recorded.backend, got, want, recorded.dim, position + 1))
        << "position " << position;
  }
}

// Blocks of 1 (decode, across sweeps), of less than a window, of more, and all at once; heads that kernels know by
// name.
TEST_P(AdmissionLoop, EveryQuerySeesItsWindowAndWhatStaysHoweverTokensLieInBlocks) {
  KV_BACKEND_OR_SKIP(backend);
  for (const Case& of : {Case{16, {150, 97}, {1, 7, 16, 64, 200}}, Case{64, {600, 97}, {64, 512, 600}},
                         Case{128, {300, 210}, {1}}, Case{128, {600, 97}, {64, 512, 600}}}) {
    for (const int block : of.blocks) {
      SCOPED_TRACE(::testing::Message() << "head dimension " << of.dim << ", block " << block);
      Recorded recorded(*backend, of.dim, of.lengths);
      Policy policy = chosen();
      Watcher watcher;
      const ReplayResult result = recorded.run(policy, full_schedule(recorded.lengths, block), watcher);
      EXPECT_EQ(std::ssize(watcher.outputs_), kLayers * (of.lengths[0] + of.lengths[1]));
      check(recorded, watcher);
      if (HasFatalFailure()) return;
      for (int sequence = 0; sequence < 2; ++sequence) {
        EXPECT_EQ(result.sequences[sequence].attended_pairs, recorded.seen_pairs(sequence));
        EXPECT_EQ(result.sequences[sequence].end_entries, recorded.left(sequence));
      }
      // Of a head that lets a fifth stay, with its window and what waits for the sweep.
      EXPECT_LE(watcher.longest_, of.lengths[0] / 5 + 1 + kWindow + std::max(block, 16) + 15);
    }
  }
}

}  // namespace
}  // namespace kv
