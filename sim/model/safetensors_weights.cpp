#include "sim/model/safetensors_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "sim/io/finite.h"
#include "sim/io/hash.h"
#include "sim/io/mapped_file.h"
#include "sim/io/stored_path.h"
#include "sim/io/strict_json.h"
#include "sim/model/activations.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kPieceValues = 1 << 24;

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
                                  in_quotes(tensor), shown_json(shard)));
    }
    map.emplace(tensor, shard.get<std::string>());
  }
  return map;
}

bool ignored(std::string_view tensor) { return tensor.ends_with(".rotary_emb.inv_freq") || tensor == "lm_head.weight"; }

}  // namespace

SafetensorsWeights::SafetensorsWeights(const fs::path& folder) : folder_(folder) {
  if (!fs::is_directory(folder)) {
    throw UserError(fmt::format("{}: expected a folder with {} and {}", folder.string(), kConfigFile, kSingleFile));
  }
  config_ = load_folder_config(folder);
  open_files();
  refuse_unexpected();
  for (const ExpectedTensor& tensor : expected_tensors(config_)) check(tensor);
}

void SafetensorsWeights::open_shard(const std::string& name) {
  if (!files_.contains(name)) files_.emplace(name, SafetensorsFile::open(folder_ / name));
}

void SafetensorsWeights::open_files() {
  if (fs::exists(stored_file(folder_ / kSingleFile))) {
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
    if (!fs::exists(stored_file(folder_ / name))) {
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
void SafetensorsWeights::refuse_unexpected() const {
  std::set<std::string> expected;
  for (ExpectedTensor& tensor : expected_tensors(config_)) expected.insert(std::move(tensor.name));
  for (const auto& [tensor, name] : places_) {
    if (expected.contains(tensor) || ignored(tensor)) continue;
    throw UserError(fmt::format("{}: tensor {} has no place in a {} model of {} layers as {} describes it", listing_,
                                in_quotes(tensor), family_name(config_.family), config_.layers, kConfigFile));
  }
}

void SafetensorsWeights::check(const ExpectedTensor& expected) const {
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

Tensor SafetensorsWeights::load(const ExpectedTensor& expected, Backend& backend) const {
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

std::string folder_fingerprint(const fs::path& folder) {
  std::set<std::string> names = {kConfigFile};
  if (fs::exists(stored_file(folder / kSingleFile))) {
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
