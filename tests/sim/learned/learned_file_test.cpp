#include "sim/learned/learned_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <numeric>

#include "sim/io/safetensors.h"
#include "sim/io/xz.h"
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

// The same model, of which only the matrix is a head's: a vector [2] and a number of each layer, a matrix [2, 2] and a
// number of the model's. 0 to 4 are the model's; each layer has 3 and its heads 6 each.
LearnedFile shared_example() {
  LearnedFile learned = example();
  learned.parts = {{"layer.vector", {2}, LearnedScope::kLayer},
                   {"head.matrix", {3, 2}},
                   {"model.matrix", {2, 2}, LearnedScope::kModel},
                   {"layer.number", {}, LearnedScope::kLayer},
                   {"model.number", {}, LearnedScope::kModel}};
  learned.parameters.resize(5 + 2 * (3 + 2 * 6));
  std::iota(learned.parameters.begin(), learned.parameters.end(), 0.0F);
  return learned;
}

TEST(LearnedLayout, IsTheModelsThenLayerByLayer) {
  const LearnedFile learned = shared_example();
  const LearnedLayout layout = learned.layout();
  EXPECT_EQ(layout.elements(), 35);
  const auto firsts = [&](size_t part) {
    std::vector<int64_t> all;
    for (int64_t owner = 0; owner < layout.owners(part); ++owner) all.push_back(layout.first(part, owner));
    return all;
  };
  EXPECT_EQ(firsts(0), (std::vector<int64_t>{5, 20}));
  EXPECT_EQ(firsts(1), (std::vector<int64_t>{8, 14, 23, 29}));
  EXPECT_EQ(firsts(2), (std::vector<int64_t>{0}));
  EXPECT_EQ(firsts(3), (std::vector<int64_t>{7, 22}));
  EXPECT_EQ(firsts(4), (std::vector<int64_t>{4}));
  EXPECT_EQ(elements_of(learned.parts), 6);
  EXPECT_EQ(elements_of(learned.parts, LearnedScope::kLayer), 3);
  EXPECT_EQ(elements_of(learned.parts, LearnedScope::kModel), 5);
}

