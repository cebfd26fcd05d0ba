#include "sim/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/hash.h"
#include "sim/mapped_file.h"
#include "sim/safetensors.h"
#include "sim/strict_json.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Calls visit(name, shape, vector) for every tensor of the config: names, shapes and members are said here only.
template <class Visit>
void for_each_tensor(ModelWeights& weights, Visit&& visit) {
  const ModelConfig& config = weights.config;
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size, vocab = config.vocab_size;
  const int64_t q = config.q_size(), kv = config.kv_size(), dim = config.head_dim;
  visit("model.embed_tokens.weight", {vocab, hidden}, weights.embedding);
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers[i];
    const std::string block = fmt::format("model.layers.{}.", i);
    const std::string attention = block + "self_attn.";
    visit(block + "input_layernorm.weight", {hidden}, layer.input_norm);
    visit(attention + "q_proj.weight", {q, hidden}, layer.q);
    visit(attention + "k_proj.weight", {kv, hidden}, layer.k);
    visit(attention + "v_proj.weight", {kv, hidden}, layer.v);
    visit(attention + "o_proj.weight", {hidden, q}, layer.o);
    if (config.qkv_bias) {
      visit(attention + "q_proj.bias", {q}, layer.q_bias);
      visit(attention + "k_proj.bias", {kv}, layer.k_bias);
      visit(attention + "v_proj.bias", {kv}, layer.v_bias);
    }
    if (config.o_bias) visit(attention + "o_proj.bias", {hidden}, layer.o_bias);
    if (config.qk_norm) {
      visit(attention + "q_norm.weight", {dim}, layer.q_norm);
      visit(attention + "k_norm.weight", {dim}, layer.k_norm);
    }
    visit(block + "post_attention_layernorm.weight", {hidden}, layer.post_norm);
    visit(block + "mlp.gate_proj.weight", {inner, hidden}, layer.gate);
    visit(block + "mlp.up_proj.weight", {inner, hidden}, layer.up);
    visit(block + "mlp.down_proj.weight", {hidden, inner}, layer.down);
  }
  visit("model.norm.weight", {hidden}, weights.final_norm);
  if (!config.tie_word_embeddings) visit("lm_head.weight", {vocab, hidden}, weights.lm_head);
}

// Which file of the folder holds each tensor: file name by tensor name.
using WeightMap = std::map<std::string, std::string>;

WeightMap parse_index(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const json index = parse_strict_json(file.text(), path.string());
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || found == index.end() || !found->is_object()) {
    throw UserError(fmt::format("{}: expected an object weight_map from tensor names to file names", path.string()));
  }
  WeightMap map;
  for (const auto& [tensor, shard] : found->items()) {
    // A shard lies beside its index: a path would let a download read elsewhere.
    if (!shard.is_string() || shard.get_ref<const std::string&>().empty() ||
        shard.get_ref<const std::string&>().find('/') != std::string::npos) {
      throw UserError(fmt::format("{}: tensor {}: {} is not the name of a file in the same folder", path.string(),
                                  in_quotes(tensor), shown(shard)));
    }
    map.emplace(tensor, shard.get<std::string>());
  }
  return map;
}

bool ignored(std::string_view tensor) { return tensor.ends_with(".rotary_emb.inv_freq") || tensor == "lm_head.weight"; }

class WeightFiles {
 public:
  explicit WeightFiles(const fs::path& folder) : folder_(folder) {
    if (fs::exists(folder / kSingleFile)) {
      for (const TensorInfo& tensor : shard(kSingleFile).tensors()) map_.emplace(tensor.name, kSingleFile);
      listing_ = (folder / kSingleFile).string();
    } else if (fs::exists(folder / kIndexFile)) {
      listing_ = (folder / kIndexFile).string();
      map_ = parse_index(listing_);
      for (const auto& [tensor, name] : map_) require_shard(tensor, name);
    } else {
      throw UserError(fmt::format("{}: expected {} or {} in the folder; other weight formats are not read",
                                  folder.string(), kSingleFile, kIndexFile));
    }
  }

  // Every tensor of the files has its place in the model: otherwise config and weights belong to different models.
  void refuse_unexpected(const std::set<std::string>& expected, const ModelConfig& config) const {
    for (const auto& [tensor, name] : map_) {
      if (expected.contains(tensor) || ignored(tensor)) continue;
      throw UserError(fmt::format("{}: tensor {} has no place in a {} model of {} layers as {} describes it", listing_,
                                  in_quotes(tensor), family_name(config.family), config.layers, kConfigFile));
    }
  }

