// Distances from the full cache's pass, on states that are known.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/replayed.h"

namespace kv::test {
namespace {

// Says of token p, in its n-th pass (0: the baseline's), that its last hidden state is (p + n, 1, 0, ...).
class WithHidden final : public Source {
 public:
  WithHidden(Backend& backend, SourceInfo info, std::vector<ref::TinySample> samples)
      : backend_(backend), tiny_(backend, std::move(info), std::move(samples)) {}
  const SourceInfo& info() const override { return tiny_.info(); }
  void begin(std::span<const std::span<const int32_t>> sequences) override {
    ++pass_;
    tiny_.begin(sequences);
  }
  void start(const Block& block) override {
    block_ = &block;
    tiny_.start(block);
  }
  Projections project(int layer) override { return tiny_.project(layer); }
  void absorb(int layer, ConstRef outputs) override { tiny_.absorb(layer, outputs); }
  void finish(TokenLosses& losses) override {
    const auto width = static_cast<size_t>(info().width);
    std::vector<float> hidden(static_cast<size_t>(block_->tokens) * width, 0);
    for (const Segment& segment : block_->segments) {
      for (int32_t i = 0; i < segment.count; ++i) {
        float* state = hidden.data() + static_cast<size_t>(segment.first_token + i) * width;
        state[0] = static_cast<float>(segment.first_position + i + pass_);
        state[1] = 1;
      }
    }
    hidden_ = ref::upload_activations(backend_, hidden);
    losses.nll.assign(static_cast<size_t>(block_->tokens), 0);
    losses.entropy = losses.nll;
    losses.argmax.assign(losses.nll.size(), 0);
    losses.hidden = std::as_const(hidden_).ref();
  }
  ConstRef output_weight(int) const override { return {}; }

 private:
  Backend& backend_;
  ref::TinySource tiny_;
  int pass_ = -1;
  const Block* block_ = nullptr;
  Tensor hidden_;
};

// Four tokens, in blocks of three and one: each state is 1 off; (0, 1), (1, 1), (2, 1), (3, 1) have the squares 1, 2, 5
// and 10.
TEST(HiddenDistance, IsTheMeanSquareOverTokensAndElements) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(1, 2, 1, 8);
  WithHidden source(*backend, info, {ref::random_sample(info, 4, 1)});
  ReplayedCase replayed{.source = source,
                        .backend = *backend,
                        .samples = {{.ids = {0, 0, 0, 0}, .labels = {}, .links = {}}},
                        .schedule = full_schedule(std::vector<int32_t>{4}, 3)};
  const auto rows = measure(replayed, "hidden_distance");
  EXPECT_DOUBLE_EQ(value(rows, "hidden_distance"), 1.0 / info.width);
  EXPECT_DOUBLE_EQ(value(rows, "hidden_distance_relative"), std::sqrt(4.0 / 18));
}

TEST(HiddenDistance, IsNoneOfATrace) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(1, 2, 1, 8);
  ref::TinySource source(*backend, info, {ref::random_sample(info, 4, 1)});
  ReplayedCase replayed{.source = source,
                        .backend = *backend,
                        .samples = {{.ids = {0, 0, 0, 0}, .labels = {}, .links = {}}},
                        .schedule = full_schedule(std::vector<int32_t>{4}, 4)};
  EXPECT_EQ(skipped(measure(replayed, "hidden_distance"), "hidden_distance"),
            "the source has no losses: a trace is not fed back");
}

// One head of values (1, 0), (2, 0), (4, 0), which every query weighs 1 : 1 : 2 and 1 : 1. Queries 0 to 2 have the
// outputs 1, 1.5 and 11/4; without the entry 0 the last one's is 10/3, 7/33 away, a third of the mean.
TEST(OutputDistance, IsTheMeanOfRelativeErrors) {
  const auto backend = make_backend("cpu");
  const SourceInfo info = ref::tiny_info(1, 1, 1, 2);
  ref::TinySource source(*backend, info, {ref::weighted_sample({{1, 1, 2}}, {1, 2, 4})});
  ReplayedCase replayed{.source = source,
                        .backend = *backend,
                        .samples = {{.ids = {0, 0, 0}, .labels = {}, .links = {}}},
                        .schedule = {{.counts = {2}, .keep = {1}}, {.counts = {1}, .keep = {-1}}},
                        .scorer = std::make_unique<ByPosition>([](int, int, int32_t p) { return float(p); })};
  const auto rows = measure(replayed, "output_distance", {{"detail", "layer", ""}});
  EXPECT_NEAR(value(rows, "output_distance"), 7.0 / 33 / 3, 1e-5);
  const Measured* layer = find(rows, "output_distance_layer", {}, 0, 0);
  ASSERT_NE(layer, nullptr);
  EXPECT_NEAR(layer->value, 7.0 / 33 / 3, 1e-5);
}

}  // namespace
}  // namespace kv::test
