#include "sim/replay/cut.h"

#include <gtest/gtest.h>

#include "sim/cache/to_host.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/slices.h"
#include "tests/support/tiny_source.h"

namespace kv {
namespace {

constexpr int kTokens = 40, kBudget = 20;

// Says itself which entries stay: of every even head the oldest kept + 2, of every odd one every second entry, two
// fewer than the mean in all.
class Decided final : public Allocation {
 public:
  explicit Decided(int lie = 0) : lie_(lie) {}
  bool decides_entries() const override { return true; }
  void allocate(const AllocateArgs& args, std::span<int32_t> counts) override {
    ASSERT_EQ(args.keep.size(), args.layers.size());
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      const Slots<uint8_t> keep = args.keep[layer];
      std::vector<uint8_t> flags(static_cast<size_t>(keep.elements()), 0xFF);
      for (int row = 0; row < args.rows(); ++row) {
        uint8_t* const mask = flags.data() + row * keep.pitch;
        std::fill_n(mask, args.layers[layer].lengths[static_cast<size_t>(row)], uint8_t{0});
        const bool even = row % 2 == 0;
        const int count = args.kept + (even ? 2 : -2);
        for (int i = 0; i < count - lie_; ++i) mask[even ? i : 2 * i] = 1;
        counts[layer * static_cast<size_t>(args.rows()) + static_cast<size_t>(row)] = count;
      }
      args.backend.upload(keep.data, flags.data(), flags.size());
    }
  }

 private:
  int lie_;
};

// What is resident in each row of each layer when the text goes on.
class Residents final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef) override {
    if (view.lengths[0] >= kTokens) return;
    for (int row = 0; row < view.rows(); ++row) {
      rows_.push_back(positions_to_host(view.backend, view.cache, row, view.lengths[static_cast<size_t>(row)]));
    }
  }
  void evicting(const EvictionView& view) override { kept_.insert(kept_.end(), view.kept.begin(), view.kept.end()); }
  std::vector<std::vector<int32_t>> rows_;
  std::vector<int32_t> kept_;
};

ReplayResult compress_by(Backend& backend, std::unique_ptr<Allocation> allocation, Residents& residents) {
  const SourceInfo info = ref::tiny_info(2, 4, 2, 8);
  ref::TinySource source(backend, info, std::vector{ref::random_sample(info, kTokens + 1, 1)});
  Policy policy = make_policy("keydiff", {});
  policy.allocation = std::move(allocation);
  const std::vector<int32_t> ids(kTokens + 1, 0);
  const std::span<const int32_t> sequences[] = {ids};
  Observer* const observers[] = {&residents};
  const int32_t length = kTokens + 1, context = kTokens, keep = kBudget;
  return replay({.backend = backend,
                 .source = source,
                 .policy = policy,
                 .sequences = sequences,
                 .schedule = one_shot_schedule({&length, 1}, {&context, 1}, {&keep, 1}),
                 .observers = observers});
}

KV_OVER_BACKENDS(Runs, Cut);

TEST_P(Cut, KeepsTheEntriesThatAnAllocationDecides) {
  KV_BACKEND_OR_SKIP(backend);
  Residents residents;
  const ReplayResult result = compress_by(*backend, std::make_unique<Decided>(), residents);
  std::vector<int32_t> oldest, second;
  for (int i = 0; i < kBudget + 2; ++i) oldest.push_back(i);
  for (int i = 0; i < kBudget - 2; ++i) second.push_back(2 * i);
  for (std::vector<int32_t>* row : {&oldest, &second}) row->push_back(kTokens);  // the token after the event
  EXPECT_EQ(residents.rows_, (std::vector<std::vector<int32_t>>{oldest, second, oldest, second}));
  EXPECT_EQ(residents.kept_, (std::vector<int32_t>{22, 18, 22, 18}));
  EXPECT_EQ(result.sequences[0].kept_mean, kBudget);
  EXPECT_EQ(result.sequences[0].kept_max, kBudget + 2);
}

// Counts are checked with and without masks; what the mask says must be what was counted.
TEST_P(Cut, AMaskThatKeepsOtherThanItCountsIsABug) {
  KV_BACKEND_OR_SKIP(backend);
  if (backend->name() != "cpu") GTEST_SKIP() << "the check is the host's, and a forked process has no GPU";
  Residents residents;
  EXPECT_DEATH(compress_by(*backend, std::make_unique<Decided>(1), residents), "lengths\\[row\\] == counts\\[row\\]");
}

}  // namespace
}  // namespace kv
