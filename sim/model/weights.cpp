#include "sim/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/random_normal.h"
#include "sim/io/finite.h"
#include "sim/io/hash.h"
#include "sim/io/mapped_file.h"
#include "sim/io/strict_json.h"
#include "sim/model/activations.h"
#include "sim/model/footprint.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kPieceValues = 1 << 24;
constexpr float kRandomSigma = 0.02f;

// Calls visit(name, shape, tensor) for every tensor of the config: names, shapes and members are said here only.
template <class Visit>
void for_each_tensor(const ModelConfig& config, ModelTensors& weights, Visit&& visit) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size, vocab = config.vocab_size;
  const int64_t q = config.q_size(), kv = config.kv_size(), dim = config.head_dim;
  visit("model.embed_tokens.weight", {vocab, hidden}, weights.embedding);
  for (int i = 0; i < config.layers; ++i) {
    LayerTensors& layer = weights.layers[static_cast<size_t>(i)];
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
std::map<std::string, std::string> parse_index(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const json index = parse_strict_json(file.text(), path.string());
  const auto found = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || found == index.end() || !found->is_object()) {
    throw UserError(fmt::format("{}: expected an object weight_map from tensor names to file names", path.string()));
  }
  std::map<std::string, std::string> map;
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

// Every stream of one seed its own: FNV-1a of the tensor's name (Fowler, Noll and Vo).
uint64_t stream_of(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed ^ hash;
}

}  // namespace

int64_t ExpectedTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  ModelTensors places;
  places.layers.resize(static_cast<size_t>(config.layers));
  std::vector<ExpectedTensor> expected;
  for_each_tensor(config, places, [&](std::string name, std::vector<int64_t> shape, Tensor&) {
    expected.push_back({std::move(name), std::move(shape)});
  });
  return expected;
}

int64_t parameters_of(const ModelConfig& config) {
  int64_t sum = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) sum += tensor.elements();
  return sum;
}

ModelFiles::ModelFiles(const fs::path& folder) : folder_(folder) {
  if (!fs::is_directory(folder)) {
    throw UserError(fmt::format("{}: expected a folder with {} and {}", folder.string(), kConfigFile, kSingleFile));
  }
  config_ = load_model_config(folder);
  open_files();
  refuse_unexpected();
  for (const ExpectedTensor& tensor : expected_tensors(config_)) check(tensor);
}

void ModelFiles::open_shard(const std::string& name) {
  if (!files_.contains(name)) files_.emplace(name, SafetensorsFile::open(folder_ / name));
}

void ModelFiles::open_files() {
  if (fs::exists(folder_ / kSingleFile)) {
    listing_ = (folder_ / kSingleFile).string();
    open_shard(kSingleFile);
    for (const TensorInfo& tensor : files_.at(kSingleFile).tensors()) places_.emplace(tensor.name, kSingleFile);
    return;
  }
  if (!fs::exists(folder_ / kIndexFile)) {
    throw UserError(fmt::format("{}: expected {} or {} in the folder; other weight formats are not read",
                                folder_.string(), kSingleFile, kIndexFile));
  }
  listing_ = (folder_ / kIndexFile).string();
  places_ = parse_index(listing_);
  for (const auto& [tensor, name] : places_) {
    if (!fs::exists(folder_ / name)) {
      throw UserError(fmt::format("{}: the shard is missing; {} places tensor {} in it", (folder_ / name).string(),
                                  kIndexFile, in_quotes(tensor)));
    }
    open_shard(name);
    if (files_.at(name).find(tensor) == nullptr) {
      throw UserError(fmt::format("{}: tensor {} is missing, though {} places it here", (folder_ / name).string(),
                                  in_quotes(tensor), kIndexFile));
    }
  }
}

// Every tensor of the files has its place in the model: otherwise config and weights belong to different models.
void ModelFiles::refuse_unexpected() const {
  std::set<std::string> expected;
  for (ExpectedTensor& tensor : expected_tensors(config_)) expected.insert(std::move(tensor.name));
  for (const auto& [tensor, name] : places_) {
    if (expected.contains(tensor) || ignored(tensor)) continue;
    throw UserError(fmt::format("{}: tensor {} has no place in a {} model of {} layers as {} describes it", listing_,
                                in_quotes(tensor), family_name(config_.family), config_.layers, kConfigFile));
  }
}

void ModelFiles::check(const ExpectedTensor& expected) const {
  const auto found = places_.find(expected.name);
  if (found == places_.end()) {
    throw UserError(fmt::format("{}: tensor {} is missing; {} asks for it with shape {}", listing_,
                                in_quotes(expected.name), kConfigFile, shape_text(expected.shape)));
  }
  const SafetensorsFile& file = files_.at(found->second);
  const TensorInfo& tensor = file.require(expected.name);
  if (tensor.shape == expected.shape) return;
  throw UserError(fmt::format("{}: tensor {}: shape {}, expected {} from {}", file.name(), in_quotes(tensor.name),
                              shape_text(tensor.shape), shape_text(expected.shape), kConfigFile));
}

Tensor ModelFiles::load(const ExpectedTensor& expected, Backend& backend) const {
  const SafetensorsFile& file = files_.at(places_.at(expected.name));
  const TensorInfo& info = file.require(expected.name);
  Tensor tensor(backend, backend.activation_type(), info.elements());
  std::vector<float> piece;
  for (int64_t first = 0; first < info.elements(); first += kPieceValues) {
    piece.resize(static_cast<size_t>(std::min(kPieceValues, info.elements() - first)));
    file.read_f32(info, first, piece);
    refuse_non_finite(piece, first, info, file.name());
    upload_activations(backend, tensor.at(first), piece);
  }
  return tensor;
}

Tensor RandomWeights::load(const ExpectedTensor& expected, Backend& backend) const {
  Tensor tensor(backend, backend.activation_type(), expected.elements());
  if (expected.name.ends_with("norm.weight")) {
    upload_activations(backend, tensor.ref(), std::vector<float>(static_cast<size_t>(expected.elements()), 1.0f));
  } else {
    backend.random_normal({.output = tensor.ref(),
                           .count = tensor.elements(),
                           .seed = stream_of(seed_, expected.name),
                           .sigma = kRandomSigma});
  }
  return tensor;
}

ModelTensors load_tensors(const Weights& weights, Backend& backend) {
  const ModelConfig& config = weights.config();
  const size_t bytes = static_cast<size_t>(parameters_of(config)) * bytes_of(backend.activation_type());
  require_memory(backend, {.weights = bytes},
                 fmt::format("a {} model of {} layers", family_name(config.family), config.layers));
  ModelTensors tensors;
  tensors.layers.resize(static_cast<size_t>(weights.config().layers));
  for_each_tensor(weights.config(), tensors, [&](std::string name, std::vector<int64_t> shape, Tensor& tensor) {
    tensor = weights.load({std::move(name), std::move(shape)}, backend);
  });
  return tensors;
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
