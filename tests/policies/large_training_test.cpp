#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "policies/parts/write_gate_training.h"
#include "sim/model/named_models.h"
#include "sim/model/weights.h"
#include "sim/policy/params.h"
#include "sim/source/model_source.h"
#include "tests/support/large_on_cuda.h"

namespace kv {
namespace {

constexpr size_t kMostBytes = 40'000'000'000;  // 16 of them weights

class SlowLargeTraining : public ref::LargeOnCuda {
 protected:
  void SetUp() override { take_gpu(kMostBytes); }
};

// Of a text of 16384 tokens at the shape of Llama-3.1-8B only each layer's input and its heads' outputs stay until the
// way back: all activations would be some 50 GB more.
TEST_F(SlowLargeTraining, AStepOfALongTextTakesTheActivationsOfOneLayer) {
  const ModelConfig config = find_named_model("llama-3.1-8b").parse();
  ModelSource source(*backend_, RandomWeights(config, 1));
  WriteGateTraining learner(4, {.window = 256, .threshold = 0.1F}, {}, "mine");
  Params params("learn");
  learner.read(params);
  const std::vector<float> parameters = learner.initial(source.info(), 1);
  std::vector<double> gradient(parameters.size());
  std::vector<int32_t> ids(16384);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(config.vocab_size));
  }
  const std::vector<std::span<const int32_t>> texts = {ids};
  const std::vector<int32_t> numbers = {0};
  backend_->reset_peak();
  const std::vector<LearnedMean> measured = learner.learn(
      {.backend = *backend_, .source = source, .sequences = texts, .sample_numbers = numbers}, parameters, gradient);
  EXPECT_LT(backend_->peak_bytes(), kMostBytes);
  EXPECT_GT(measured.front().value, 0);  // the distance from the teacher
  EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](double slope) { return std::isfinite(slope); }));
  EXPECT_GT(std::count_if(gradient.begin(), gradient.end(), [](double slope) { return slope != 0; }),
            std::ssize(gradient) / 2);
  RecordProperty("peak_bytes", std::to_string(backend_->peak_bytes()));
}

}  // namespace
}  // namespace kv
