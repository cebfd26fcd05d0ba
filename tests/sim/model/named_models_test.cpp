#include "sim/model/named_models.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sim/model/weights.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

// As the published checkpoints count them (tied embeddings once): every size and bias of a shape enters.
TEST(NamedModels, HaveTheParametersOfTheirCheckpoints) {
  const std::map<std::string, int64_t, std::less<>> published = {
      {"llama-3.1-8b", 8'030'261'248},      {"llama-3.1-405b", 405'853'388'800}, {"mistral-7b-v0.3", 7'248'023'552},
      {"qwen2.5-32b", 32'763'876'352},      {"qwen3-1.7b", 1'720'574'976},       {"qwen3-4b", 4'022'468'096},
      {"r1-distill-qwen-7b", 7'615'616'512}};
  size_t found = 0;
  for (const NamedModel& model : named_models()) {
    const auto count = published.find(model.name);
    if (count == published.end()) continue;
    ++found;
    EXPECT_EQ(parameters_of(model.parse()), count->second) << model.name;
  }
  EXPECT_EQ(found, published.size());
}

TEST(NamedModels, HaveTheHeadsAndPositionsOfTheirFamilies) {
  const ModelConfig llama = find_named_model("llama-3.1-8b").parse();
  EXPECT_EQ(llama.rope.type, RopeType::kLlama3);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_FALSE(llama.tie_word_embeddings || llama.qkv_bias || llama.qk_norm);
  const ModelConfig qwen3 = find_named_model("qwen3-4b").parse();
  EXPECT_TRUE(qwen3.tie_word_embeddings && qwen3.qk_norm);
  EXPECT_EQ(2 * qwen3.layers * qwen3.kv_size() * 2, 147456);  // KV bytes a token in bf16
  const ModelConfig distilled = find_named_model("r1-distill-qwen-7b").parse();
  EXPECT_TRUE(distilled.qkv_bias);
  EXPECT_EQ(distilled.sliding_window, 0);
  EXPECT_EQ(distilled.rope.theta, 10000);
}

TEST(NamedModels, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(test::user_error([] { find_named_model("llama"); }),
            "unknown model shape 'llama' (expected one of: llama-3.1-8b, llama-3.1-405b, mistral-7b-v0.3, "
            "qwen2.5-32b, qwen3-1.7b, qwen3-4b, r1-distill-qwen-7b, tiny)");
}

}  // namespace
}  // namespace kv
