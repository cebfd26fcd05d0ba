// What holds of every registered selection with every policy: a new one joins by being registered.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "sim/cache/to_host.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/initial_weights.h"
#include "tests/support/small_slots.h"
#include "tests/support/tiny_source.h"

namespace kv::ref {
namespace {

constexpr int kBudget = 48, kInterval = 16;
const std::vector<int32_t> kLengths = {150, 97, 83}, kPrompts = {70, 57, 80};

// Hands on to a selection, and looks at the view that it leaves.
class Spy final : public Selection {
 public:
  explicit Spy(std::unique_ptr<Selection> inner) : inner_(std::move(inner)) {}
  Needs needs() const override { return inner_->needs(); }
  bool selects() const override { return inner_->selects(); }
  void begin(const BatchShape& shape) override { inner_->begin(shape); }
  void select(const LayerView& view, PagedView& read) override {
    inner_->select(view, read);
    ASSERT_TRUE(read.rows == view.rows() || read.rows == view.rows() * view.group());
    const int64_t heads = read.rows / view.sequences, shared = read.rows / view.rows();
    ASSERT_EQ(read.kv_heads, heads);
    ASSERT_EQ(read.sharing_rows, shared);
    for (int64_t row = 0; row < read.rows; ++row) check_row(view.cache, row / shared, read, row);
    calls_ += 1;
  }

  int calls_ = 0;
  int64_t left_out_ = 0;  // pages

 private:
  // The row's pages ascend in that of the cache; the last, and those of what may expire, are among them.
  void check_row(const PagedView& cache, int64_t of, const PagedView& read, int64_t row) {
    const int64_t length = cache.lengths[of], pages = (length + kPageTokens - 1) / kPageTokens;
    const int32_t* all = cache.page_table + of * cache.max_pages;
    const int64_t chosen = (int64_t{read.lengths[row]} + kPageTokens - 1) / kPageTokens;
    const int64_t must = std::max<int64_t>(0, length - std::max<int64_t>(1, cache.expiring)) / kPageTokens;
    ASSERT_LE(chosen, pages);
    ASSERT_GE(chosen, pages - must);
    int64_t next = 0;
    for (int64_t i = 0; i < chosen; ++i) {
      const int32_t* found = std::find(all + next, all + pages, read.page_table[row * read.max_pages + i]);
      ASSERT_NE(found, all + pages) << "entry " << i << " of row " << row;
      next = found - all + 1;
      const int64_t of_newest = i - (chosen - (pages - must));
      ASSERT_TRUE(of_newest < 0 || next - 1 == must + of_newest) << "entry " << i << " of row " << row;
    }
    ASSERT_EQ(read.lengths[row], chosen * kPageTokens - (pages * kPageTokens - length)) << "whole pages, but the last";
    left_out_ += pages - chosen;
  }

  std::unique_ptr<Selection> inner_;
};

// By (sample, layer, position).
class Outputs final : public Observer {
 public:
  explicit Outputs(std::vector<int32_t> samples) : samples_(std::move(samples)) {}
  void attended(const LayerView& view, ConstRef outputs) override {
    const int64_t width = int64_t{view.q_heads} * view.head_dim;
    for (const Segment& segment : view.segments) {
      const std::vector<float> all =
          download_activations(view.backend, outputs, (segment.first_token + segment.count) * width);
      for (int32_t i = 0; i < segment.count; ++i) {
        const auto from = all.begin() + (segment.first_token + i) * width;
        of_[{samples_[static_cast<size_t>(segment.sequence)], view.layer, segment.first_position + i}] = {from,
                                                                                                          from + width};
      }
    }
  }
  std::map<std::tuple<int, int, int>, std::vector<float>> of_;

 private:
  std::vector<int32_t> samples_;
};

class EverySelection : public testing::TestWithParam<std::string> {
 protected:
  EverySelection() {
    backend_->check_every_op(true);
    std::vector<TinySample> samples;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      samples.push_back(random_sample(info_, kLengths[s], static_cast<uint32_t>(s) + 1));
    }
    source_ = std::make_unique<TinySource>(*backend_, info_, std::move(samples));
  }

  SlotChoice selection() const { return small_selection(GetParam()); }

