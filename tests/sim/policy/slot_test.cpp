#include "sim/policy/slot.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/error.h"
#include "sim/policy/policy.h"

namespace kv {
namespace {

// Remembers what it was given, and refuses any model but one.
template <class Kind>
class FileReader : public Kind {
 public:
  FileReader(std::string file, std::string model) : file_(std::move(file)), model_(std::move(model)) {}
  std::vector<InputFile> check(const ModelIdentity& model, std::string_view scorer) const override {
    if (model.folder() != model_) throw UserError(file_ + " is for " + model_);
    return {{file_, "hash of " + file_ + " for " + std::string(scorer)}};
  }
  void load(std::span<const InputFile> files) override {
    for (const InputFile& file : files) loaded_.push_back(file.sha256);
  }
  void begin(const BatchShape& shape) override { future_ = shape.future; }

  std::vector<std::string> loaded_;
  const Baseline* future_ = nullptr;

 private:
  std::string file_, model_;
};

class ReadingScorer final : public FileReader<Scorer> {
 public:
  using FileReader::FileReader;
  Protection protects(int, int) const override { return {}; }
  void score(const LayerView&, const ScoreOutput&) override {}
};

class ReadingAllocation final : public FileReader<Allocation> {
 public:
  using FileReader::FileReader;
  Needs needs() const override { return {.future = BaselineNeeds{.block_max = true}}; }
  void allocate(const AllocateArgs&, std::span<int32_t>) override {}
};

ModelIdentity model(const std::string& folder) {
  return {folder, [] { return ModelIdentity::Shape{1, 1}; }};
}

struct Readers {
  Readers() {
    auto scorer = std::make_unique<ReadingScorer>("weights", "a");
    auto allocation = std::make_unique<ReadingAllocation>("profile", "a");
    scorer_ = scorer.get();
    allocation_ = allocation.get();
    policy_ = policy_of("learned", std::move(scorer));
    policy_.allocation = std::move(allocation);
    policy_.allocation_name = "profiled";
  }
  Policy policy_;
  ReadingScorer* scorer_;
  ReadingAllocation* allocation_;
};

TEST(PolicySlots, FilesReachTheSlotThatNamedThem) {
  Readers readers;
  const std::vector<InputFile> files = readers.policy_.check(model("a"));
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].slot, "scorer");
  EXPECT_EQ(files[1].slot, "allocation");
  readers.policy_.load(files);
  EXPECT_EQ(readers.scorer_->loaded_, (std::vector<std::string>{"hash of weights for learned"}));
  EXPECT_EQ(readers.allocation_->loaded_, (std::vector<std::string>{"hash of profile for learned"}));
}

TEST(PolicySlots, AScorersFileOfAnotherModelIsRefused) {
  const Readers readers;
  try {
    readers.policy_.check(model("b"));
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "weights is for a");
  }
}

TEST(PolicySlots, TheFutureReachesOnlyTheSlotThatAskedForIt) {
  const Readers readers;
  const Baseline pass;
  for (const PolicySlot& place : readers.policy_.slots()) begin_slot(place.slot, {}, &pass);
  EXPECT_EQ(readers.scorer_->future_, nullptr);
  EXPECT_EQ(readers.allocation_->future_, &pass);
  EXPECT_TRUE(readers.policy_.oracle());
  EXPECT_EQ(readers.policy_.oracle_name(), "profiled");
  EXPECT_TRUE(readers.policy_.future_needs().block_max);
  // Not even where it is handed in by mistake.
  begin_slot(*readers.scorer_, {.future = &pass}, &pass);
  EXPECT_EQ(readers.scorer_->future_, nullptr);
}

TEST(PolicySlots, AreFilledWithTheirNullObjects) {
  const Policy policy = make_policy("full", {});
  std::vector<std::string> filled;
  for (const PolicySlot& place : policy.slots()) filled.push_back(std::string(place.kind) + " " + place.name);
  EXPECT_EQ(filled, (std::vector<std::string>{"allocation uniform", "admission none", "selection all"}));
  EXPECT_EQ(policy.admission->window(), 0);
  EXPECT_FALSE(policy.oracle());
}

TEST(PolicySlots, UnknownNamesOfEveryKindAreRefusedInTheSameWords) {
  const auto refusal = [](const auto& make) {
    try {
      make();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal([] { make_part<Admission>("nobody", {}); }),
            "unknown admission 'nobody' (expected one of: duo, local, none, wg-kv)");
  EXPECT_EQ(refusal([] { make_part<Selection>("some", {}); }),
            "unknown selection 'some' (expected one of: all, quest)");
  EXPECT_EQ(refusal([] {
              make_part<Admission>("none", {{"tau", "1", ""}});
            }),
            "none: tau = 1: unknown option (there are none)");
}

}  // namespace
}  // namespace kv
