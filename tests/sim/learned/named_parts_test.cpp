#include "sim/learned/named_parts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kv {
namespace {

// Two layers of two heads: a number of the model's, two of each layer's, one of each head's, in this order: the
// model's, layer 0's, its heads', layer 1's, its heads'.
const std::vector<LearnedPart> kParts = {
    {"of_head", {}}, {"of_layer", {2}, LearnedScope::kLayer}, {"of_model", {}, LearnedScope::kModel}};

std::vector<float> counted(int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(NamedParts, ReadAndWriteAPartOfAllOwners) {
  const NamedParts named(kParts, 2, 2);
  ASSERT_EQ(named.elements(), 1 + 2 * (2 + 2));
  std::vector<float> parameters = counted(named.elements());
  EXPECT_EQ(named.read("of_model", parameters), (std::vector<float>{0}));
  EXPECT_EQ(named.read("of_layer", parameters), (std::vector<float>{1, 2, 5, 6}));
  EXPECT_EQ(named.read("of_head", parameters), (std::vector<float>{3, 4, 7, 8}));
  EXPECT_TRUE(named.read("of_nobody", parameters).empty());
  const std::vector<float> ours = {-1, -2, -3, -4};
  named.write("of_head", ours, parameters);
  EXPECT_EQ(parameters, (std::vector<float>{0, 1, 2, -1, -2, 5, 6, -3, -4}));
}

TEST(NamedParts, ShowAnOwnersWhereTheyLie) {
  const NamedParts named(kParts, 2, 2);
  std::vector<float> parameters = counted(named.elements());
  const std::span<float> of_layer = named.of_owner("of_layer", 1, std::span(parameters));
  EXPECT_EQ((std::vector<float>{of_layer.begin(), of_layer.end()}), (std::vector<float>{5, 6}));
  EXPECT_EQ(of_layer.data(), parameters.data() + 5);
  EXPECT_EQ(named.of_owner("of_head", 3, std::span<const float>(parameters)).front(), 8);
}

TEST(NamedParts, AddSlopesWhereTheirParametersAre) {
  const NamedParts named(kParts, 2, 2);
  std::vector<double> gradient(9, 0.5);
  const std::vector<float> slopes = {1, 2, 3, 4};
  named.add("of_layer", slopes, gradient);
  EXPECT_EQ(gradient, (std::vector<double>{0.5, 1.5, 2.5, 0.5, 0.5, 3.5, 4.5, 0.5, 0.5}));
}

TEST(NamedParts, KnowWhoseAParameterIs) {
  const NamedParts named(kParts, 2, 2);
  EXPECT_EQ(named.place_of(0), "of_model");
  EXPECT_EQ(named.place_of(6), "layer 1: of_layer");
  EXPECT_EQ(named.place_of(4), "layer 0, KV head 1: of_head");
  EXPECT_EQ(named.place_of(7), "layer 1, KV head 0: of_head");
}

}  // namespace
}  // namespace kv