  Policy policy(const std::string& name, const std::string& admission) const {
    SlotChoices slots{.selection = selection()};
    slots.admission = {admission};
    if (admission == "local") slots.admission.options = {{"sinks", "64", ""}, {"window", "33", ""}};
    Policy policy = make_policy(name, {}, slots);
    use_initial_weights(policy, info_);
    return policy;
  }

  static bool may_stand_beside(const std::string& name) {
    const Policy policy = make_policy(name, {});
    return !policy.scorer || policy.scorer->interval(kInterval) == kInterval;
  }

  // Where `spy` is null the selection stands alone.
  ReplayResult run(Policy& policy, const std::vector<int32_t>& samples, Observer& observer, Spy** spy = nullptr) {
    if (spy) {
      auto made = std::make_unique<Spy>(std::move(policy.selection));
      *spy = made.get();
      policy.selection = std::move(made);
    }
    std::vector<int32_t> lengths, prompts;
    std::vector<std::vector<int32_t>> ids;
    for (const int32_t sample : samples) {
      lengths.push_back(kLengths[static_cast<size_t>(sample)]);
      prompts.push_back(kPrompts[static_cast<size_t>(sample)]);
      ids.emplace_back(static_cast<size_t>(lengths.back()), sample);
    }
    const std::vector<std::span<const int32_t>> sequences(ids.begin(), ids.end());
    std::optional<Baseline> baseline;
    if (policy.oracle()) {
      BaselineNeeds needs = policy.future_needs();
      needs.merge({.statistics_block = kInterval});
      baseline = compute_baseline(*backend_, *source_, sequences, needs);
    }
    Observer* const observers[] = {&observer};
    const Schedule blocks = policy.scorer ? decode_schedule(lengths, kBudget, kInterval) : full_schedule(lengths, 64);
    return replay({.backend = *backend_,
                   .source = *source_,
                   .policy = policy,
                   .sequences = sequences,
                   .schedule = token_by_token(blocks, prompts),
                   .budget = kBudget,
                   .interval = kInterval,
                   .sample_numbers = samples,
                   .baseline = baseline ? &*baseline : nullptr,
                   .observers = observers});
  }

  SourceInfo info_ = tiny_info(3, 4, 2, 8);
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  std::unique_ptr<TinySource> source_;
};

TEST_P(EverySelection, ReadsPagesOfTheRowInOrderAndThoseThatMustBeRead) {
  int64_t left_out = 0;
  for (const PolicyEntry* entry : policies()) {
    if (!may_stand_beside(entry->name)) continue;
    for (const std::string admission : {"none", "local"}) {
      SCOPED_TRACE(entry->name + ", admission " + admission);
      Policy with = policy(entry->name, admission);
      Outputs outputs({0, 1, 2});
      Spy* spy = nullptr;
      run(with, {0, 1, 2}, outputs, &spy);
      // The longest run of steps is the first sequence's; others have theirs at the same time or not.
      EXPECT_GE(spy->calls_, 3 * (kLengths[0] - kPrompts[0]));
      left_out += spy->left_out_;
    }
  }
  EXPECT_GT(left_out, 0);
}

// Where entries expire, too: sweeps move what lies in pages, at times that are the sequence's own.
TEST_P(EverySelection, ReadsAloneWhatItReadsTogether) {
  for (const PolicyEntry* entry : policies()) {
    if (!may_stand_beside(entry->name)) continue;
    for (const std::string admission : {"none", "local"}) {
      SCOPED_TRACE(entry->name + ", admission " + admission);
      Outputs together({0, 1, 2});
      Policy of_all = policy(entry->name, admission);
      const ReplayResult all = run(of_all, {0, 1, 2}, together);
      for (const int32_t sample : {0, 1, 2}) {
        Outputs alone({sample});
        Policy of_one = policy(entry->name, admission);
        const ReplayResult one = run(of_one, {sample}, alone);
        EXPECT_EQ(one.sequences[0].attended_pairs, all.sequences[static_cast<size_t>(sample)].attended_pairs);
        for (const auto& [at, output] : alone.of_) ASSERT_EQ(output, together.of_.at(at)) << std::get<2>(at);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Selections, EverySelection, testing::ValuesIn(filling_selections()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace kv::ref
