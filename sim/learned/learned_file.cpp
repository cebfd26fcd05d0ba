#include "sim/learned/learned_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/half.h"
#include "sim/io/hash.h"
#include "sim/io/mapped_file.h"
#include "sim/io/safetensors.h"

namespace kv {

namespace {

constexpr std::string_view kFormat = "kvlab-learned";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kSetting = "setting.";  // before the name of a setting
constexpr std::string_view kMake = kTrainMakesOne;
constexpr int64_t kMostHeads = 1 << 16;

std::vector<int64_t> stored_shape(const LearnedFile& learned, const LearnedPart& part) {
  std::vector<int64_t> shape = {learned.layers, learned.kv_heads};
  shape.insert(shape.end(), part.shape.begin(), part.shape.end());
  return shape;
}

// Moves one part of every head between the file's tensor, where heads of one part lie together, and the parameters,
// where parts of one head do.
template <class Move>
void for_each_head(const LearnedFile& learned, size_t part_index, const Move& move) {
  const std::span<const LearnedPart> parts = learned.parts;
  const int64_t of_head = elements_of(parts), before = elements_of(parts.first(part_index));
  const int64_t count = parts[part_index].elements();
  for (int64_t head = 0; head < int64_t{learned.layers} * learned.kv_heads; ++head) {
    move(head * count, head * of_head + before, count);
  }
}

std::string metadata_of(const SafetensorsFile& file, const std::string& key, std::string_view owner) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    throw UserError(fmt::format("{}: {} lacks '{}' in its metadata; {}", owner, file.name(), key, kMake));
  }
  return found->second;
}

void require_format(const SafetensorsFile& file, std::string_view owner) {
  if (metadata_of(file, "format", owner) == kFormat && metadata_of(file, "version", owner) == kVersion) return;
  throw UserError(fmt::format("{}: {} is no {} of version {}; {}", owner, file.name(), kFormat, kVersion, kMake));
}

LearnedPart part_of(const SafetensorsFile& file, const TensorInfo& tensor, LearnedFile& learned,
                    std::string_view owner) {
  const bool is_float = tensor.dtype == Dtype::kF16 || tensor.dtype == Dtype::kF32;
  const bool plausible = is_float && tensor.shape.size() >= 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0 &&
                         tensor.shape[0] <= kMostHeads && tensor.shape[1] <= kMostHeads &&
                         tensor.shape[0] * tensor.shape[1] <= kMostHeads;
  const bool is_first = learned.parts.empty();
  if (plausible && is_first) {
    learned.layers = static_cast<int>(tensor.shape[0]);
    learned.kv_heads = static_cast<int>(tensor.shape[1]);
  }
  if (!plausible || tensor.shape[0] != learned.layers || tensor.shape[1] != learned.kv_heads) {
    throw UserError(fmt::format("{}: {}: tensor '{}' is {} {}, expected F16 or F32 [layers, KV heads, …] as the others",
                                owner, file.name(), tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape)));
  }
  return {.name = tensor.name, .shape = {tensor.shape.begin() + 2, tensor.shape.end()}};
}

void read_part(const SafetensorsFile& file, size_t index, LearnedFile& learned, std::string_view owner) {
  const TensorInfo& tensor = file.require(learned.parts[index].name);
  const std::vector<float> values = file.read_f32(tensor);
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw UserError(fmt::format("{}: {}: tensor '{}' holds {} at index {}, expected finite numbers", owner, file.name(),
                                tensor.name, *bad, bad - values.begin()));
  }
  for_each_head(learned, index, [&](int64_t from, int64_t to, int64_t count) {
    std::copy_n(values.begin() + from, count, learned.parameters.begin() + to);
  });
}

bool fits_f16(float value) { return !std::isfinite(value) || std::isfinite(f16_to_f32(f32_to_f16(value))); }

// One dtype for all parts: f16 but where a number is beyond it.
Dtype stored_dtype(std::span<const float> parameters) {
  return std::all_of(parameters.begin(), parameters.end(), fits_f16) ? Dtype::kF16 : Dtype::kF32;
}

void write_part(SafetensorsWriter& writer, const std::string& part, Dtype dtype, std::span<const float> values) {
  if (dtype == Dtype::kF32) return writer.write_values(part, values);
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), f32_to_f16);
  writer.write_values<uint16_t>(part, narrow);
}

LearnedFile parse(const SafetensorsFile& file, std::string_view owner) {
  require_format(file, owner);
  LearnedFile learned{.learner = metadata_of(file, "learner", owner),
                      .model = metadata_of(file, "model", owner),
                      .fingerprint = metadata_of(file, "model_sha256", owner),
                      .origin = metadata_of(file, "made", owner)};
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with(kSetting)) learned.settings[key.substr(kSetting.size())] = value;
  }
  for (const TensorInfo& tensor : file.tensors()) learned.parts.push_back(part_of(file, tensor, learned, owner));
  if (learned.parts.empty()) throw UserError(fmt::format("{}: {} holds no tensors; {}", owner, file.name(), kMake));
  learned.parameters.resize(
      static_cast<size_t>(int64_t{learned.layers} * learned.kv_heads * elements_of(learned.parts)));
  for (size_t i = 0; i < learned.parts.size(); ++i) read_part(file, i, learned, owner);
  return learned;
}

void require_settings(const LearnedFile& learned, const std::map<std::string, std::string>& settings,
                      std::string_view owner, const std::string& file, std::string_view remedy) {
  for (const auto& [name, value] : settings) {
    const auto found = learned.settings.find(name);
    if (found != learned.settings.end() && found->second == value) continue;
    throw UserError(fmt::format("{}: {} was learned with {}: {}, expected {}; {}", owner, file, name,
                                found == learned.settings.end() ? "nothing" : found->second, value, remedy));
  }
}

