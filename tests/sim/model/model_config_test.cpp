#include "sim/model/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/model/model_files.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using nlohmann::json;
using test::user_error;

json llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100,
    "max_position_embeddings": 512})");
}

json as_family(json config, const char* type, const char* name) {
  config["model_type"] = type;
  config["architectures"] = {name};
  return config;
}

json mistral() { return as_family(llama(), "mistral", "MistralForCausalLM"); }
json qwen2() { return as_family(llama(), "qwen2", "Qwen2ForCausalLM"); }
json qwen3() { return as_family(llama(), "qwen3", "Qwen3ForCausalLM"); }

json with(json config, const json& changes) {
  config.merge_patch(changes);  // null removes the key
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

std::string refusal(const json& config) {
  return user_error([&] { parse(config); });
}

TEST(ModelConfig, FillsInTheDefaultsOfTheFormat) {
  const ModelConfig config = parse(llama());
  EXPECT_EQ(config.family, ModelFamily::kLlama);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings || config.qkv_bias || config.o_bias || config.qk_norm);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_TRUE(config.bos_ids.empty() && config.eos_ids.empty());
}

TEST(ModelConfig, KnowsWhatEachFamilyAdds) {
  const ModelConfig qwen2_config = parse(qwen2());
  EXPECT_TRUE(qwen2_config.qkv_bias);
  EXPECT_FALSE(qwen2_config.o_bias || qwen2_config.qk_norm);
  const ModelConfig qwen3_config = parse(with(qwen3(), {{"num_key_value_heads", 2}}));
  EXPECT_TRUE(qwen3_config.qk_norm);
  EXPECT_EQ(qwen3_config.head_dim, 128);
  EXPECT_EQ(qwen3_config.q_size(), 512);
  EXPECT_EQ(qwen3_config.kv_size(), 256);
  const ModelConfig biased = parse(with(llama(), {{"attention_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
  EXPECT_EQ(family_name(parse(mistral()).family), "mistral");
}

TEST(ModelConfig, NeedsOneOfArchitecturesAndModelType) {
  json by_type = llama(), by_name = llama();
  by_type.erase("architectures");
  by_name.erase("model_type");
  EXPECT_EQ(parse(by_type).family, ModelFamily::kLlama);
  EXPECT_EQ(parse(by_name).family, ModelFamily::kLlama);
  by_type.erase("model_type");
  EXPECT_EQ(refusal(by_type),
            "config.json: architectures is missing, expected one of LlamaForCausalLM, MistralForCausalLM, "
            "Qwen2ForCausalLM, Qwen3ForCausalLM");
}

TEST(ModelConfig, ReadsTheIdsOfBothForms) {
  const ModelConfig config = parse(with(llama(), {{"bos_token_id", 1}, {"eos_token_id", {2, 99}}}));
  EXPECT_EQ(config.bos_ids, (std::vector<int>{1}));
  EXPECT_EQ(config.eos_ids, (std::vector<int>{2, 99}));
  EXPECT_EQ(refusal(with(llama(), {{"eos_token_id", 100}})),
            "config.json: eos_token_id is 100, expected a token id below vocab_size 100, or a list of them");
}

TEST(ModelConfig, ReadsBothFormsOfRope) {
  const json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 128},
                        {"rope_type", "llama3"}};
  const RopeConfig old_form = parse(with(llama(), {{"rope_theta", 500000}, {"rope_scaling", scaling}})).rope;
  const RopeConfig new_form =
      parse(with(llama(), {{"rope_parameters", with(scaling, {{"rope_theta", 500000.0}})}})).rope;
  for (const RopeConfig& rope : {old_form, new_form}) {
    EXPECT_EQ(rope.type, RopeType::kLlama3);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.low_freq_factor, 1.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_positions, 128);
  }
  const RopeConfig linear = parse(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})).rope;
  EXPECT_EQ(linear.type, RopeType::kLinear);
  EXPECT_EQ(linear.factor, 2.0);
}

