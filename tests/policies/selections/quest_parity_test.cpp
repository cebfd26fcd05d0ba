// Bounds and pages of Quest's own reference (mit-han-lab/Quest, quest/tests/test_approx_attention.py and
// test_estimate.py as of ade6f7c), a set a query head, and of WG-KV's quest_select_blocks (EMCLab-Sinica/WG-KV,
// src/modeling_layers.py as of 6f98f4a), a set a KV head: tests/data/wg_kv, whose make.py calls them.
//
// Quest's kernels and their tests always read the last page, and so does mode official. Its evaluation code
// (evaluation/quest_attention.py) lets that page compete with the others and reads three at least.
// WG-KV reads its ring of 16 whole, of the promoted entries' blocks the last one where it is partly filled, and others
// by bound, as many as ceil((budget - 16) / 16) in all. In a cache in order of position, from which nothing has
// expired, these are the pages of the newest 16 entries and the best of the others, one more than those blocks, however
// the blocks lie; where the length is a multiple of 16 the last page alone is always read, which is mode wg-kv without
// an admission. Beside an admission more is: the pages of the newest 32, at least. And where the budget has no room
// for a block theirs reads the ring alone, ours its pages whole.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/select_pages.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/released_wg_kv.h"

namespace kv::ref {
namespace {

constexpr int kLayers = ReleasedWgKv::kLayers, kHeads = ReleasedWgKv::kHeads, kQHeads = ReleasedWgKv::kQHeads;
constexpr int kGroup = ReleasedWgKv::kGroup, kDim = ReleasedWgKv::kDim;
constexpr int kScored = ReleasedWgKv::kTokens / kPageTokens - 1;  // pages of a recorded row
constexpr int kNewest = ReleasedWgKv::kWindow;
// Sums of 8 products, none above 40, in f32: 8 roundings of at most 320 each.
constexpr float kScoreTolerance = 8 * 320 * 0x1p-24F;
// Weighted means of values below 5 over at most 64 keys, whose weights err by their logits' roundings alike.
constexpr float kOutputTolerance = 64 * 5 * 0x1p-24F;

// A row's pages, oldest first, of a page table that may leave some out.
std::vector<int> pages_of(const PagedView& cache, int64_t row, const int32_t* table, int64_t max_pages) {
  const int32_t* const all = cache.page_table + row * cache.max_pages;
  std::vector<int> pages;
  for (int64_t i = 0; i < max_pages && table[i] >= 0; ++i) {
    pages.push_back(static_cast<int>(std::find(all, all + cache.max_pages, table[i]) - all));
  }
  return pages;
}

const float* bounds_of(const PagedView& cache, int64_t row, int64_t page) {
  return cache.bounds.as<float>() + int64_t{cache.page_table[row * cache.max_pages + page]} * 2 * kDim;
}

// Shows a test those steps whose length is recorded; `place` is that of the length among them.
class AtLengths : public Observer {
 public:
  explicit AtLengths(const ReleasedWgKv& released) : released_(released), lengths_(released.numbers("quest.lengths")) {}

  void attended(const LayerView& view, ConstRef outputs) override {
    const int32_t length = view.segments.front().first_position + 1;
    const auto found = std::find(lengths_.begin(), lengths_.end(), length);
    if (found == lengths_.end() || view.segments.front().count != 1) return;
    look(view, outputs, length, found - lengths_.begin());
    ++looks_;
  }
  // Of a recorded tensor [layers, lengths, per_length].
  int64_t row(const LayerView& view, int64_t place, int per_length) const {
    return (view.layer % kLayers * std::ssize(lengths_) + place) * per_length;
  }
  int64_t looks() const { return looks_; }
  int64_t lengths() const { return std::ssize(lengths_); }

 protected:
  const ReleasedWgKv& released_;

 private:
  virtual void look(const LayerView& view, ConstRef outputs, int32_t length, int64_t place) = 0;

