// What heads hold after every token, and what queries read, in WG-KV's released code (EMCLab-Sinica/WG-KV,
// src/modeling_layers.py as of 6f98f4a): prompt, ring, promotion to pages and, with a capacity, its eviction (004,
// Appendix K). tests/data/wg_kv/make.py names the functions and what took the place of gates and attention kernels.
//
// Theirs and ours agree where both say anything: after token t the ring holds p > t - 16, and what was promoted before
// t's attention is p <= t - 16, the one that t displaces among them; that is what t reads, what the capacity counts,
// and what is evicted from, after t. Where they do not:
// - a prompt is one step of theirs, after which it is looked once whether the capacity is passed. Here it is looked
//   after each of its tokens. The recorded prompt does not pass it.
// - what is recorded has as many judging queries as the window, as 004 does: with fewer, their softmax and pooling
//   still run over the promoted alone, ours over all that is older than the queries.
// - an event in which no head has ten entries to lose a tenth of counts there and not here; none is recorded.
// - gates of a bf16 model are rounded to bf16 there, so that those from 0.0999 to 0.1003 all become 0.1001 and are
//   decided alike. Ours are f32, as the recorded ones.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/cache/to_host.h"
#include "sim/policy/capacity.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/released_wg_kv.h"

namespace kv::ref {
namespace {

constexpr int kLayers = ReleasedWgKv::kLayers, kHeads = ReleasedWgKv::kHeads, kRows = ReleasedWgKv::kRows;
constexpr int32_t kTokens = ReleasedWgKv::kTokens, kPrompt = ReleasedWgKv::kPrompt;

// The positions that each query sees, of each head.
class Sights final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef) override {
    const Segment& segment = view.segments.front();
    for (int32_t at = segment.first_position; at < segment.first_position + segment.count; ++at) {
      for (int head = 0; head < kHeads; ++head) seen_[{view.layer, head, at}] = seen(view, head, at);
    }
  }

  std::map<std::tuple<int, int, int32_t>, std::vector<int32_t>> seen_;  // by (layer, head, position)

 private:
  static std::vector<int32_t> seen(const LayerView& view, int head, int32_t at) {
    std::vector<int32_t> positions;
    for (int32_t slot = 0; slot < view.cache.lengths[head]; ++slot) {
      const int32_t page = view.cache.page_table[head * view.cache.max_pages + slot / kPageTokens];
      const int32_t place = page * kPageTokens + slot % kPageTokens, position = view.cache.positions[place];
      if (position <= at && view.cache.expires[place] > at) positions.push_back(position);
    }
    return positions;
  }
};

class WgKvParity : public testing::Test {
 protected:
  struct Left {
    std::vector<std::vector<int32_t>> positions;  // [layers · heads]
    int64_t events = 0;
  };

  // What the first tokens leave: the prompt in blocks, then one token at a time.
  Left left(Policy& policy, int32_t tokens, int block, const Capacity* capacity = nullptr,
            std::vector<Observer*> observers = {}) {
    policy.admission = std::make_unique<GivenGates>(released_.floats("gates"));
    TinySource source(*backend_, ReleasedWgKv::info(kLayers), {released_.sample(kLayers)});
    const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
    const std::span<const int32_t> sequences[] = {ids};
    std::optional<LoopState> state;
    const ReplayResult result = replay({.backend = *backend_,
                                        .source = source,
                                        .policy = policy,
                                        .sequences = sequences,
                                        .schedule = token_by_token(full_schedule({&tokens, 1}, block), {&kPrompt, 1}),
                                        .budget = capacity ? capacity->kept() : 0,
                                        .interval = capacity ? capacity->interval() : 0,
                                        .capacity = capacity,
                                        .observers = observers,
                                        .left = &state});
    Left left{.events = result.sequences.front().events};
    for (int row = 0; row < kRows; ++row) {
      const int layer = row / kHeads, head = row % kHeads;
      left.positions.push_back(positions_to_host(*backend_, state->cache.view(layer), head,
                                                 state->cache.lengths(layer)[static_cast<size_t>(head)]));
    }
    return left;
  }

  // Of a recorded tensor [steps, layers · heads]: after the prompt, and after each token behind it.
  std::vector<int32_t> wanted(const std::string& name, int32_t tokens, int row) const {
    return released_.positions(name, int64_t{tokens - kPrompt} * kRows + row);
  }

  void expect_held(const std::string& name, const Left& left, int32_t tokens) const {
    for (int row = 0; row < kRows; ++row) {
      ASSERT_EQ(left.positions[static_cast<size_t>(row)], wanted(name, tokens, row))
          << name << ", " << tokens << " tokens, layer " << row / kHeads << ", head " << row % kHeads;
    }
  }

  ReleasedWgKv released_;
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
};

TEST_F(WgKvParity, HeadsHoldTheSameAfterEveryToken) {
  Policy policy = make_policy("full", {});
  for (int32_t tokens = kPrompt; tokens <= kTokens; ++tokens) expect_held("held", left(policy, tokens, 64), tokens);
  for (const int block : {1, 7}) expect_held("held", left(policy, kTokens, block), kTokens);
}

TEST_F(WgKvParity, QueriesReadTheSame) {
  Policy policy = make_policy("full", {});
  Sights sights;
  left(policy, kTokens, 64, nullptr, {&sights});
  for (int32_t tokens = kPrompt; tokens <= kTokens; ++tokens) {
    for (int row = 0; row < kRows; ++row) {
      ASSERT_EQ((sights.seen_[{row / kHeads, row % kHeads, tokens - 1}]), wanted("held", tokens, row)) << tokens;
    }
  }
}

// Ten events, in which heads of unequal lengths lose four entries to none.
TEST_F(WgKvParity, EvictionLeavesTheSameAfterEveryToken) {
  const Capacity capacity{.entries = 24, .drop = 0.1, .window = ReleasedWgKv::kWindow};
  const std::vector<int32_t> events = released_.numbers("evicted.events");
  EXPECT_EQ(events.front(), 0);
  EXPECT_EQ(events.back(), 10);
  Policy policy = make_policy("snapkv", {{"mode", "wg-kv", ""}, {"window", "16", ""}, {"kernel", "5", ""}},
                              {.allocation = {"share"}});
  const auto expect_same = [&](int32_t tokens, int block) {
    const Left left = this->left(policy, tokens, block, &capacity);
    expect_held("evicted.held", left, tokens);
    EXPECT_EQ(left.events, events[static_cast<size_t>(tokens - kPrompt)]) << tokens;
  };
  for (int32_t tokens = kPrompt; tokens <= kTokens; ++tokens) expect_same(tokens, 64);
  for (const int block : {1, 7}) expect_same(kTokens, block);
}

}  // namespace
}  // namespace kv::ref
