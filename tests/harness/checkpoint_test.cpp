#include "harness/checkpoint.h"

#include <gtest/gtest.h>

#include "sim/io/safetensors.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

Checkpoint example() {
  return {.state = {.step = 2,
                    .parameters = {0.1F, -2, 3e-30F},
                    .adam = {.steps = 2, .mean = {1, 2, 3}, .square = {4, 5, 6}}},
          .metrics = {"loss", "gradient_norm"},
          .values = {{1.0 / 3, 1e300}, {0.1 + 0.2, -0.0}},
          .seconds = 12.5};
}

class Checkpoints : public testing::Test {
 protected:
  std::string refusal() const {
    return test::user_error([&] { read_checkpoint(path_); });
  }
  // The file with its metadata changed.
  void rewrite(const Metadata& metadata, std::vector<int64_t> shape = {2, 2}) const {
    const std::vector<double> values(static_cast<size_t>(shape[0] * shape[1]), 0.0);
    const std::vector<float> parameters(3, 0.0F);
    const TensorData tensors[] = {
        {.name = "values", .dtype = Dtype::kF64, .shape = std::move(shape), .data = values.data()},
        {.name = "parameters", .dtype = Dtype::kF32, .shape = {3}, .data = parameters.data()},
        {.name = "adam.mean", .dtype = Dtype::kF32, .shape = {3}, .data = parameters.data()},
        {.name = "adam.square", .dtype = Dtype::kF32, .shape = {3}, .data = parameters.data()}};
    write_safetensors(path_, tensors, metadata);
  }

  test::TempFolder folder_;
  std::filesystem::path path_ = folder_ / "checkpoint.safetensors";
};

// Rows of a resumed run are those of an undisturbed one, so doubles keep their bits.
TEST_F(Checkpoints, KeepEveryBit) {
  const Checkpoint before = example();
  write_checkpoint(path_, before);
  const std::optional<Checkpoint> after = read_checkpoint(path_);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->state.step, 2);
  EXPECT_EQ(after->state.parameters, before.state.parameters);
  EXPECT_EQ(after->state.adam.steps, 2);
  EXPECT_EQ(after->state.adam.mean, before.state.adam.mean);
  EXPECT_EQ(after->state.adam.square, before.state.adam.square);
  EXPECT_EQ(after->metrics, before.metrics);
  EXPECT_EQ(after->values, before.values);
  EXPECT_EQ(after->seconds, 12.5);
}

TEST_F(Checkpoints, AreNoneWhereNothingHasBegun) { EXPECT_FALSE(read_checkpoint(path_)); }

TEST_F(Checkpoints, AreRefusedWhereTheyAreDamaged) {
  const std::string file = path_.string(), hint = "; remove it, or start over with --fresh";
  const Metadata good = {{"format", "kvlab-checkpoint"},
                         {"step", "2"},
                         {"adam_steps", "2"},
                         {"metrics", R"(["a", "b"])"},
                         {"seconds", "1"}};
  rewrite(good);
  EXPECT_EQ(read_checkpoint(path_)->values.size(), 2u);
  Metadata other = good;
  other["format"] = "pt";
  rewrite(other);
  EXPECT_EQ(refusal(), file + ": is no checkpoint" + hint);
  Metadata lost = good;
  lost.erase("step");
  rewrite(lost);
  EXPECT_EQ(refusal(), file + ": its metadata lack a number 'step'" + hint);
  Metadata nameless = good;
  nameless["metrics"] = "[1]";
  rewrite(nameless);
  EXPECT_EQ(refusal(), file + ": its metadata lack a list of names 'metrics'" + hint);
  rewrite(good, {3, 2});
  EXPECT_EQ(refusal(), file + ": 'values' is F64 [3, 2], expected F64 [2, 2]" + hint);
  test::write_file(path_, "cut off");
  EXPECT_TRUE(refusal().starts_with(file) && refusal().ends_with(hint)) << refusal();
}

}  // namespace
}  // namespace kv
