#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/metrics/metric.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/tiny_source.h"

namespace kv::test {

constexpr double kRounded = 1e-6;  // a few roundings of f32 at magnitude 1

// Keeps what a function of (layer, row, position) ranks highest. Reads host memory: for the CPU backend.
class ByPosition final : public Scorer {
 public:
  using Score = std::function<float(int layer, int row, int32_t position)>;
  explicit ByPosition(Score score, Protection protection = {}) : score_(std::move(score)), protection_(protection) {}
  Protection protects(int, int) const override { return protection_; }
  void score(const LayerView& view, const ScoreOutput& output) override {
    for (int row = 0; row < view.rows(); ++row) {
      for (int32_t slot = 0; slot < view.lengths[static_cast<size_t>(row)]; ++slot) {
        const int64_t page = view.cache.page_table[row * view.cache.max_pages + slot / kPageTokens];
        const int32_t position = view.cache.positions[page * kPageTokens + slot % kPageTokens];
        output.scores.row(row)[slot] = score_(view.layer, row, position);
      }
    }
  }

 private:
  Score score_;
  Protection protection_;
};

// A tiny source with an identity output projection, so that ‖v W_O‖ = ‖v‖.
class WithOutput final : public Source {
 public:
  WithOutput(Backend& backend, SourceInfo info, std::vector<ref::TinySample> samples)
      : tiny_(backend, info, std::move(samples)), info_(std::move(info)) {
    info_.has_output_weight = true;
    std::vector<float> identity(static_cast<size_t>(info_.width * info_.width), 0);
    for (int i = 0; i < info_.width; ++i) identity[static_cast<size_t>(i * (info_.width + 1))] = 1;
    weight_ = ref::upload_activations(backend, identity);
  }
  const SourceInfo& info() const override { return info_; }
  void begin(std::span<const std::span<const int32_t>> sequences) override { tiny_.begin(sequences); }
  void start(const Block& block) override { tiny_.start(block); }
  Projections project(int layer) override { return tiny_.project(layer); }
  void absorb(int layer, ConstRef outputs) override { tiny_.absorb(layer, outputs); }
  void finish(TokenLosses& losses) override { tiny_.finish(losses); }
  ConstRef output_weight(int) const override { return weight_.ref(); }

 private:
  ref::TinySource tiny_;
  SourceInfo info_;
  Tensor weight_;
};

// Shows an observer another choice than the policy's: what an allocation would keep of each row at the case's only
// event. The cache itself loses what the policy said.
class Recut final : public Observer {
 public:
  using Keep = std::function<bool(int row, int32_t slot)>;
  Recut(Observer& shown, Keep keep) : shown_(shown), keep_(std::move(keep)) {}
  void attended(const LayerView& view, ConstRef outputs) override { shown_.attended(view, outputs); }
  void evicting(const EvictionView& view) override {
    std::vector<uint8_t> keep(static_cast<size_t>(view.keep.elements()), 0);
    std::vector<int32_t> kept(static_cast<size_t>(view.layer.rows()), 0);
    for (int row = 0; row < view.layer.rows(); ++row) {
      for (int32_t slot = 0; slot < view.layer.lengths[static_cast<size_t>(row)]; ++slot) {
        if (!keep_(row, slot)) continue;
        keep[static_cast<size_t>(row * view.keep.pitch + slot)] = 1;
        ++kept[static_cast<size_t>(row)];
      }
    }
    EvictionView other = view;
    other.keep.data = keep.data();
    other.kept = kept;
    shown_.evicting(other);
  }