  std::vector<int32_t> lengths_;
  int64_t looks_ = 0;
};

// The bound of a page, the largest of some query heads, from the cache's bounds.
float score_of(const LayerView& view, int64_t row, int64_t page, int first_head, int heads) {
  const float* bounds = bounds_of(view.cache, row, page);
  float largest = -1e30F;
  for (int head = first_head; head < first_head + heads; ++head) {
    const float* query = view.projections.queries.as<float>() + head * kDim;
    float sum = 0;
    for (int d = 0; d < kDim; ++d) sum += std::max(query[d] * bounds[d], query[d] * bounds[kDim + d]);
    largest = std::max(largest, sum);
  }
  return largest;
}

SlotChoice quest(const char* mode, int pages) {
  return {"quest", {{"mode", mode, ""}, {"pages", std::to_string(pages), ""}}};
}

class QuestParity : public testing::Test {
 protected:
  void run(Policy& policy, int layers, Observer& observer) {
    TinySource source(*backend_, ReleasedWgKv::info(layers), {released_.sample(layers)});
    const int32_t tokens = ReleasedWgKv::kTokens, prompt = ReleasedWgKv::kPrompt;
    const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
    const std::span<const int32_t> sequences[] = {ids};
    Observer* const observers[] = {&observer};
    replay({.backend = *backend_,
            .source = source,
            .policy = policy,
            .sequences = sequences,
            .schedule = token_by_token(full_schedule({&tokens, 1}, 64), {&prompt, 1}),
            .observers = observers});
  }

  ReleasedWgKv released_;
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

class OfficialLook final : public AtLengths {
 public:
  OfficialLook(const ReleasedWgKv& released, int pages, int budget)
      : AtLengths(released),
        budget_(budget),
        selection_(make_policy("full", {}, {.selection = quest("official", pages)}).selection),
        scores_(released.floats("official.scores")),
        outputs_(released.floats("official.outputs")),
        pages_(released.numbers("official.pages")) {}

 private:
  void look(const LayerView& view, ConstRef outputs, int32_t length, int64_t place) override {
    PagedView read = view.cache;
    selection_->select(view, read);
    if (view.layer < 2) {
      EXPECT_EQ(read.page_table, view.cache.page_table);
      return;
    }
    const int64_t first = row(view, place, kQHeads);
    for (int head = 0; head < kQHeads; ++head) {
      const int last = (length - 1) / kPageTokens;
      for (int page = 0; page < last; ++page) {
        ASSERT_NEAR(score_of(view, head / kGroup, page, head, 1),
                    scores_[static_cast<size_t>((first + head) * kScored + page)], kScoreTolerance);
      }
      int bits = 0;
      for (const int page :
           pages_of(view.cache, head / kGroup, read.page_table + head * view.cache.max_pages, view.cache.max_pages)) {
        bits |= 1 << page;
      }
      const int64_t of_budget = budget_ * kLayers * lengths() * kQHeads;
      EXPECT_EQ(bits, pages_[static_cast<size_t>(of_budget + first + head)]) << length << ", head " << head;
    }
    if (budget_ != 1) return;  // outputs are those of the larger budget
    const std::vector<float> got = download_activations(view.backend, outputs, int64_t{kQHeads} * kDim);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], outputs_[static_cast<size_t>(first * kDim) + i], kOutputTolerance) << length;
    }
  }

  int64_t budget_;  // number of the recorded one
  std::unique_ptr<Selection> selection_;
  std::vector<float> scores_, outputs_;
  std::vector<int32_t> pages_;
};

TEST_F(QuestParity, OfficialPagesAndOutputsAreTheReferences) {
  for (const auto& [pages, budget] : {std::pair{2, 0}, std::pair{4, 1}}) {
    SCOPED_TRACE(pages);
    Policy policy = make_policy("full", {}, {.selection = quest("official", pages)});
    OfficialLook look(released_, pages, budget);
    run(policy, 4, look);
    EXPECT_EQ(look.looks(), 4 * look.lengths());
  }
}

class WgKvLook final : public AtLengths {
 public:
  WgKvLook(const ReleasedWgKv& released, int pages, int budget)
      : AtLengths(released),
        pages_(pages),
        budget_(budget),
        selection_(make_policy("full", {}, {.selection = quest("wg-kv", pages)}).selection),
        scores_(released.floats("quest.scores")),
        bounds_(released.floats("quest.bounds")) {}

