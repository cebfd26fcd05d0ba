// RoPE frequencies against transformers, bit by bit (tests/data/rope).
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/model/model_config.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

nlohmann::json expected_cases() {
  std::ifstream file(ref::source_path("tests/data/rope/expected.json"));
  return nlohmann::json::parse(file);
}

TEST(RopeParity, FrequenciesOfEveryScalingHaveTransformersBits) {
  const nlohmann::json cases = expected_cases();
  ASSERT_EQ(cases.size(), 18u);
  for (const nlohmann::json& expected : cases) {
    SCOPED_TRACE(expected["config"].dump());
    const ModelConfig config = parse_model_config(expected["config"].dump(), "config.json");
    const Rope rope = make_rope(config.rope, config.head_dim);
    std::vector<uint32_t> bits;
    for (const float frequency : rope.inv_freq) bits.push_back(std::bit_cast<uint32_t>(frequency));
    EXPECT_EQ(bits, expected["inv_freq_bits"].get<std::vector<uint32_t>>());
    EXPECT_EQ(rope.attention_factor, expected["attention_factor"].get<double>());
  }
}

TEST(RopeParity, CoversEveryScaling) {
  std::vector<bool> covered(4);
  for (const nlohmann::json& expected : expected_cases()) {
    covered.at(static_cast<size_t>(parse_model_config(expected["config"].dump(), "config.json").rope.type)) = true;
  }
  EXPECT_EQ(covered, std::vector<bool>(4, true));
}

}  // namespace
}  // namespace kv
