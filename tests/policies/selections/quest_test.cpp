// Quest in the loop: each step reads the pages that its bounds choose, exactly those, and bounds stay true.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "kernels/error.h"
#include "sim/cache/to_host.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "tests/ref/attend.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/initial_weights.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {
namespace {

constexpr int kLayers = 3, kQHeads = 4, kHeads = 2, kGroup = 2, kDim = 8;
constexpr int kBudget = 48, kInterval = 16, kWindow = 20;
const std::vector<int32_t> kLengths = {150, 97}, kPrompts = {70, 97 - 40};

struct Mode {
  int pages = 0;
  bool official = false;
  int newest = 1;  // slots whose pages are always read
  SlotChoice choice() const {
    return {"quest", {{"pages", std::to_string(pages), ""}, {"mode", official ? "official" : "wg-kv", ""}}};
  }
};

// One row of the CPU's cache, as the host reads it.
struct HostRow {
  HostRow(const LayerView& view, int64_t in) : cache(view.cache), row(in), length(view.lengths[row]) {}
  int64_t place(int64_t slot) const {
    return int64_t{cache.page_table[row * cache.max_pages + slot / kPageTokens]} * kPageTokens + slot % kPageTokens;
  }
  const float* key(int64_t slot) const { return cache.keys.as<float>() + place(slot) * kDim; }
  const float* value(int64_t slot) const { return cache.values.as<float>() + place(slot) * kDim; }
  int32_t position(int64_t slot) const { return cache.positions[place(slot)]; }
  bool is_seen_from(int64_t slot, int32_t at) const { return !cache.expires || cache.expires[place(slot)] > at; }
  int64_t end_of(int64_t page) const { return std::min(length, (page + 1) * kPageTokens); }
  int64_t pages() const { return (length + kPageTokens - 1) / kPageTokens; }

  const PagedView& cache;
  int64_t row, length;
};

// The most that q · key can be of the page's keys, from these themselves.
double bound(const HostRow& row, int64_t page, const float* query) {
  double sum = 0;
  for (int d = 0; d < kDim; ++d) {
    double most = -1e30;
    for (int64_t slot = page * kPageTokens; slot < row.end_of(page); ++slot) {
      most = std::max(most, double{query[d]} * row.key(slot)[d]);
    }
    sum += most;
  }
  return sum;
}

// Slots of the pages that queries [count, kDim] of one step read together.
std::vector<int64_t> chosen_slots(const HostRow& row, const Mode& mode, const float* queries, int count) {
  const int64_t newest = std::max<int64_t>(0, row.length - mode.newest) / kPageTokens;
  std::vector<std::pair<double, int64_t>> bounds;
  for (int64_t page = 0; page < newest; ++page) {
    double largest = -1e30;
    for (int q = 0; q < count; ++q) largest = std::max(largest, bound(row, page, queries + q * kDim));
    bounds.emplace_back(largest, page);
  }
  std::sort(bounds.rbegin(), bounds.rend());
  std::vector<int64_t> pages;
  for (int64_t page = newest; page < row.pages(); ++page) pages.push_back(page);
  for (size_t i = 0; i < bounds.size() && std::ssize(pages) < mode.pages; ++i) pages.push_back(bounds[i].second);
  std::vector<int64_t> slots;
  for (const int64_t page : pages) {
    for (int64_t slot = page * kPageTokens; slot < row.end_of(page); ++slot) slots.push_back(slot);
  }
  return slots;
}

// Looks at every layer of every block whether bounds are those of the keys that are there, and outputs those of a plain
// attention, in double precision, to what the step may read; without a mode to all of it.
class Watcher final : public Observer {
 public:
  Watcher(const TinySource& source, std::optional<Mode> mode) : source_(source), mode_(mode) {}