  AlignedVector<float> read(const ExpectedTensor& expected) {
    const auto found = map_.find(expected.name);
    if (found == map_.end()) {
      throw UserError(fmt::format("{}: tensor {} is missing; {} asks for it with shape {}", listing_,
                                  in_quotes(expected.name), kConfigFile, shape_text(expected.shape)));
    }
    const SafetensorsFile& file = shard(found->second);
    const TensorInfo& tensor = file.require(expected.name);
    if (tensor.shape != expected.shape) {
      throw UserError(fmt::format("{}: tensor {}: shape {}, expected {} from {}", file.name(), in_quotes(tensor.name),
                                  shape_text(tensor.shape), shape_text(expected.shape), kConfigFile));
    }
    AlignedVector<float> values(tensor.elements());
    file.read_f32(tensor, 0, values);
    refuse_non_finite(values, tensor, file.name());
    return values;
  }

 private:
  const SafetensorsFile& shard(const std::string& name) {
    auto found = shards_.find(name);
    if (found == shards_.end()) found = shards_.emplace(name, SafetensorsFile::open(folder_ / name)).first;
    return found->second;
  }

  void require_shard(const std::string& tensor, const std::string& name) {
    if (!fs::exists(folder_ / name)) {
      throw UserError(fmt::format("{}: the shard is missing; {} places tensor {} in it", (folder_ / name).string(),
                                  kIndexFile, in_quotes(tensor)));
    }
    if (shard(name).find(tensor) == nullptr) {
      throw UserError(fmt::format("{}: tensor {} is missing, though {} places it here", (folder_ / name).string(),
                                  in_quotes(tensor), kIndexFile));
    }
  }

  static void refuse_non_finite(std::span<const float> values, const TensorInfo& tensor, const std::string& file) {
    const auto bad = std::find_if_not(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    if (bad == values.end()) return;
    int64_t flat = bad - values.begin();
    std::vector<int64_t> index(tensor.shape.size());
    for (std::size_t i = index.size(); i-- > 0;) {
      index[i] = flat % tensor.shape[i];
      flat /= tensor.shape[i];
    }
    throw UserError(fmt::format("{}: tensor {}: element {} is {}, expected finite weights", file,
                                in_quotes(tensor.name), shape_text(index), *bad));
  }

  fs::path folder_;
  std::string listing_;  // the file that says which tensors there are
  WeightMap map_;
  std::map<std::string, SafetensorsFile> shards_;
};

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  ModelWeights shapes;
  shapes.config = config;
  shapes.layers.resize(config.layers);
  std::vector<ExpectedTensor> expected;
  for_each_tensor(shapes, [&](std::string name, std::vector<int64_t> shape, AlignedVector<float>&) {
    expected.push_back({std::move(name), std::move(shape)});
  });
  return expected;
}

ModelWeights load_model(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw UserError(fmt::format("{}: expected a folder with {} and {}", folder.string(), kConfigFile, kSingleFile));
  }
  ModelWeights weights;
  weights.config = load_model_config(folder);
  weights.layers.resize(weights.config.layers);
  WeightFiles files(folder);
  std::set<std::string> names;
  for (const ExpectedTensor& tensor : expected_tensors(weights.config)) names.insert(tensor.name);
  files.refuse_unexpected(names, weights.config);
  for_each_tensor(weights, [&](std::string name, std::vector<int64_t> shape, AlignedVector<float>& values) {
    values = files.read({std::move(name), std::move(shape)});
  });
  return weights;
}

std::string fingerprint(const fs::path& folder) {
  std::set<std::string> names = {kConfigFile};
  if (fs::exists(folder / kSingleFile)) {
    names.insert(kSingleFile);
  } else {
    names.insert(kIndexFile);
    for (const auto& [tensor, shard] : parse_index(folder / kIndexFile)) names.insert(shard);
  }
  Sha256 hash;
  for (const std::string& name : names) {
    const MappedFile file = MappedFile::open(folder / name);
    // The size keeps one file's end from passing as the next one's beginning.
    hash.update(fmt::format("{}\n{}\n", name, file.bytes().size()));
    hash.update(file.bytes());
  }
  return hash.hex();
}

}  // namespace kv
