#include "sim/model/gguf_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_file.h"

namespace kv {
namespace {

using ref::GgufBuilder;
using test::user_error;

// Two heads of 8 over one KV head, 5 tokens.
GgufBuilder tiny(const std::string& architecture) {
  GgufBuilder builder;
  builder.put_text("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair("context_length", 64u),
                                   {"embedding_length", 16u},
                                   {"block_count", 1u},
                                   {"feed_forward_length", 24u},
                                   {"attention.head_count", 2u},
                                   {"attention.head_count_kv", 1u}}) {
    builder.put_u32(architecture + "." + key, value);
  }
  builder.put_f32(architecture + ".attention.layer_norm_rms_epsilon", 0.25f);
  builder.put_f32_tensor("token_embd.weight", {16, 5}, std::vector<float>(80));
  return builder;
}

ModelConfig config_of(const GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  return gguf_model_config(GgufFile::from_bytes(std::as_bytes(std::span(bytes)), "f.gguf"));
}

std::string refusal(const GgufBuilder& builder) {
  return user_error([&] { config_of(builder); });
}

TEST(GgufConfig, ReadsSizesAndDefaults) {
  const ModelConfig config = config_of(tiny("llama"));
  EXPECT_EQ(config.family, ModelFamily::kLlama);
  EXPECT_EQ(config.layers, 1);
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.heads, 2);
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.vocab_size, 5);
  EXPECT_EQ(config.max_positions, 64);
  EXPECT_EQ(config.rms_norm_eps, 0.25);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.qk_norm);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_TRUE(config.bos_ids.empty() && config.eos_ids.empty());
}

TEST(GgufConfig, TellsBiasesAndHeadsFromTheTensorsAndTheFamily) {
  GgufBuilder builder = tiny("llama");
  for (const char* name : {"output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias"}) {
    builder.put_f32_tensor(name, {8}, std::vector<float>(8));
  }
  builder.put_u32("llama.attention.key_length", 4);
  builder.put_u32("llama.attention.value_length", 4);
  builder.put_u32("llama.attention.sliding_window", 32);
  builder.put_u32("tokenizer.ggml.bos_token_id", 3);
  builder.put_u32("tokenizer.ggml.eos_token_id", 4);
  builder.put_u32("tokenizer.ggml.eot_token_id", 1);
  builder.put_u32("tokenizer.ggml.eom_token_id", 4);
  const ModelConfig config = config_of(builder);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.qkv_bias && config.o_bias);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.sliding_window, 32);
  EXPECT_EQ(config.bos_ids, (std::vector<int>{3}));
  EXPECT_EQ(config.eos_ids, (std::vector<int>{4, 1}));

  const ModelConfig qwen2 = config_of(tiny("qwen2")), qwen3 = config_of(tiny("qwen3"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.qk_norm && !qwen2.o_bias);
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_TRUE(gguf_pairs_are_neighbours(config));
  EXPECT_FALSE(gguf_pairs_are_neighbours(qwen2) || gguf_pairs_are_neighbours(qwen3));
}

TEST(GgufConfig, ReadsRopeScalingAsStored) {
  const auto rope_of = [](auto change) {
    GgufBuilder builder = tiny("llama");
    builder.put_f32("llama.rope.freq_base", 500000);
    change(builder);
    return config_of(builder).rope;
  };
  const RopeConfig linear = rope_of([](GgufBuilder& b) {
    b.put_text("llama.rope.scaling.type", "linear");
    b.put_f32("llama.rope.scaling.factor", 4);
  });
  EXPECT_EQ(linear.type, RopeType::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  EXPECT_EQ(linear.theta, 500000.0);
  EXPECT_EQ(rope_of([](GgufBuilder& b) { b.put_f32("llama.rope.scale_linear", 2); }).factor, 2.0);
  const auto none = [](GgufBuilder& b) {
    b.put_text("llama.rope.scaling.type", "none");
    b.put_f32("llama.rope.scaling.factor", 4);
  };
  EXPECT_EQ(rope_of(none).type, RopeType::kDefault);
  const RopeConfig yarn = rope_of([](GgufBuilder& b) {
    b.put_text("llama.rope.scaling.type", "yarn");
    b.put_f32("llama.rope.scaling.factor", 4);
    b.put_u32("llama.rope.scaling.original_context_length", 16);
    b.put_f32("llama.rope.scaling.attn_factor", 0.5f);
    b.put_f32("llama.rope.scaling.yarn_beta_fast", 16);
  });
  EXPECT_EQ(yarn.type, RopeType::kYarn);
  EXPECT_EQ(yarn.original_max_positions, 16);
  EXPECT_EQ(yarn.beta_fast, 16.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_DOUBLE_EQ(*yarn.attention_factor, 0.5 * (0.1 * std::log(4.0) + 1.0));
}

// Llama 3's scaling, whose factors a GGUF file holds by pair, as its converter computes them.
TEST(GgufConfig, DividesFrequenciesByTheStoredFactors) {
  const RopeConfig llama3{.type = RopeType::kLlama3,
                          .theta = 10000.0,
                          .factor = 8.0,
                          .original_max_positions = 512,
                          .low_freq_factor = 1.0,
                          .high_freq_factor = 4.0};
  const std::vector<float> plain = make_rope({.theta = 10000.0}, 8).inv_freq, wanted = make_rope(llama3, 8).inv_freq;
  std::vector<float> factors;
  for (size_t i = 0; i < plain.size(); ++i) factors.push_back(plain[i] / wanted[i]);
  ASSERT_GT(factors.back(), factors.front());
  constexpr float kTwoRoundings = 1.2e-7f;  // of the two quotients, half a unit in the last place of f32 each
  GgufBuilder builder = tiny("llama");
  builder.put_f32_tensor(std::string(kGgufRopeFactors), {4}, factors);
  const std::vector<float> scaled = make_rope(config_of(builder).rope, 8).inv_freq;
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], wanted[i], wanted[i] * kTwoRoundings) << i;

  builder.tensors.back().bytes.replace(0, 4, std::string(4, '\0'));
  EXPECT_EQ(refusal(builder),
            "f.gguf: tensor \"rope_freqs.weight\": holds 0, expected numbers above 1e-06 and at most 1000000");
  GgufBuilder wrong = tiny("llama");
  wrong.put_f32_tensor(std::string(kGgufRopeFactors), {3}, std::vector<float>(3, 1));
  EXPECT_EQ(refusal(wrong), "f.gguf: tensor \"rope_freqs.weight\": shape [3], expected [4]");
}

