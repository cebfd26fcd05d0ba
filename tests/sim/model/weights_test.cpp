#include "sim/model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/backend.h"
#include "kernels/half.h"
#include "sim/io/hash.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

using nlohmann::json;
using test::TempFolder;
using test::user_error;

constexpr std::string_view kConfig = R"({"model_type": "qwen2", "hidden_size": 4, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 3, "vocab_size": 5,
  "max_position_embeddings": 16})";

constexpr const char* kValue = "model.layers.0.self_attn.v_proj.weight";  // [2, 4]
constexpr const char* kShard = "model-00002-of-00002.safetensors";

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Every weight distinct and exact in bf16: tensor t holds t + i / 64.
std::map<std::string, Tensor> tiny_tensors() {
  std::map<std::string, Tensor> tensors;
  for (const ExpectedTensor& expected : expected_tensors(parse_model_config(kConfig, "config.json"))) {
    int64_t size = 1;
    for (const int64_t extent : expected.shape) size *= extent;
    Tensor tensor{expected.shape, std::vector<float>(size)};
    for (int64_t i = 0; i < size; ++i) tensor.values[i] = static_cast<float>(tensors.size() % 2) + i / 64.0f;
    tensors[expected.name] = tensor;
  }
  return tensors;
}

void write_weights(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors) {
  std::vector<TensorData> data;
  data.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) data.push_back({name, Dtype::kF32, tensor.shape, tensor.values.data()});
  write_safetensors(path, data);
}

void write_single(const TempFolder& folder, const std::map<std::string, Tensor>& tensors) {
  test::write_file(folder / "config.json", kConfig);
  write_weights(folder / "model.safetensors", tensors);
}

// kValue alone in the second shard.
void write_sharded(const TempFolder& folder) {
  test::write_file(folder / "config.json", kConfig);
  std::map<std::string, Tensor> first = tiny_tensors();
  std::map<std::string, Tensor> second;
  second.insert(first.extract(kValue));
  json index;
  for (const auto& [name, tensor] : first) index["weight_map"][name] = "model-00001-of-00002.safetensors";
  index["weight_map"][kValue] = kShard;
  test::write_file(folder / "model.safetensors.index.json", index.dump());
  write_weights(folder / "model-00001-of-00002.safetensors", first);
  write_weights(folder / kShard, second);
}

// A folder's tensors on the CPU, whose activations are f32.
struct Loaded {
  std::unique_ptr<Backend> backend = make_backend("cpu");
  ModelTensors tensors;

  explicit Loaded(const std::filesystem::path& folder) : tensors(load_tensors(load_model(folder), *backend)) {}
};

std::vector<float> plain(const kv::Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensor.download(values.data(), tensor.bytes());
  return values;
}

std::string refusal(const TempFolder& folder) {
  return user_error([&] { Loaded{folder.path()}; });
}

TEST(Weights, SingleAndShardedFilesGiveTheSameModel) {
  const TempFolder single, sharded;
  const auto tensors = tiny_tensors();
  write_single(single, tensors);
  write_sharded(sharded);
  for (const TempFolder* folder : {&single, &sharded}) {
    const Loaded loaded(folder->path());
    const ModelTensors& model = loaded.tensors;
    ASSERT_EQ(model.layers.size(), 1u);
    const LayerTensors& layer = model.layers[0];
    EXPECT_EQ(plain(layer.v), tensors.at(kValue).values);
    EXPECT_EQ(plain(layer.q_bias), tensors.at("model.layers.0.self_attn.q_proj.bias").values);
    EXPECT_EQ(plain(layer.post_norm), tensors.at("model.layers.0.post_attention_layernorm.weight").values);
    EXPECT_EQ(plain(layer.down), tensors.at("model.layers.0.mlp.down_proj.weight").values);
    EXPECT_EQ(plain(model.output_embedding()), tensors.at("lm_head.weight").values);
    EXPECT_FALSE(layer.o_bias || layer.q_norm || layer.k_norm);
  }
}

TEST(Weights, ExpectsTheTensorsOfTheFamily) {
  std::map<std::string, std::vector<int64_t>> qwen2;
  for (const auto& [name, shape] : expected_tensors(parse_model_config(kConfig, "c"))) qwen2[name] = shape;
  EXPECT_EQ(qwen2.size(), 3u + 9u + 3u);  // embedding, norm, head; nine matrices and norms; three biases
  EXPECT_EQ(qwen2.at("model.layers.0.self_attn.k_proj.weight"), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(qwen2.at("model.layers.0.mlp.gate_proj.weight"), (std::vector<int64_t>{3, 4}));

  json config = json::parse(kConfig);
  config.update({{"model_type", "qwen3"}, {"head_dim", 6}, {"attention_bias", true}, {"tie_word_embeddings", true}});
  std::map<std::string, std::vector<int64_t>> qwen3;
  for (const auto& [name, shape] : expected_tensors(parse_model_config(config.dump(), "c"))) qwen3[name] = shape;
  EXPECT_EQ(qwen3.size(), 2u + 9u + 4u + 2u);  // no head; four biases, two norms
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.o_proj.weight"), (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.o_proj.bias"), (std::vector<int64_t>{4}));
  EXPECT_EQ(qwen3.at("model.layers.0.self_attn.q_norm.weight"), (std::vector<int64_t>{6}));
}