 private:
  void look(const LayerView& view, ConstRef, int32_t length, int64_t place) override {
    const int64_t first = row(view, place, kHeads);
    for (int head = 0; head < kHeads; ++head) {
      // Blocks that are full without the ring.
      for (int page = 0; page < (length - kNewest) / kPageTokens; ++page) {
        const auto recorded = bounds_.begin() + ((view.layer * kHeads + head) * kScored + page) * 2 * kDim;
        const float* bounds = bounds_of(view.cache, head, page);
        ASSERT_TRUE(std::equal(bounds, bounds + 2 * kDim, recorded)) << length << ", page " << page;
        ASSERT_NEAR(score_of(view, head, page, head * kGroup, kGroup),
                    scores_[static_cast<size_t>((first + head) * kScored + page)], kScoreTolerance);
      }
    }
    expect_read(view, with_newest(view), length, place);
    if (length % kPageTokens != 0) return;
    PagedView read = view.cache;
    selection_->select(view, read);
    expect_read(view, {read.page_table, read.page_table + kHeads * view.cache.max_pages}, length, place);
  }

  // The pages that mode wg-kv would read if it had to read the newest 16 entries whole.
  std::vector<int32_t> with_newest(const LayerView& view) const {
    std::vector<int32_t> table(static_cast<size_t>(kHeads * view.cache.max_pages)), lengths(kHeads);
    view.backend.select_pages({.queries = view.projections.queries,
                               .cache = view.cache,
                               .segments = view.device_segments,
                               .segment_count = 1,
                               .q_heads = kQHeads,
                               .pages = pages_,
                               .newest = kNewest,
                               .page_table = table.data(),
                               .lengths = lengths.data()});
    return table;
  }

  void expect_read(const LayerView& view, const std::vector<int32_t>& table, int32_t length, int64_t place) const {
    for (int head = 0; head < kHeads; ++head) {
      std::vector<int32_t> positions;
      for (const int page :
           pages_of(view.cache, head, table.data() + head * view.cache.max_pages, view.cache.max_pages)) {
        const int32_t end = std::min(length, (page + 1) * kPageTokens);
        for (int32_t position = page * kPageTokens; position < end; ++position) positions.push_back(position);
      }
      // Of [budgets, lengths, layers · heads].
      const int64_t row = ((budget_ * lengths() + place) * kLayers + view.layer) * kHeads + head;
      EXPECT_EQ(positions, released_.positions("quest.read", row)) << length << ", head " << head;
    }
  }

  int pages_;
  int64_t budget_;  // number of the recorded one
  std::unique_ptr<Selection> selection_;
  std::vector<float> scores_, bounds_;
};

TEST_F(QuestParity, WgKvReadsTheSameEntries) {
  // Budgets of 33 and 64 tokens: two and three blocks beside the ring, which is a page more.
  for (const auto& [pages, budget] : {std::pair{3, 0}, std::pair{4, 1}}) {
    SCOPED_TRACE(pages);
    Policy policy = make_policy("full", {}, {.selection = quest("wg-kv", pages)});
    WgKvLook look(released_, pages, budget);
    run(policy, kLayers, look);
    EXPECT_EQ(look.looks(), kLayers * look.lengths());
  }
}

// At the end, of pages that no expiring entry shares.
class AdmittedLook final : public AtLengths {
 public:
  explicit AdmittedLook(const ReleasedWgKv& released)
      : AtLengths(released), bounds_(released.floats("quest.admitted_bounds")) {}
  int compared_ = 0;

 private:
  void look(const LayerView& view, ConstRef, int32_t length, int64_t) override {
    if (length != ReleasedWgKv::kTokens) return;
    for (int head = 0; head < kHeads; ++head) {
      const int64_t settled = view.cache.lengths[head] - view.cache.expiring;
      for (int64_t page = 0; page < settled / kPageTokens; ++page, ++compared_) {
        const auto recorded = bounds_.begin() + ((view.layer * kHeads + head) * kScored + page) * 2 * kDim;
        const float* bounds = bounds_of(view.cache, head, page);
        EXPECT_TRUE(std::equal(bounds, bounds + 2 * kDim, recorded)) << "head " << head << ", page " << page;
      }
    }
  }

  std::vector<float> bounds_;
};

TEST_F(QuestParity, BoundsOfWhatWasAdmittedAreTheSame) {
  Policy policy = make_policy("full", {}, {.selection = quest("wg-kv", 4)});
  policy.admission = std::make_unique<GivenGates>(released_.floats("gates"));
  AdmittedLook look(released_);
  run(policy, kLayers, look);
  EXPECT_GE(look.compared_, 5);  // of 79, 41, 34 and 18 admitted
}

}  // namespace
}  // namespace kv::ref