  void attended(const LayerView& view, ConstRef outputs) override {
    const int64_t width = int64_t{kQHeads} * kDim;
    int64_t tokens = 0;
    for (const Segment& segment : view.segments) tokens += segment.count;
    const std::vector<float> all = download_activations(view.backend, outputs, tokens * width);
    for (const Segment& segment : view.segments) {
      for (int32_t i = 0; i < segment.count; ++i) {
        const auto from = all.begin() + (segment.first_token + i) * width;
        outputs_[{segment.sequence, view.layer, segment.first_position + i}] = {from, from + width};
        for (int head = 0; head < kQHeads; ++head) check_head(view, segment, i, head, &*from + int64_t{head} * kDim);
      }
      for (int head = 0; head < kHeads; ++head) check_row(view, segment.sequence, head);
    }
  }

  std::map<std::tuple<int, int, int>, std::vector<float>> outputs_;  // by (sequence, layer, position)
  std::vector<int64_t> pairs_ = {0, 0};                              // [sequences] of query heads
  int64_t passed_over_ = 0;  // entries that a query might have seen, of pages that it did not read

 private:
  bool selects(const LayerView& view, const Segment& segment) const {
    return mode_ && segment.first_position >= kPrompts[static_cast<size_t>(segment.sequence)] &&
           !(mode_->official && view.layer < 2);
  }

  void check_head(const LayerView& view, const Segment& segment, int i, int head, const float* got) {
    const HostRow row(view, int64_t{segment.sequence} * kHeads + head / kGroup);
    const float* queries = view.projections.queries.as<float>() + int64_t{segment.first_token + i} * kQHeads * kDim;
    const float* query = queries + int64_t{head} * kDim;
    std::vector<int64_t> slots(static_cast<size_t>(row.length - segment.count + i + 1));
    std::iota(slots.begin(), slots.end(), 0);
    const auto there = static_cast<int64_t>(slots.size());
    if (selects(view, segment)) {
      ASSERT_EQ(segment.count, 1);
      slots = mode_->official ? chosen_slots(row, *mode_, query, 1)
                              : chosen_slots(row, *mode_, queries + int64_t{head / kGroup * kGroup} * kDim, kGroup);
      passed_over_ += there - std::ssize(slots);
    }
    std::vector<float> keys, values;
    for (const int64_t slot : slots) {
      if (!row.is_seen_from(slot, segment.first_position + i)) continue;
      keys.insert(keys.end(), row.key(slot), row.key(slot) + kDim);
      values.insert(values.end(), row.value(slot), row.value(slot) + kDim);
    }
    const int64_t seen = std::ssize(keys) / kDim;
    pairs_[static_cast<size_t>(segment.sequence)] += seen;
    const std::vector<double> want =
        attend_row(query, keys.data(), values.data(), seen, kDim, 1 / std::sqrt(8.0)).output;
    // As in admission_test.cpp.
    for (int d = 0; d < kDim; ++d) {
      ASSERT_NEAR(got[d], want[d], 1e-4) << "layer " << view.layer << ", token " << segment.first_position + i;
    }
  }

  // Every slot holds the key of its position, and every page's bounds are theirs to the bit.
  void check_row(const LayerView& view, int sequence, int head) const {
    const HostRow row(view, int64_t{sequence} * kHeads + head);
    const std::vector<float>& keys = source_.sample(sequence).keys[static_cast<size_t>(view.layer)];
    for (int64_t page = 0; page < row.pages(); ++page) {
      std::vector<float> want(2 * kDim);
      for (int d = 0; d < kDim; ++d) {
        for (int64_t slot = page * kPageTokens; slot < row.end_of(page); ++slot) {
          const float key = keys[static_cast<size_t>((int64_t{row.position(slot)} * kHeads + head) * kDim + d)];
          ASSERT_EQ(row.key(slot)[d], key);
          want[d] = slot == page * kPageTokens ? key : std::min(want[d], key);
          want[kDim + d] = slot == page * kPageTokens ? key : std::max(want[kDim + d], key);
        }
      }
      if (!mode_) continue;
      const float* bounds = row.cache.bounds.as<float>() + row.place(page * kPageTokens) / kPageTokens * 2 * kDim;
      ASSERT_EQ(std::vector(bounds, bounds + 2 * kDim), want) << "layer " << view.layer << ", page " << page;
    }
  }

