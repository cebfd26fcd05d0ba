// A model that people use, read from the file that ./dev model smollm2-135m downloads, against transformers
// (tests/data/README.md). Skipped but under ./dev test --model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "sim/replay/baseline_pass.h"
#include "sim/source/model_source.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

const std::filesystem::path kModel =
    ref::source_path("experiments/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf");

class SlowSmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("KV_MODEL_TESTS")) GTEST_SKIP() << "needs a model that is downloaded: ./dev test --model";
    ASSERT_TRUE(is_model(kModel)) << "no " << kModel << ": ./dev model smollm2-135m";
  }
  static std::string data(const char* name) { return ref::source_path(std::string("tests/data/smollm2/") + name); }
};

TEST_F(SlowSmolLm2, TokenizerGivesTheIdsOfOthers) {
  const Tokenizer tokenizer = Tokenizer::load_gguf(kModel);
  std::ifstream file(data("tokenizer_cases.json"));
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 9u);
  for (const auto& case_ : cases) {
    const auto text = case_["text"].get<std::string>();
    const auto ids = case_["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_F(SlowSmolLm2, ConfigurationIsThatOfItsPublisher) {
  const ModelConfig config = load_model_config(kModel);
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.max_positions, 8192);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_ids, (std::vector<int>{2}));
}

// The reference computes in f32, as the CPU does.
TEST_F(SlowSmolLm2, LossesAgreeWithTransformersOnTheSameFile) {
  const auto backend = make_backend("cpu");
  const auto expected = SafetensorsFile::open(data("expected.safetensors"));
  const std::vector<int32_t> ids = expected.read_i32(expected.require("input_ids"));
  const std::vector<float> nll = expected.read_f32(expected.require("nll"));
  ASSERT_EQ(ids.size(), 2048u);
  ASSERT_EQ(nll.size(), 2047u);
  ModelSource source(*backend, load_model(kModel));
  const std::span<const int32_t> sequences[] = {ids};
  const Baseline baseline = compute_baseline(*backend, source, sequences, {});
  double largest = 0;
  for (size_t i = 0; i < nll.size(); ++i) {
    const double error = std::abs(double{baseline.nll[0][i]} - double{nll[i]});
    ASSERT_LE(error, 1e-3) << "token " << i;
    largest = std::max(largest, error);
  }
  RecordProperty("largest_error", std::to_string(largest));
}

}  // namespace
}  // namespace kv