void require_model(const LearnedFile& learned, const ModelIdentity& model, std::string_view owner,
                   const std::string& file, std::string_view remedy) {
  if (const auto [layers, kv_heads] = model.shape(); learned.layers != layers || learned.kv_heads != kv_heads) {
    throw UserError(fmt::format("{}: {} is for {} layers of {} KV heads, expected {} of {}; {}", owner, file,
                                learned.layers, learned.kv_heads, layers, kv_heads, remedy));
  }
  if (!model.folder().empty() && learned.fingerprint != model.fingerprint()) {
    throw UserError(fmt::format("{}: {} is for model {} with files of SHA-256 {:.12}…, expected {:.12}… of {}; {}",
                                owner, file, learned.model, learned.fingerprint, model.fingerprint(),
                                model.folder().string(), remedy));
  }
}

}  // namespace

std::filesystem::path learned_path(const std::filesystem::path& model_folder, std::string_view name) {
  if (name.ends_with(".safetensors")) return name;
  return model_folder / "learned" / fmt::format("{}.safetensors", name);
}

void write_learned(const std::filesystem::path& path, const LearnedFile& learned) {
  KV_CHECK(std::ssize(learned.parameters) == int64_t{learned.layers} * learned.kv_heads * elements_of(learned.parts));
  Metadata metadata = {{"format", std::string(kFormat)},      {"version", std::string(kVersion)},
                       {"learner", learned.learner},          {"model", learned.model},
                       {"model_sha256", learned.fingerprint}, {"made", learned.origin}};
  for (const auto& [name, value] : learned.settings) metadata[std::string(kSetting) + name] = value;
  std::vector<TensorDecl> tensors;
  const Dtype dtype = stored_dtype(learned.parameters);
  for (const LearnedPart& part : learned.parts) {
    tensors.push_back({.name = part.name, .dtype = dtype, .shape = stored_shape(learned, part)});
  }
  SafetensorsWriter writer(path, std::move(tensors), std::move(metadata));
  for (size_t i = 0; i < learned.parts.size(); ++i) {
    for_each_head(learned, i, [&](int64_t, int64_t from, int64_t count) {
      write_part(writer, learned.parts[i].name, dtype,
                 std::span(learned.parameters).subspan(static_cast<size_t>(from), static_cast<size_t>(count)));
    });
  }
  writer.finish();
}

LearnedFile read_learned(const std::filesystem::path& path, std::string_view owner) {
  return parse(SafetensorsFile::open(path), owner);
}

std::vector<InputFile> check_learned(const std::filesystem::path& path, std::string_view owner,
                                     const ModelIdentity& model, const std::map<std::string, std::string>& settings,
                                     std::string_view remedy) {
  std::error_code error;
  if (!model.files().empty() && !std::filesystem::exists(model.files(), error)) return {};
  const std::string file = path.string();
  if (!std::filesystem::exists(path, error)) {
    throw UserError(fmt::format("{}: there are no learned weights {}; {}", owner, file, remedy));
  }
  const LearnedFile learned = read_learned(path, owner);
  if (learned.learner != owner) {
    throw UserError(fmt::format("{}: {} was learned for {}; {}", owner, file, learned.learner, remedy));
  }
  require_settings(learned, settings, owner, file, remedy);
  require_model(learned, model, owner, file, remedy);
  return {{path, sha256_hex(MappedFile::open(path).bytes())}};
}

LearnedFile load_learned(const InputFile& checked, std::string_view owner) {
  const MappedFile bytes = MappedFile::open(checked.path);
  if (const std::string now = sha256_hex(bytes.bytes()); now != checked.sha256) {
    throw UserError(fmt::format("{}: {} has changed since it was checked: SHA-256 {:.12}…, expected {:.12}…", owner,
                                checked.path.string(), now, checked.sha256));
  }
  return parse(SafetensorsFile::from_bytes(bytes.bytes(), checked.path.string()), owner);
}

std::vector<float> parameters_as(const LearnedFile& learned, std::span<const LearnedPart> parts,
                                 std::string_view owner) {
  LearnedFile wanted{.layers = learned.layers, .kv_heads = learned.kv_heads, .parts = {parts.begin(), parts.end()}};
  wanted.parameters.resize(static_cast<size_t>(int64_t{learned.layers} * learned.kv_heads * elements_of(parts)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto same_name = [&](const LearnedPart& part) { return part.name == parts[i].name; };
    const auto found = std::find_if(learned.parts.begin(), learned.parts.end(), same_name);
    if (found == learned.parts.end() || found->shape != parts[i].shape) {
      throw UserError(
          fmt::format("{}: learned weights have '{}' as {}, expected {} a KV head; they are of another shape of model",
                      owner, parts[i].name, found == learned.parts.end() ? "nothing" : shape_text(found->shape),
                      shape_text(parts[i].shape)));
    }
    std::vector<int64_t> from;
    for_each_head(learned, static_cast<size_t>(found - learned.parts.begin()),
                  [&](int64_t, int64_t at, int64_t) { from.push_back(at); });
    size_t head = 0;
    for_each_head(wanted, i, [&](int64_t, int64_t to, int64_t count) {
      std::copy_n(learned.parameters.begin() + from[head++], count, wanted.parameters.begin() + to);
    });
  }
  return std::move(wanted.parameters);
}

}  // namespace kv