  const TinySource& source_;
  std::optional<Mode> mode_;
};

// What every row holds after every step.
class Residents final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef) override {
    for (int64_t of = 0; of < view.rows(); ++of) {
      const HostRow row(view, of);
      for (int64_t slot = 0; slot < row.length; ++slot) positions_.push_back(row.position(slot));
      positions_.push_back(-1);
    }
  }

  std::vector<int32_t> positions_;
};

struct Bench {
  Bench() {
    source = std::make_unique<TinySource>(
        *backend, info, std::vector{random_sample(info, kLengths[0], 1), random_sample(info, kLengths[1], 2)});
    for (const int32_t length : kLengths) ids.emplace_back(static_cast<size_t>(length), 0);
    ids[1][0] = 1;
    backend->check_every_op(true);
  }

  ReplayResult run(Policy& policy, const Schedule& schedule, Observer& watcher) {
    const std::span<const int32_t> sequences[] = {ids[0], ids[1]};
    Observer* const observers[] = {&watcher};
    std::optional<Baseline> baseline;
    if (policy.oracle()) {
      BaselineNeeds needs = policy.future_needs();
      needs.statistics_block = kInterval;
      baseline = compute_baseline(*backend, *source, sequences, needs);
    }
    return replay({.backend = *backend,
                   .source = *source,
                   .policy = policy,
                   .sequences = sequences,
                   .schedule = schedule,
                   .budget = kBudget,
                   .interval = kInterval,
                   .baseline = baseline ? &*baseline : nullptr,
                   .observers = observers});
  }

  std::unique_ptr<Backend> backend = make_backend("cpu");
  SourceInfo info = tiny_info(kLayers, kQHeads, kHeads, kDim);
  std::unique_ptr<TinySource> source;
  std::vector<std::vector<int32_t>> ids;
};

Schedule steps_of(const Policy& policy) {
  return token_by_token(policy.scorer ? decode_schedule(kLengths, kBudget, kInterval) : full_schedule(kLengths, 64),
                        kPrompts);
}

const SlotChoice kNoAdmission{"none"}, kLocal{"local", {{"sinks", "64", ""}, {"window", std::to_string(kWindow), ""}}};

TEST(Quest, StepsAttendToTheChosenPagesAlone) {
  for (const bool official : {false, true}) {
    for (const int pages : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << pages << " pages, " << (official ? "official" : "wg-kv"));
      const Mode mode{pages, official};
      Bench bench;
      Policy policy = make_policy("full", {}, {.selection = mode.choice()});
      Watcher watcher(*bench.source, mode);
      const ReplayResult result = bench.run(policy, steps_of(policy), watcher);
      EXPECT_GT(watcher.passed_over_, 0);
      for (int s = 0; s < 2; ++s) EXPECT_EQ(result.sequences[s].attended_pairs, watcher.pairs_[s] / kGroup);
    }
  }
}

// Bounds stay true where entries are evicted and where they expire, and what is read then is chosen of what is there.
TEST(Quest, GoesWithEveryScorerAndWithAdmission) {
  int64_t evicting = 0;
  for (const PolicyEntry* entry : policies()) {
    for (const bool official : {false, true}) {
      for (const SlotChoice& admission : {kNoAdmission, kLocal}) {
        SCOPED_TRACE(::testing::Message() << entry->name << ", admission " << admission.name << ", mode " << official);
        const Mode mode{admission.name == "none" ? 2 : 3, official, admission.name == "none" ? 1 : kWindow + 16};
        Bench bench;
        Policy policy = make_policy(entry->name, {}, {.admission = admission, .selection = mode.choice()});
        if (policy.scorer && policy.scorer->interval(kInterval) != kInterval) continue;  // events at other times
        use_initial_weights(policy, bench.info);
        Watcher watcher(*bench.source, mode);
        const ReplayResult result = bench.run(policy, steps_of(policy), watcher);
        EXPECT_EQ(watcher.outputs_.size(), static_cast<size_t>(kLayers * (kLengths[0] + kLengths[1])));
        for (int s = 0; s < 2; ++s) EXPECT_EQ(result.sequences[s].attended_pairs, watcher.pairs_[s] / kGroup);
        EXPECT_GT(watcher.passed_over_, 0);
        evicting += result.sequences[0].events;
      }
    }
  }
  EXPECT_GT(evicting, 0);
}