TEST(ModelConfig, ReadsYarnWithItsOptions) {
  const RopeConfig plain =
      parse(with(qwen2(),
                 {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}}}}))
          .rope;
  EXPECT_EQ(plain.type, RopeType::kYarn);
  EXPECT_EQ(plain.original_max_positions, 256);
  EXPECT_EQ(plain.beta_fast, 32.0);
  EXPECT_EQ(plain.beta_slow, 1.0);
  EXPECT_TRUE(plain.truncate);
  EXPECT_FALSE(plain.attention_factor || plain.mscale || plain.mscale_all_dim);

  const RopeConfig full = parse(with(qwen3(), {{"rope_parameters",
                                                {{"rope_type", "yarn"},
                                                 {"factor", 2},
                                                 {"beta_fast", 16},
                                                 {"beta_slow", 2},
                                                 {"truncate", false},
                                                 {"attention_factor", 1.5},
                                                 {"mscale", 0.7},
                                                 {"mscale_all_dim", 0}}}}))
                              .rope;
  EXPECT_EQ(full.original_max_positions, 512);  // max_position_embeddings
  EXPECT_EQ(full.beta_fast, 16.0);
  EXPECT_EQ(full.beta_slow, 2.0);
  EXPECT_FALSE(full.truncate);
  EXPECT_EQ(full.attention_factor, 1.5);
  EXPECT_EQ(full.mscale, 0.7);
  EXPECT_FALSE(full.mscale_all_dim);

  const json ratio = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 128}};
  json without_factor = llama();
  without_factor["rope_parameters"] = ratio;
  without_factor["rope_parameters"]["factor"] = nullptr;
  without_factor["rope_parameters"]["rope_type"] = "yarn";
  EXPECT_EQ(parse(without_factor).rope.factor, 4.0);  // 512 / 128
}

TEST(ModelConfig, RefusesOtherRotations) {
  EXPECT_EQ(refusal(with(llama(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}})),
            "config.json: rope_scaling: type is \"dynamic\", expected one of default, linear, llama3, yarn");
  // Its frequencies would be infinite, and every number after them NaN.
  EXPECT_NE(
      refusal(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 1e-300}}}})).find("factor is 1e-300"),
      std::string::npos);
  EXPECT_EQ(refusal(with(llama(), {{"rope_scaling", {{"factor", 2.0}}}})),
            "config.json: rope_scaling: type is missing, expected one of default, linear, llama3, yarn");
  EXPECT_EQ(refusal(with(llama(), {{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 2.0}}}})),
            "config.json: rope_parameters: low_freq_factor is missing, expected a number above 0 and at most 1000000");
  EXPECT_EQ(refusal(with(llama(), {{"rope_scaling", 3}})), "config.json: rope_scaling: expected an object, got 3");
  EXPECT_EQ(refusal(with(llama(), {{"partial_rotary_factor", 0.5}})),
            "config.json: partial_rotary_factor is 0.5, expected 1");
  EXPECT_EQ(refusal(with(llama(), {{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 1e6}}}})),
            "config.json: rope_parameters: rope_theta is 1000000.0, expected the same as rope_theta outside");
}

TEST(ModelConfig, KeepsAWindowOnlyWhereTheModelSlides) {
  EXPECT_EQ(parse(with(mistral(), {{"sliding_window", 256}})).sliding_window, 256);
  EXPECT_EQ(parse(mistral()).sliding_window, 0);
  const json sliding = {{"sliding_window", 256}, {"max_window_layers", 1}};
  EXPECT_EQ(parse(with(qwen2(), sliding)).sliding_window, 0);
  EXPECT_EQ(parse(with(qwen2(), with(sliding, {{"use_sliding_window", true}}))).sliding_window, 256);
  EXPECT_EQ(
      parse(with(qwen2(), with(sliding, {{"use_sliding_window", true}, {"max_window_layers", 2}}))).sliding_window, 0);
  EXPECT_EQ(
      refusal(with(qwen3(), {{"layer_types", {"full_attention", "linear_attention"}}})),
      "config.json: layer_types is [\"full_attention\",\"linear_attention\"], expected only \"full_attention\" and "
      "\"sliding_attention\"");
}