TEST(Weights, RefusesAFolderWithoutThem) {
  const TempFolder folder;
  EXPECT_EQ(user_error([&] { load_model(folder / "none"); }),
            (folder / "none").string() + ": expected a folder with config.json and model.safetensors");
  EXPECT_EQ(refusal(folder), (folder / "config.json").string() + ": cannot read: No such file or directory");
  test::write_file(folder / "config.json", kConfig);
  EXPECT_EQ(refusal(folder), folder.path().string() +
                                 ": expected model.safetensors or model.safetensors.index.json in the folder; other "
                                 "weight formats are not read");
}

TEST(Weights, NamesTheMissingTensor) {
  const TempFolder folder;
  auto tensors = tiny_tensors();
  tensors.erase(kValue);
  write_single(folder, tensors);
  EXPECT_EQ(refusal(folder), (folder / "model.safetensors").string() + ": tensor \"" + kValue +
                                 "\" is missing; config.json asks for it with shape [2, 4]");
}

TEST(Weights, NamesTheTensorOfAnotherShape) {
  const TempFolder folder;
  auto tensors = tiny_tensors();
  tensors[kValue].shape = {4, 2};
  write_single(folder, tensors);
  EXPECT_EQ(refusal(folder), (folder / "model.safetensors").string() + ": tensor \"" + kValue +
                                 "\": shape [4, 2], expected [2, 4] from config.json");
}

TEST(Weights, NamesTheTensorThatTheConfigDoesNotKnow) {
  const TempFolder folder;
  auto tensors = tiny_tensors();
  tensors["model.layers.0.self_attn.o_proj.bias"] = {{4}, {0, 0, 0, 0}};
  write_single(folder, tensors);
  EXPECT_EQ(refusal(folder),
            (folder / "model.safetensors").string() +
                ": tensor \"model.layers.0.self_attn.o_proj.bias\" has no place in a qwen2 model of 1 layers as "
                "config.json describes it");
}

TEST(Weights, IgnoresStoredRotaryFrequencies) {
  const TempFolder folder;
  auto tensors = tiny_tensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{1}, {1}};
  write_single(folder, tensors);
  EXPECT_NO_THROW(load_model(folder.path()));
}

TEST(Weights, NamesTheElementThatIsNotFinite) {
  const std::vector<std::pair<float, std::string>> cases = {{std::numeric_limits<float>::quiet_NaN(), "nan"},
                                                            {-std::numeric_limits<float>::infinity(), "-inf"}};
  for (const auto& [value, shown] : cases) {
    const TempFolder folder;
    auto tensors = tiny_tensors();
    tensors[kValue].values[4 + 3] = value;
    write_single(folder, tensors);
    EXPECT_EQ(refusal(folder), (folder / "model.safetensors").string() + ": tensor \"" + kValue +
                                   "\": element [1, 3] is " + shown + ", expected finite numbers");
  }
}

TEST(Weights, RefusesIntegerWeights) {
  const TempFolder folder;
  write_single(folder, tiny_tensors());
  const std::string bytes = test::read_file(folder / "model.safetensors");
  const std::size_t at = bytes.find("F32", bytes.find(kValue));
  test::write_file(folder / "model.safetensors", std::string(bytes).replace(at, 3, "I32"));
  EXPECT_EQ(refusal(folder), (folder / "model.safetensors").string() + ": tensor \"" + kValue +
                                 "\": dtype I32, expected F32, F16, BF16 or F64");
}

TEST(Weights, NamesTheMissingShard) {
  const TempFolder folder;
  write_sharded(folder);
  std::filesystem::remove(folder / kShard);
  EXPECT_EQ(refusal(folder), (folder / kShard).string() +
                                 ": the shard is missing; model.safetensors.index.json places tensor \"" + kValue +
                                 "\" in it");
}

TEST(Weights, NamesTheTruncatedShard) {
  const TempFolder folder;
  write_sharded(folder);
  std::filesystem::resize_file(folder / kShard, std::filesystem::file_size(folder / kShard) - 4);
  EXPECT_EQ(refusal(folder),
            (folder / kShard).string() + ": tensor \"" + kValue +
                "\": data_offsets [0,32] reach beyond the 28 bytes of data: the file is truncated or its "
                "header lies");
}