// To the bit, whatever else a policy does.
TEST(Quest, OfAllPagesIsTheSelectionOfAll) {
  for (const char* name : {"full", "snapkv"}) {
    for (const SlotChoice& admission : {kNoAdmission, kLocal}) {
      for (const bool official : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name << ", admission " << admission.name << ", mode " << official);
        const Mode mode{10, official, admission.name == "none" ? 1 : kWindow + 16};
        Bench bench;
        Policy without = make_policy(name, {}, {.admission = admission});
        Policy with = make_policy(name, {}, {.admission = admission, .selection = mode.choice()});
        Watcher first(*bench.source, std::nullopt), second(*bench.source, mode);
        const ReplayResult all = bench.run(without, steps_of(without), first);
        const ReplayResult quest = bench.run(with, steps_of(with), second);
        EXPECT_EQ(first.outputs_, second.outputs_);
        for (size_t s = 0; s < 2; ++s) {
          EXPECT_EQ(first.pairs_[s], second.pairs_[s]);
          EXPECT_EQ(quest.sequences[s].attended_pairs, first.pairs_[s] / kGroup);
          EXPECT_EQ(quest.sequences[s].end_entries, all.sequences[s].end_entries);
        }
        // The bounds are the only cost: a 16th of keys and values.
        EXPECT_EQ(quest.peak_kv_bytes, all.peak_kv_bytes);
        EXPECT_GT(quest.peak_column_bytes, all.peak_column_bytes);
      }
    }
  }
}

// By which keys are there after every step, since here nothing depends on what was read: a scorer judges by all that is
// there, whether it keeps queries for the event or sums what each step attends to.
TEST(Quest, ChangesNothingThatAScorerDecides) {
  struct Judge {
    std::string name;
    std::vector<GivenParam> options;
  };
  std::vector<Judge> judges = {{"foresight-kv", {{"sums", "kept", ""}}}};
  for (const PolicyEntry* entry : policies()) judges.push_back({entry->name, {}});
  int summing = 0;
  int64_t events = 0;
  for (const auto& [name, options] : judges) {
    for (const SlotChoice& admission : {kNoAdmission, kLocal}) {
      SCOPED_TRACE(::testing::Message() << name << ", admission " << admission.name);
      Bench bench;
      Policy without = make_policy(name, options, {.admission = admission});
      Policy with = make_policy(name, options, {.admission = admission, .selection = Mode{1, false}.choice()});
      if (without.scorer && without.scorer->interval(kInterval) != kInterval) continue;  // events at other times
      use_initial_weights(without, bench.info);
      use_initial_weights(with, bench.info);
      Residents all, chosen;
      const ReplayResult whole = bench.run(without, steps_of(without), all);
      const ReplayResult part = bench.run(with, steps_of(with), chosen);
      EXPECT_EQ(all.positions_, chosen.positions_);
      EXPECT_LT(part.sequences[0].attended_pairs, whole.sequences[0].attended_pairs);
      events += part.sequences[0].events;
      summing += scorer_needs(with).column_sums ? 1 : 0;
    }
  }
  EXPECT_GE(summing, 8);
  EXPECT_GT(events, 0);
}

TEST(Quest, RefusesWhatItsOptionsCannotBe) {
  const auto refusal = [](const char* key, const char* value) {
    return test::user_error([&] { make_policy("full", {}, {.selection = {"quest", {{key, value, ""}}}}); });
  };
  EXPECT_NE(refusal("pages", "0").find("expected at least 1"), std::string::npos) << refusal("pages", "0");
  EXPECT_EQ(refusal("pages", "2147483647"), "quest: pages = 2147483647: expected at most 16777216");
  EXPECT_EQ(refusal("mode", "wgkv"), "quest: mode = wgkv: expected wg-kv | official");
  EXPECT_NE(refusal("page", "4").find("did you mean 'pages'?"), std::string::npos) << refusal("page", "4");
}

}  // namespace
}  // namespace kv::ref