TEST(ModelConfig, RefusesWhatItCannotCompute) {
  const std::vector<std::pair<json, std::string>> cases = {
      {as_family(llama(), "gpt2", "GPT2LMHeadModel"),
       "architecture \"GPT2LMHeadModel\" is not supported; supported: LlamaForCausalLM, MistralForCausalLM, "
       "Qwen2ForCausalLM, Qwen3ForCausalLM"},
      {with(llama(), {{"model_type", "gemma"}}),
       "model_type \"gemma\" is not supported; supported: llama, mistral, qwen2, qwen3"},
      {with(llama(), {{"model_type", "qwen2"}}), "model_type is \"qwen2\", expected \"llama\", as architectures says"},
      {with(llama(), {{"architectures", "LlamaForCausalLM"}}),
       "architectures is \"LlamaForCausalLM\", expected a list of one class name"},
      {with(llama(), {{"hidden_act", "gelu"}}), "hidden_act is \"gelu\", expected \"silu\""},
      {with(llama(), {{"mlp_bias", true}}), "mlp_bias is true, expected false: biases in the MLP are not supported"},
      {with(mistral(), {{"attention_bias", true}}),
       "attention_bias is true, expected false: this family has no biases"},
      {with(llama(), {{"quantization_config", {{"bits", 4}}}}),
       "quantization_config is {\"bits\":4}, expected none: quantised weights are not supported"},
  };
  for (const auto& [config, reason] : cases) EXPECT_EQ(refusal(config), "config.json: " + reason);
}

TEST(ModelConfig, RefusesSizesThatCannotBe) {
  const std::vector<std::pair<json, std::string>> cases = {
      {with(llama(), {{"hidden_size", nullptr}}), "hidden_size is missing, expected an integer from 1 to 1000000"},
      {with(llama(), {{"hidden_size", "64"}}), "hidden_size is \"64\", expected an integer from 1 to 1000000"},
      {with(llama(), {{"hidden_size", 64.0}}), "hidden_size is 64.0, expected an integer from 1 to 1000000"},
      {with(llama(), {{"vocab_size", 0}}), "vocab_size is 0, expected an integer from 1 to 1000000"},
      {with(llama(), {{"vocab_size", -3}}), "vocab_size is -3, expected an integer from 1 to 1000000"},
      {with(llama(), {{"vocab_size", 18446744073709551615u}}),
       "vocab_size is 18446744073709551615, expected an integer from 1 to 1000000"},
      {with(llama(), {{"num_hidden_layers", 100000}}),
       "num_hidden_layers is 100000, expected an integer from 1 to 1000"},
      {with(llama(), {{"num_key_value_heads", 3}}),
       "num_key_value_heads is 3, expected a divisor of num_attention_heads 4"},
      {with(llama(), {{"num_attention_heads", 5}}), "num_attention_heads is 5, expected a divisor of hidden_size 64"},
      {with(llama(), {{"head_dim", 15}}), "head_dim is 15, expected an even number, not 15"},
      {with(llama(), {{"rms_norm_eps", "tiny"}}), "rms_norm_eps is \"tiny\", expected a number above 0 and at most 1"},
      {with(llama(), {{"tie_word_embeddings", 1}}), "tie_word_embeddings is 1, expected true or false"},
  };
  for (const auto& [config, reason] : cases) EXPECT_EQ(refusal(config), "config.json: " + reason);
  EXPECT_EQ(user_error([] { parse_model_config("[1]", "config.json"); }), "config.json: expected an object, got [1]");
}

TEST(ModelConfig, ReadsTheShippedModels) {
  const ModelConfig small = load_model_config(ref::source_path("tests/data/llama"));
  EXPECT_EQ(small.family, ModelFamily::kLlama);
  EXPECT_EQ(small.kv_heads, 2);
  EXPECT_EQ(small.head_dim, 16);
  EXPECT_EQ(small.rms_norm_eps, 1e-5);
  EXPECT_EQ(small.rope.theta, 500000.0);
  EXPECT_EQ(small.dtype, "bfloat16");
  const ModelConfig reference = load_model_config(ref::source_path("experiments/models/reference"));
  EXPECT_EQ(reference.family, ModelFamily::kQwen3);
  EXPECT_EQ(reference.layers, 8);
  EXPECT_EQ(reference.q_size(), 512);
  EXPECT_TRUE(reference.tie_word_embeddings && reference.qk_norm);
  EXPECT_EQ(reference.eos_ids, (std::vector<int>{0}));
}

}  // namespace
}  // namespace kv