TEST(GgufConfig, NamesTheArchitecturesThatAreKnown) {
  EXPECT_EQ(refusal(tiny("gemma2")), "f.gguf: general.architecture is \"gemma2\", expected one of llama, qwen2, qwen3");
  EXPECT_EQ(refusal(GgufBuilder()), "f.gguf: general.architecture is missing, expected one of llama, qwen2, qwen3");
}

TEST(GgufConfig, RefusesWhatItCannotComputeExactly) {
  const auto with = [](auto change) {
    GgufBuilder builder = tiny("llama");
    change(builder);
    return refusal(builder);
  };
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_u32("llama.expert_count", 8); }),
            "f.gguf: llama.expert_count is 8, expected 0: mixtures of experts are not supported");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_u32("llama.rope.dimension_count", 4); }),
            "f.gguf: llama.rope.dimension_count is 4, expected 8, the size of a head");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_u32("llama.attention.value_length", 16); }),
            "f.gguf: llama.attention.value_length is 16, expected 8, the size of a head");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_f32("llama.logit_scale", 2); }),
            "f.gguf: llama.logit_scale is 2, expected none: it changes the model in a way that is not supported");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_text("llama.rope.scaling.type", "longrope"); }),
            "f.gguf: llama.rope.scaling.type is \"longrope\", expected none, linear or yarn");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_bool("llama.attention.causal", false); }),
            "f.gguf: llama.attention.causal is false, expected true");
  EXPECT_EQ(with([](GgufBuilder& b) { b.put_u32("tokenizer.ggml.bos_token_id", 5); }),
            "f.gguf: tokenizer.ggml.bos_token_id is 5, expected an integer from 0 to 4");
  EXPECT_EQ(with([](GgufBuilder& b) { b.tensors.clear(); }), "f.gguf: tensor \"token_embd.weight\" is missing");

  GgufBuilder heads;
  heads.put_text("general.architecture", "llama");
  for (const char* key : {"context_length", "embedding_length", "block_count", "feed_forward_length"}) {
    heads.put_u32(std::string("llama.") + key, 8);
  }
  heads.put_u32("llama.attention.head_count", 2);
  heads.put_i32s("llama.attention.head_count_kv", std::vector<int32_t>{1, 2});
  EXPECT_EQ(refusal(heads),
            "f.gguf: llama.attention.head_count_kv is a list of 2, expected an integer from 1 to 1000000");
}

TEST(GgufConfig, NamesEveryTensorAsItsFilesDo) {
  EXPECT_EQ(gguf_tensor_name("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(gguf_tensor_name("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(gguf_tensor_name("lm_head.weight"), "output.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
  EXPECT_EQ(gguf_tensor_name("model.layers.0.self_attn.k_norm.weight"), "blk.0.attn_k_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.0.post_attention_layernorm.weight"), "blk.0.ffn_norm.weight");
  EXPECT_EQ(gguf_tensor_name("model.layers.3.mlp.down_proj.weight"), "blk.3.ffn_down.weight");
}

}  // namespace
}  // namespace kv