TEST(Weights, NamesTheTensorThatItsShardLacks) {
  const TempFolder folder;
  write_sharded(folder);
  write_weights(folder / kShard, {{"other", {{1}, {0}}}});
  EXPECT_EQ(refusal(folder), (folder / kShard).string() + ": tensor \"" + kValue +
                                 "\" is missing, though model.safetensors.index.json places it here");
}

TEST(Weights, RefusesAnIndexThatLies) {
  const TempFolder folder;
  write_sharded(folder);
  const auto index = folder / "model.safetensors.index.json";
  const std::string honest = test::read_file(index);
  test::write_file(index, test::replaced(honest, kShard, "../elsewhere.safetensors"));
  EXPECT_EQ(refusal(folder), index.string() + ": tensor \"" + kValue +
                                 "\": \"../elsewhere.safetensors\" is not the name of a file in the same folder");
  for (const char* text : {"[]", "{}", R"({"weight_map": 3})"}) {
    test::write_file(index, text);
    EXPECT_EQ(refusal(folder), index.string() + ": expected an object weight_map from tensor names to file names");
  }
}

TEST(Weights, FingerprintFollowsTheContentNotTheFolder) {
  const TempFolder a, b, sharded;
  write_single(a, tiny_tensors());
  write_single(b, tiny_tensors());
  write_sharded(sharded);
  EXPECT_EQ(fingerprint(a.path()), fingerprint(b.path()));
  EXPECT_NE(fingerprint(a.path()), fingerprint(sharded.path()));
  auto tensors = tiny_tensors();
  tensors[kValue].values[0] += 1;
  write_single(b, tensors);
  EXPECT_NE(fingerprint(a.path()), fingerprint(b.path()));
  const std::string before = fingerprint(sharded.path());
  test::write_file(sharded / "config.json", std::string(kConfig) + " ");
  EXPECT_NE(fingerprint(sharded.path()), before);
}

// Against the raw bytes of the shard: the embedding's rows as bf16.
TEST(Weights, ReadsTheReferenceModelFromItsShards) {
  const std::string folder = ref::source_path("experiments/models/reference");
  const Loaded loaded(folder);
  const ModelTensors& model = loaded.tensors;
  EXPECT_EQ(model.layers.size(), 8u);
  EXPECT_FALSE(model.lm_head);
  EXPECT_EQ(model.output_embedding().elements(), 8192 * 384);
  const std::vector<float> embedding = plain(model.embedding);
  const std::string bytes = test::read_file(folder + "/model-00001-of-00003.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const json header = json::parse(bytes.substr(8, length));
  const std::size_t begin = 8 + length + header["model.embed_tokens.weight"]["data_offsets"][0].get<std::size_t>();
  for (const std::size_t i : {0u, 1u, 383u, 384u, 8192u * 384u - 1}) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + begin + 2 * i, sizeof bits);
    EXPECT_EQ(embedding[i], bf16_to_f32(bits)) << i;
  }
}

TEST(Weights, ReadsTheSmallParityModels) {
  const Loaded llama(ref::source_path("tests/data/llama"));
  EXPECT_EQ(llama.tensors.lm_head.elements(), 1024 * 128);
  EXPECT_FALSE(llama.tensors.layers[0].q_norm);
  const Loaded qwen3(ref::source_path("tests/data/qwen3"));
  EXPECT_EQ(qwen3.tensors.layers[1].q_norm.elements(), 32);
  EXPECT_EQ(qwen3.tensors.layers[1].o.elements(), 128 * 256);
}

TEST(RandomWeights, AreSeededNormalMatricesAndNormsOfOne) {
  const auto backend = make_backend("cpu");
  json text = json::parse(kConfig);
  text["hidden_size"] = 64;
  text["vocab_size"] = 500;
  const ModelConfig config = parse_model_config(text.dump(), "c");
  const ModelTensors model = load_tensors(RandomWeights(config, 3), *backend);
  const std::vector<float> embedding = plain(model.embedding);
  double squares = 0;
  for (const float x : embedding) squares += double{x} * x;
  // Five standard errors of a variance over 32000 values: 5 · sqrt(2 / 32000) of it.
  EXPECT_NEAR(squares / 32000 / (0.02 * 0.02), 1, 5 * std::sqrt(2.0 / 32000));
  EXPECT_NE(std::count(embedding.begin(), embedding.end(), 0.0f), 32000);
  EXPECT_EQ(plain(model.layers[0].input_norm), std::vector<float>(64, 1.0f));
  EXPECT_EQ(plain(model.final_norm), std::vector<float>(64, 1.0f));
  EXPECT_NE(plain(model.layers[0].gate), plain(model.layers[0].up));  // a stream a tensor
  EXPECT_NE(plain(model.layers[0].q_bias), std::vector<float>(64, 0.0f));

  EXPECT_EQ(plain(load_tensors(RandomWeights(config, 3), *backend).embedding), embedding);
  EXPECT_NE(plain(load_tensors(RandomWeights(config, 4), *backend).embedding), embedding);
}

}  // namespace
}  // namespace kv
