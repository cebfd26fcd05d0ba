#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/model/named_models.h"
#include "sim/model/weights.h"
#include "sim/replay/generate.h"
#include "sim/source/model_source.h"
#include "tests/support/large_on_cuda.h"

namespace kv {
namespace {

// Generation at the shapes of real models, random weights, on a GPU: two ragged prompts, cut by snapkv on the way. What
// the numbers are nobody knows, but steps that a graph repeats and eager ones must agree. Sampled, because with random
// weights the most likely token is soon always the same.
class SlowNamedShapes : public ref::LargeOnCuda, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { take_gpu(sizeof(uint16_t) * static_cast<size_t>(parameters_of(config_)) + 2'000'000'000); }

  GenerateResult generate(ModelSource& source, std::span<Observer* const> observers) {
    Policy policy = make_policy("snapkv", {});
    const std::span<const int32_t> prompts[] = {ids_, std::span(ids_).first(90)};
    return kv::generate({.backend = *backend_,
                         .source = source,
                         .policy = policy,
                         .prompts = prompts,
                         .budget = 64,
                         .interval = 32,
                         .max_new_tokens = 40,
                         .sampling = {.temperature = 1, .top_k = 50, .seed = 3},
                         .prefill_chunk = 64,
                         .observers = observers});
  }

  ModelConfig config_ = find_named_model(GetParam()).parse();
  std::vector<int32_t> ids_ = [this] {
    std::vector<int32_t> ids(150);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(config_.vocab_size));
    }
    return ids;
  }();
};

class Watcher final : public Observer {};

TEST_P(SlowNamedShapes, GenerateTheSameRecordedAndEagerly) {
  ModelSource source(*backend_, RandomWeights(config_, 1));
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  const GenerateResult recorded = generate(source, {}), eager = generate(source, observers);
  for (size_t s = 0; s < 2; ++s) {
    const std::vector<int32_t>& ids = recorded.sequences[s].ids;
    EXPECT_EQ(ids, eager.sequences[s].ids);
    ASSERT_EQ(ids.size(), 40);
    EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < config_.vocab_size; }));
    EXPECT_NE(std::count(ids.begin(), ids.end(), ids[0]), 40) << "all alike";
  }
  EXPECT_EQ(recorded.costs.sequences[0].events, 3);  // after 96, 128 and 160 of 189 tokens
  EXPECT_TRUE(std::any_of(recorded.stretches.begin(), recorded.stretches.end(), [](auto& s) { return s.recorded; }));
}

INSTANTIATE_TEST_SUITE_P(Runs, SlowNamedShapes,
                         ::testing::Values("llama-3.1-8b", "mistral-7b-v0.3", "qwen2.5-32b", "qwen3-1.7b", "qwen3-4b",
                                           "r1-distill-qwen-7b"),
                         [](const auto& test) {
                           std::string name = "cuda_" + test.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace kv
