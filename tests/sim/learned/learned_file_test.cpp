#include "sim/learned/learned_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <numeric>

#include "sim/io/safetensors.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::user_error;

// Two layers of two KV heads, whose parameters are 0, 1, 2, …: a matrix [3, 2], a vector [2] and a number, 9 a head.
LearnedFile example() {
  LearnedFile learned{.learner = "learner",
                      .model = "tiny",
                      .fingerprint = "0123456789abcdef",
                      .settings = {{"features", "paper"}, {"hidden", "2"}},
                      .origin = R"({"commit":"c"})",
                      .layers = 2,
                      .kv_heads = 2,
                      .parts = {{"matrix", {3, 2}}, {"vector", {2}}, {"number", {}}}};
  learned.parameters.resize(2 * 2 * 9);
  std::iota(learned.parameters.begin(), learned.parameters.end(), 0.0F);
  return learned;
}

class LearnedFiles : public testing::Test {
 protected:
  // Of a trace or of random weights: a shape and no files.
  static ModelIdentity identity(int layers, int kv_heads) {
    return {"", [=] { return ModelIdentity::Shape{layers, kv_heads}; }};
  }
  std::string written(const LearnedFile& learned) const {
    write_learned(path_, learned);
    return path_.string();
  }
  std::string refusal(const std::map<std::string, std::string>& settings = {}, int layers = 2,
                      std::string_view owner = "learner") const {
    return user_error([&] { check_learned(path_, owner, identity(layers, 2), settings); });
  }

  test::TempFolder folder_;
  std::filesystem::path path_ = folder_ / "weights.safetensors";
};

TEST_F(LearnedFiles, KeepEveryNumberAndWhatItIsOf) {
  const LearnedFile before = example();
  written(before);
  const LearnedFile after = read_learned(path_, "learner");
  EXPECT_EQ(after.learner, before.learner);
  EXPECT_EQ(after.model, before.model);
  EXPECT_EQ(after.fingerprint, before.fingerprint);
  EXPECT_EQ(after.settings, before.settings);
  EXPECT_EQ(after.origin, before.origin);
  EXPECT_EQ(after.layers, 2);
  EXPECT_EQ(after.kv_heads, 2);
  EXPECT_EQ(parameters_as(after, before.parts, "learner"), before.parameters);
}

// Others read the file, too: a tensor a part, layers and heads first. Head (1, 0) begins with parameter 18.
TEST_F(LearnedFiles, HoldATensorAPart) {
  written(example());
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.require("matrix").shape, (std::vector<int64_t>{2, 2, 3, 2}));
  EXPECT_EQ(file.require("vector").shape, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(file.require("number").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.read_f32(file.require("number")), (std::vector<float>{8, 17, 26, 35}));
  EXPECT_EQ(file.read_f32(file.require("matrix"))[2 * 6], 18);
  EXPECT_EQ(file.metadata().at("setting.hidden"), "2");
}

TEST_F(LearnedFiles, HoldNumbersOfElevenBits) {
  LearnedFile learned = example();
  learned.parameters[0] = 1 + 0x1p-11F;  // halfway, to the even one
  learned.parameters[1] = -0.1F;
  written(learned);
  const std::vector<float> read = parameters_as(read_learned(path_, "learner"), learned.parts, "learner");
  EXPECT_EQ(read[0], 1);
  EXPECT_NEAR(read[1], -0.1F, 0.1F * 0x1p-11F);
}

TEST_F(LearnedFiles, HoldSinglePrecisionWhereHalfIsTooSmall) {
  LearnedFile learned = example();
  learned.parameters[0] = 1 + 0x1p-11F;
  learned.parameters[1] = 70000;
  written(learned);
  EXPECT_EQ(parameters_as(read_learned(path_, "learner"), learned.parts, "learner"), learned.parameters);
}

TEST_F(LearnedFiles, GiveTheirPartsInAnyOrder) {
  const LearnedFile learned = example();
  const std::vector<LearnedPart> turned = {learned.parts[2], learned.parts[0], learned.parts[1]};
  const std::vector<float> parameters = parameters_as(learned, turned, "learner");
  EXPECT_EQ(std::vector<float>(parameters.begin() + 9, parameters.begin() + 18),
            (std::vector<float>{17, 9, 10, 11, 12, 13, 14, 15, 16}));
}

TEST_F(LearnedFiles, RefuseAPartOfAnotherShape) {
  const LearnedFile learned = example();
  const std::vector<LearnedPart> wider = {{"matrix", {4, 2}}}, other = {{"gate", {2}}};
  EXPECT_EQ(user_error([&] { parameters_as(learned, wider, "learner"); }),
            "learner: learned weights have 'matrix' as [3, 2], expected [4, 2] a KV head; they are of another shape of "
            "model");
  EXPECT_EQ(user_error([&] { parameters_as(learned, other, "learner"); }),
            "learner: learned weights have 'gate' as nothing, expected [2] a KV head; they are of another shape of "
            "model");
}