 private:
  Observer& shown_;
  Keep keep_;
};

struct ReplayedCase {
  Source& source;
  Backend& backend;
  std::vector<Sample> samples;
  Schedule schedule;
  bool decode_time = true;
  int block = 1;  // of the baseline's statistics
  std::unique_ptr<Scorer> scorer = nullptr;
  std::vector<Observer*> others = {};
  Recut::Keep recut = {};  // what the metric sees kept instead of the policy's choice
  SlotChoice allocation{"uniform"};
  std::unique_ptr<Admission> admission = nullptr;
};

// Schedule positions of the first event, as the harness fills them in.
inline std::vector<int32_t> first_events(const Schedule& schedule, size_t sequences) {
  std::vector<int32_t> first(sequences, -1), seen(sequences, 0);
  for (const Step& step : schedule) {
    for (size_t s = 0; s < sequences; ++s) {
      seen[s] += step.counts[s];
      if (step.keep[s] >= 0 && step.keep[s] < seen[s] && first[s] < 0) first[s] = seen[s];
    }
  }
  return first;
}

// Replays one case under one metric and returns its rows and those of the allocation.
inline std::vector<Measured> measure(ReplayedCase& replayed, const std::string& metric,
                                     std::vector<GivenParam> options = {}) {
  const auto watched = make_metric(metric, std::move(options));
  std::vector<std::span<const int32_t>> sequences;
  std::vector<const Sample*> samples;
  for (const Sample& sample : replayed.samples) {
    sequences.push_back(sample.ids);
    samples.push_back(&sample);
  }
  const char* const name = replayed.scorer ? "by-position" : "full";
  Policy policy = policy_of(name, std::move(replayed.scorer));
  if (replayed.admission) policy.admission = std::move(replayed.admission);
  policy.allocation_name = replayed.allocation.name;
  policy.allocation = make_allocation(replayed.allocation.name, replayed.allocation.options);
  BaselineNeeds needs = watched->observer_needs().baseline;
  needs.merge(policy.future_needs());
  if (needs.block_max || needs.block_sums) needs.statistics_block = replayed.block;
  const Baseline baseline = compute_baseline(replayed.backend, replayed.source, sequences, needs);
  const auto first = first_events(replayed.schedule, samples.size());
  std::vector<int32_t> numbers(samples.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  watched->begin_case({.batch = {.backend = &replayed.backend,
                                 .source = &replayed.source.info(),
                                 .sequences = static_cast<int>(samples.size()),
                                 .sample_numbers = numbers},
                       .samples = samples,
                       .baseline = &baseline,
                       .schedule = &replayed.schedule,
                       .decode_time = replayed.decode_time,
                       .first_event = first,
                       .decode = {}});
  std::vector<Observer*> observers = replayed.others;
  std::optional<Recut> recut;
  if (replayed.recut) recut.emplace(*watched, replayed.recut);
  observers.push_back(recut ? static_cast<Observer*>(&*recut) : watched.get());
  const ReplayResult result = replay({.backend = replayed.backend,
                                      .source = replayed.source,
                                      .policy = policy,
                                      .sequences = sequences,
                                      .schedule = replayed.schedule,
                                      .baseline = policy.oracle() ? &baseline : nullptr,
                                      .observers = observers});
  std::vector<Measured> rows;
  watched->report(result, rows);
  policy.allocation->report(rows);
  return rows;
}

inline const Measured* find(const std::vector<Measured>& rows, const std::string& metric, std::optional<double> x = {},
                            int sample = 0, std::optional<int> layer = {}, std::optional<int> head = {}) {
  for (const Measured& row : rows) {
    if (row.metric == metric && row.sample == sample && row.x == x && row.layer == layer && row.head == head)
      return &row;
  }
  return nullptr;
}

// The value of the one row with this name; fails the test and gives NaN where it is missing or skipped.
inline double value(const std::vector<Measured>& rows, const std::string& metric, std::optional<double> x = {},
                    int sample = 0) {
  const Measured* row = find(rows, metric, x, sample);
  EXPECT_TRUE(row && row->skipped.empty()) << metric << (row ? ": " + row->skipped : " is missing");
  return row && row->skipped.empty() ? row->value : std::numeric_limits<double>::quiet_NaN();
}

inline std::string skipped(const std::vector<Measured>& rows, const std::string& metric) {
  const Measured* row = find(rows, metric);
  return row ? row->skipped : "no row";
}

// A sample for the tiny sources: the first id is the number of the tensors.
inline Sample tiny_sample(int tokens, int number = 0) {
  Sample sample{.name = "tiny", .ids = std::vector<int32_t>(static_cast<size_t>(tokens), 0), .labels = {}, .links = {}};
  sample.ids[0] = number;
  sample.labels.assign(sample.ids.size(), Label::kContext);
  sample.context_tokens = tokens;
  return sample;
}

}  // namespace kv::test
