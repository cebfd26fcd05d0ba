// Where in the loop the slots of a policy speak.

#include <gtest/gtest.h>

#include <optional>

#include "kernels/expiry.h"
#include "sim/replay/replay.h"
#include "tests/support/backends.h"
#include "tests/support/slices.h"
#include "tests/support/tiny_source.h"

namespace kv {
namespace {

constexpr int kTokens = 5;
constexpr int kHeadDim = 8;

// Position of a row's slot, as the host reads it from the CPU's memory.
int32_t position_at(const PagedView& cache, int64_t row, int32_t slot) {
  const int64_t page = cache.page_table[row * cache.max_pages + slot / kPageTokens];
  return cache.positions[page * kPageTokens + slot % kPageTokens];
}

// Whether the newest entry of row 0 has been written yet; pools begin as -1 everywhere.
bool newest_is_there(const LayerView& view) {
  return position_at(view.cache, 0, view.lengths[0] - 1) == view.lengths[0] - 1;
}

class WatchingAdmission final : public Admission {
 public:
  int window() const override { return 2; }
  void admit(const LayerView& view, int32_t* expires) override {
    EXPECT_FALSE(newest_is_there(view));
    EXPECT_NE(view.projections.keys.data, nullptr);
    expires[0] = kNeverExpires;
    ++calls_;
  }
  int calls_ = 0;
};

// Reads the oldest entry of every row and nothing else.
class OldestOnly final : public Selection {
 public:
  void select(const LayerView& view, PagedView& read) override {
    EXPECT_TRUE(newest_is_there(view));
    lengths_.assign(static_cast<size_t>(view.rows()), 1);
    read.lengths = lengths_.data();
    read.max_length = 1;
  }

 private:
  std::vector<int32_t> lengths_;
};

class Outputs final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef outputs) override {
    outputs_.push_back(ref::download_activations(view.backend, outputs, int64_t{view.q_heads} * view.head_dim));
    values_.push_back(
        ref::download_activations(view.backend, view.projections.values, int64_t{view.kv_heads} * view.head_dim));
  }
  std::vector<std::vector<float>> outputs_, values_;  // one a token of one layer
};

struct TinyRun {
  TinyRun() {
    const SourceInfo info = ref::tiny_info(1, 2, 1, kHeadDim);
    source_.emplace(*backend_, info, std::vector{ref::random_sample(info, kTokens, 1)});
  }
  void go(Policy& policy) {
    const std::vector<int32_t> ids(kTokens, 0);
    const std::span<const int32_t> sequences[] = {ids};
    Observer* const observers[] = {&outputs_};
    const int32_t length = kTokens, prompt = 1;
    replay({.backend = *backend_,
            .source = *source_,
            .policy = policy,
            .sequences = sequences,
            .schedule = token_by_token(full_schedule({&length, 1}, 4), {&prompt, 1}),
            .observers = observers});
  }
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  std::optional<ref::TinySource> source_;
  Outputs outputs_;
};

TEST(LoopSlots, AdmissionSpeaksOnceALayerBeforeABlockIsAppended) {
  auto admission = std::make_unique<WatchingAdmission>();
  const WatchingAdmission& watching = *admission;
  Policy policy = policy_of("full", nullptr);
  policy.admission = std::move(admission);
  TinyRun run;
  run.go(policy);
  EXPECT_EQ(watching.calls_, kTokens);
}

// Softmax over one entry is 1, so each output is the first token's value.
TEST(LoopSlots, AttentionReadsWhatSelectionSaysAndNothingElse) {
  Policy policy = policy_of("full", nullptr);
  policy.selection = std::make_unique<OldestOnly>();
  TinyRun run;
  run.go(policy);
  ASSERT_EQ(run.outputs_.outputs_.size(), static_cast<size_t>(kTokens));
  for (const std::vector<float>& output : run.outputs_.outputs_) {
    for (size_t i = 0; i < output.size(); ++i) EXPECT_EQ(output[i], run.outputs_.values_[0][i % kHeadDim]);
  }
}

}  // namespace
}  // namespace kv