TEST_F(LearnedFiles, AreRefusedWhereTheyAreOfSomethingElse) {
  EXPECT_EQ(refusal(), "learner: there are no learned weights " + path_.string() + "; `kvlab train SPEC` makes one");
  const std::string file = written(example());
  EXPECT_EQ(check_learned(path_, "learner", identity(2, 2), {{"hidden", "2"}}).front().path, path_);
  EXPECT_EQ(refusal({}, 2, "gate"), "gate: " + file + " was learned for learner; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal({{"features", "code"}}),
            "learner: " + file + " was learned with features: paper, expected code; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal({{"margin", "1"}}),
            "learner: " + file + " was learned with margin: nothing, expected 1; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal({}, 3),
            "learner: " + file + " is for 2 layers of 2 KV heads, expected 3 of 2; `kvlab train SPEC` makes one");
}

// The same shape is not enough where a model has files: those that were learned with must be these.
TEST_F(LearnedFiles, AreRefusedForAnotherModelOfTheSameShape) {
  const std::string file = written(example());
  test::write_file(folder_ / "config.json", "{}");
  test::write_file(folder_ / "model.safetensors", "weights");
  const ModelIdentity model(folder_.path(), [] { return ModelIdentity::Shape{2, 2}; });
  const std::string message = user_error([&] { check_learned(path_, "learner", model, {}); });
  EXPECT_TRUE(
      message.starts_with("learner: " + file + " is for model tiny with files of SHA-256 0123456789ab…, expected "))
      << message;
}

TEST_F(LearnedFiles, AreRefusedWhereTheyHoldWhatIsNoNumber) {
  LearnedFile spoiled = example();
  spoiled.parameters[9 + 6] = std::numeric_limits<float>::quiet_NaN();
  const std::string file = written(spoiled);
  EXPECT_EQ(refusal(), "learner: " + file + ": tensor 'vector' holds nan at index 2, expected finite numbers");
}

TEST_F(LearnedFiles, AreRefusedWhereTheyAreNotOfTheFormat) {
  const std::vector<float> values(4, 1.0F);
  const auto write = [&](const Metadata& metadata, std::vector<int64_t> shape) {
    const TensorData tensors[] = {
        {.name = "w", .dtype = Dtype::kF32, .shape = std::move(shape), .data = values.data()}};
    write_safetensors(path_, tensors, metadata);
  };
  const Metadata good = {{"format", "kvlab-learned"}, {"version", "1"},      {"learner", "learner"},
                         {"model", "tiny"},           {"model_sha256", "0"}, {"made", "{}"}};
  const std::string file = path_.string();
  write({}, {2, 2});
  EXPECT_EQ(refusal(), "learner: " + file + " lacks 'format' in its metadata; `kvlab train SPEC` makes one");
  Metadata other = good;
  other["version"] = "2";
  write(other, {2, 2});
  EXPECT_EQ(refusal(), "learner: " + file + " is no kvlab-learned of version 1; `kvlab train SPEC` makes one");
  Metadata nameless = good;
  nameless.erase("model");
  write(nameless, {2, 2});
  EXPECT_EQ(refusal(), "learner: " + file + " lacks 'model' in its metadata; `kvlab train SPEC` makes one");
  write(good, {4});
  EXPECT_EQ(refusal(),
            "learner: " + file + ": tensor 'w' is F32 [4], expected F16 or F32 [layers, KV heads, …] as the others");
}

TEST_F(LearnedFiles, AreRefusedWhereTheyChangeBetweenCheckAndUse) {
  written(example());
  const InputFile checked = check_learned(path_, "learner", identity(2, 2), {}).front();
  EXPECT_EQ(load_learned(checked, "learner").parts.size(), 3u);
  LearnedFile other = example();
  other.parameters[0] = 5;
  written(other);
  const std::string message = user_error([&] { load_learned(checked, "learner"); });
  EXPECT_TRUE(message.starts_with("learner: " + path_.string() + " has changed since it was checked: SHA-256 "))
      << message;
}

TEST(LearnedPath, IsANameInTheModelsFolderOrAPath) {
  EXPECT_EQ(learned_path("model", "foresight-kv"), "model/learned/foresight-kv.safetensors");
  EXPECT_EQ(learned_path("model", "/elsewhere/w.safetensors"), "/elsewhere/w.safetensors");
}

}  // namespace
}  // namespace kv