// What wants exactly those parts, on any model.
LearnedDemand demand_of(const LearnedFile& learned, std::map<std::string, std::string> settings = {}) {
  return {.settings = std::move(settings),
          .parts = [parts = learned.parts](const LearnedFile&, const SourceInfo&) { return parts; }};
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
    return user_error([&] { check_learned(path_, owner, identity(layers, 2), demand_of(example(), settings)); });
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

TEST_F(LearnedFiles, HoldWhatHeadsOrLayersShareOnce) {
  const LearnedFile before = shared_example();
  written(before);
  const SafetensorsFile file = SafetensorsFile::open(path_);
  EXPECT_EQ(file.require("head.matrix").shape, (std::vector<int64_t>{2, 2, 3, 2}));
  EXPECT_EQ(file.require("layer.vector").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.require("layer.number").shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(file.require("model.matrix").shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.require("model.number").shape, (std::vector<int64_t>{}));
  EXPECT_EQ(file.read_f32(file.require("layer.vector")), (std::vector<float>{5, 6, 20, 21}));
  EXPECT_EQ(file.read_f32(file.require("model.matrix")), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(file.metadata().at("scope.model.number"), "model");
  EXPECT_FALSE(file.metadata().contains("scope.head.matrix"));

  const LearnedFile after = read_learned(path_, "learner");
  EXPECT_EQ(after.layers, 2);
  EXPECT_EQ(after.kv_heads, 2);
  EXPECT_EQ(parameters_as(after, before.parts, "learner"), before.parameters);
  EXPECT_EQ(check_learned(path_, "learner", identity(2, 2), demand_of(before)).size(), 1U);
  EXPECT_NE(refusal({}, 3).find("is for 2 layers of 2 KV heads, expected 3 of 2"), std::string::npos);
}

// Where nothing is a head's, no tensor has an axis of them.
TEST_F(LearnedFiles, KnowTheirHeadsWhereNoTensorDoes) {
  LearnedFile learned = shared_example();
  learned.parts.erase(learned.parts.begin() + 1);
  learned.parameters.resize(5 + 2 * 3);
  written(learned);
  const LearnedFile read = read_learned(path_, "learner");
  EXPECT_EQ(read.kv_heads, 2);
  EXPECT_EQ(parameters_as(read, learned.parts, "learner"), learned.parameters);
}

// As those are that were written before there were other owners.
TEST_F(LearnedFiles, SayNothingOfOwnersWhereAllAreHeads) {
  written(example());
  const Metadata metadata = SafetensorsFile::open(path_).metadata();
  EXPECT_FALSE(metadata.contains("layers") || metadata.contains("kv_heads"));
  for (const auto& [key, value] : metadata) EXPECT_FALSE(key.starts_with("scope.")) << key;
}

TEST_F(LearnedFiles, AreRefusedWhereOwnersAreNotAsTheySay) {
  const std::vector<float> values(4, 1.0F);
  const TensorData tensors[] = {{.name = "w", .dtype = Dtype::kF32, .shape = {2, 2}, .data = values.data()}};
  const auto refusal_of = [&](const Metadata& more) {
    Metadata metadata = {{"format", "kvlab-learned"}, {"version", "1"},      {"learner", "learner"},
                         {"model", "tiny"},           {"model_sha256", "0"}, {"made", "{}"}};
    metadata.insert(more.begin(), more.end());
    write_safetensors(path_, tensors, metadata);
    return refusal();
  };
  const std::string start = "learner: " + path_.string();
  EXPECT_EQ(refusal_of({{"scope.w", "layer"}, {"kv_heads", "1"}}),
            start + " lacks 'layers' in its metadata; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal_of({{"scope.w", "layer"}, {"layers", "3"}, {"kv_heads", "1"}}),
            start + ": tensor 'w' is F32 [2, 2], expected F16, BF16 or F32 [layers, …] as the others");
  EXPECT_EQ(refusal_of({{"scope.w", "layer"}, {"layers", "2x"}, {"kv_heads", "1"}}),
            start + " says layers: '2x', expected a number from 1 to 65536; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal_of({{"scope.w", "group"}, {"layers", "2"}, {"kv_heads", "1"}}),
            start + ": tensor 'w' is of a 'group', expected layer or model; `kvlab train SPEC` makes one");
  EXPECT_EQ(refusal_of({{"scope.w", "layer"}, {"layers", "2"}, {"kv_heads", "3"}}),
            start + " is for 2 layers of 3 KV heads, expected 2 of 2; `kvlab train SPEC` makes one");
}

TEST_F(LearnedFiles, MayLiePacked) {
  const LearnedFile learned = example();
  written(learned);
  const std::vector<InputFile> plain = check_learned(path_, "learner", identity(2, 2), demand_of(example()));
  test::write_file(path_.string() + ".xz", xz(test::read_file(path_)));
  std::filesystem::remove(path_);
  const std::vector<InputFile> packed = check_learned(path_, "learner", identity(2, 2), demand_of(example()));
  EXPECT_EQ(packed.front().sha256, plain.front().sha256) << "results state the same weights";
  EXPECT_EQ(parameters_as(load_learned(packed.front(), "learner"), learned.parts, "learner"), learned.parameters);
}

TEST_F(LearnedFiles, HoldMatricesOfEightBitsAndTheRestAsItIs) {
  LearnedFile learned = example();
  learned.parameters[0] = 1 + 0x1p-8F;  // of the matrix; halfway, to the even one
  learned.parameters[1] = -70001;
  learned.parameters[6] = 1 + 0x1p-8F;  // of the vector
  learned.parameters[8] = 70001;        // the number
  written(learned);
  const std::vector<float> read = parameters_as(read_learned(path_, "learner"), learned.parts, "learner");
  EXPECT_EQ(read[0], 1);
  EXPECT_NEAR(read[1], -70001, 70001 * 0x1p-8F);
  EXPECT_NE(read[1], -70001);
  EXPECT_EQ(read[6], 1 + 0x1p-8F);
  EXPECT_EQ(read[8], 70001);
  EXPECT_EQ(read, as_stored(learned));
}

// As they were written before matrices had eight bits.
TEST_F(LearnedFiles, OfElevenBitsAreRead) {
  const std::vector<uint16_t> values = {0x3c00, 0x3c01, 0xc000, 0};
  const TensorData tensors[] = {{.name = "w", .dtype = Dtype::kF16, .shape = {2, 2}, .data = values.data()}};
  write_safetensors(path_, tensors,
                    {{"format", "kvlab-learned"},
                     {"version", "1"},
                     {"learner", "learner"},
                     {"model", "tiny"},
                     {"model_sha256", "0"},
                     {"made", "{}"}});
  EXPECT_EQ(read_learned(path_, "learner").parameters, (std::vector<float>{1, 1 + 0x1p-10F, -2, 0}));
}

TEST(LearnedSetting, IsANumberInItsRange) {
  LearnedFile learned = example();
  learned.settings = {{"width", "0.75"}, {"word", "wide"}, {"cut", "2x"}};
  EXPECT_EQ(learned_setting(learned, "width", 0.5, 16, "learner"), 0.75);
  EXPECT_EQ(user_error([&] { learned_setting(learned, "width", 1, 16, "learner"); }),
            "learner: what was learned for tiny says width: '0.75', expected a number from 1 to 16; `kvlab train SPEC` "
            "makes one");
  for (const char* none : {"word", "cut", "absent"}) {
    EXPECT_NE(user_error([&] { learned_setting(learned, none, 0, 16, "learner"); }).find(none), std::string::npos);
  }
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
  const std::string why = ": of another shape of model, or of other settings than it says";
  EXPECT_EQ(user_error([&] { parameters_as(learned, wider, "learner"); }),
            "learner: learned weights: 'matrix' is [3, 2] a KV head, expected [4, 2] a KV head" + why);
  EXPECT_EQ(user_error([&] { parameters_as(learned, other, "learner"); }),
            "learner: learned weights: 'gate' is nothing, expected [2] a KV head" + why);
  const std::vector<LearnedPart> of_layers = {{"vector", {2}, LearnedScope::kLayer}};
  EXPECT_EQ(user_error([&] { parameters_as(learned, of_layers, "learner"); }),
            "learner: learned weights: 'vector' is [2] a KV head, expected [2] a layer" + why);
  const std::vector<LearnedPart> fewer = {learned.parts[0], learned.parts[1]};
  EXPECT_EQ(user_error([&] { parameters_as(learned, fewer, "learner"); }),
            "learner: learned weights: 'number' is [] a KV head, expected nothing" + why);
}

// Before anything runs: what is found out when a case begins is that case's alone.
TEST_F(LearnedFiles, AreRefusedWhereTheirTensorsDoNotFitTheModel) {
  const std::string file = written(example());
  const ModelIdentity model("", [] { return ModelIdentity::Shape{.layers = 2, .kv_heads = 2, .head_dim = 4}; });
  const LearnedDemand demand{.parts = [](const LearnedFile&, const SourceInfo& info) {
    std::vector<LearnedPart> parts = example().parts;
    parts[0].shape = {3, info.head_dim};
    return parts;
  }};
  EXPECT_EQ(user_error([&] { check_learned(path_, "learner", model, demand); }),
            "learner: " + file +
                ": 'matrix' is [3, 2] a KV head, expected [3, 4] a KV head: of another shape of model, or of other "
                "settings than it says");
}

TEST_F(LearnedFiles, AreRefusedWhereTheyAreOfSomethingElse) {
  EXPECT_EQ(refusal(), "learner: there are no learned weights " + path_.string() + "; `kvlab train SPEC` makes one");
  const std::string file = written(example());
  EXPECT_EQ(check_learned(path_, "learner", identity(2, 2), demand_of(example(), {{"hidden", "2"}})).front().path,
            path_);
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
  const std::string message = user_error([&] { check_learned(path_, "learner", model, demand_of(example())); });
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
  EXPECT_EQ(refusal(), "learner: " + file +
                           ": tensor 'w' is F32 [4], expected F16, BF16 or F32 [layers, KV heads, …] as the others");
}

TEST_F(LearnedFiles, AreRefusedWhereTheyChangeBetweenCheckAndUse) {
  written(example());
  const InputFile checked = check_learned(path_, "learner", identity(2, 2), demand_of(example())).front();
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
