#include "sim/learned/learned_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/half.h"
#include "sim/io/hash.h"
#include "sim/io/mapped_file.h"
#include "sim/io/safetensors.h"
#include "sim/io/stored_path.h"

namespace kv {

namespace {

constexpr std::string_view kFormat = "kvlab-learned";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kSetting = "setting.";  // before the name of a setting
constexpr std::string_view kMake = kTrainMakesOne;
constexpr int64_t kMostHeads = 1 << 16;

constexpr std::string_view kScope = "scope.";  // before the name of a part that is not of heads: layer or model

// The axes of a tensor that count owners.
std::vector<int64_t> owner_axes(const LearnedFile& learned, LearnedScope scope) {
  switch (scope) {
    case LearnedScope::kModel:
      return {};
    case LearnedScope::kLayer:
      return {learned.layers};
    case LearnedScope::kHead:
      return {learned.layers, learned.kv_heads};
  }
  return {};
}

std::string_view scope_name(LearnedScope scope) {
  switch (scope) {
    case LearnedScope::kModel:
      return "model";
    case LearnedScope::kLayer:
      return "layer";
    case LearnedScope::kHead:
      return "KV head";
  }
  return {};
}

bool all_are_of_heads(std::span<const LearnedPart> parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const LearnedPart& part) { return part.scope == LearnedScope::kHead; });
}

std::vector<int64_t> stored_shape(const LearnedFile& learned, const LearnedPart& part) {
  std::vector<int64_t> shape = owner_axes(learned, part.scope);
  shape.insert(shape.end(), part.shape.begin(), part.shape.end());
  return shape;
}

// Moves one part of every owner between the file's tensor, where one part's lie together, and the parameters, where one
// owner's do: move(in the tensor, in the parameters, elements).
template <class Move>
void for_each_owner(const LearnedFile& learned, size_t part, const Move& move) {
  const LearnedLayout layout = learned.layout();
  const int64_t count = learned.parts[part].elements();
  for (int64_t owner = 0; owner < layout.owners(part); ++owner) move(owner * count, layout.first(part, owner), count);
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

LearnedScope scope_of(const SafetensorsFile& file, const std::string& part, std::string_view owner) {
  const auto found = file.metadata().find(std::string(kScope) + part);
  if (found == file.metadata().end()) return LearnedScope::kHead;
  for (const LearnedScope scope : {LearnedScope::kLayer, LearnedScope::kModel}) {
    if (found->second == scope_name(scope)) return scope;
  }
  throw UserError(fmt::format("{}: {}: tensor '{}' is of a '{}', expected layer or model; {}", owner, file.name(), part,
                              found->second, kMake));
}

int read_count(const SafetensorsFile& file, const std::string& key, std::string_view owner) {
  const std::string text = metadata_of(file, key, owner);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > kMostHeads) {
    throw UserError(fmt::format("{}: {} says {}: '{}', expected a number from 1 to {}; {}", owner, file.name(), key,
                                text, kMostHeads, kMake));
  }
  return static_cast<int>(count);
}

// Layers and KV heads, which a file does not say that has nothing but parts of heads: its first tensor does.
void read_owners(const SafetensorsFile& file, LearnedFile& learned, std::string_view owner) {
  const bool says = std::any_of(file.metadata().begin(), file.metadata().end(),
                                [](const auto& entry) { return entry.first.starts_with(kScope); });
  if (says) {
    learned.layers = read_count(file, "layers", owner);
    learned.kv_heads = read_count(file, "kv_heads", owner);
    return;
  }
  const auto is_count = [](int64_t size) { return size > 0 && size <= kMostHeads; };
  const std::vector<int64_t>& shape = file.tensors().front().shape;
  if (shape.size() < 2 || !is_count(shape[0]) || !is_count(shape[1])) return;  // no part of 0 layers is found
  learned.layers = static_cast<int>(shape[0]);
  learned.kv_heads = static_cast<int>(shape[1]);
}

LearnedPart part_of(const SafetensorsFile& file, const TensorInfo& tensor, const LearnedFile& learned,
                    std::string_view owner) {
  const bool is_float = tensor.dtype == Dtype::kF16 || tensor.dtype == Dtype::kBF16 || tensor.dtype == Dtype::kF32;
  const LearnedScope scope = scope_of(file, tensor.name, owner);
  const std::vector<int64_t> axes = owner_axes(learned, scope);
  const bool fits = tensor.shape.size() >= axes.size() && std::equal(axes.begin(), axes.end(), tensor.shape.begin());
  const bool plausible = learned.layers > 0 && int64_t{learned.layers} * learned.kv_heads <= kMostHeads;
  if (!is_float || !plausible || !fits) {
    constexpr std::string_view kExpected[] = {"[layers, KV heads, …]", "[layers, …]", "[…]"};
    throw UserError(fmt::format("{}: {}: tensor '{}' is {} {}, expected F16, BF16 or F32 {} as the others", owner,
                                file.name(), tensor.name, dtype_name(tensor.dtype), shape_text(tensor.shape),
                                kExpected[static_cast<size_t>(scope)]));
  }
  return {.name = tensor.name, .shape = {tensor.shape.begin() + std::ssize(axes), tensor.shape.end()}, .scope = scope};
}

void read_part(const SafetensorsFile& file, size_t index, LearnedFile& learned, std::string_view owner) {
  const TensorInfo& tensor = file.require(learned.parts[index].name);
  const std::vector<float> values = file.read_f32(tensor);
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw UserError(fmt::format("{}: {}: tensor '{}' holds {} at index {}, expected finite numbers", owner, file.name(),
                                tensor.name, *bad, bad - values.begin()));
  }
  for_each_owner(learned, index, [&](int64_t from, int64_t to, int64_t count) {
    std::copy_n(values.begin() + from, count, learned.parameters.begin() + to);
  });
}

bool is_matrix(const LearnedPart& part) { return part.shape.size() >= 2; }

void write_part(SafetensorsWriter& writer, const LearnedPart& part, std::span<const float> values) {
  if (!is_matrix(part)) return writer.write_values(part.name, values);
  std::vector<uint16_t> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), f32_to_bf16);
  writer.write_values<uint16_t>(part.name, narrow);
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
  if (file.tensors().empty()) throw UserError(fmt::format("{}: {} holds no tensors; {}", owner, file.name(), kMake));
  read_owners(file, learned, owner);
  for (const TensorInfo& tensor : file.tensors()) learned.parts.push_back(part_of(file, tensor, learned, owner));
  learned.parameters.resize(static_cast<size_t>(learned.layout().elements()));
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

const LearnedPart* find_part(std::span<const LearnedPart> parts, std::string_view name) {
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const auto& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

// "[3, 2] a KV head"
std::string part_text(const LearnedPart* part) {
  return part ? fmt::format("{} a {}", shape_text(part->shape), scope_name(part->scope)) : "nothing";
}

// UserError where there are not these parts and no others. `file` names what has them.
void require_parts(const LearnedFile& learned, std::span<const LearnedPart> parts, std::string_view owner,
                   std::string_view file) {
  const auto refuse = [&](const std::string& name, const LearnedPart* there, const LearnedPart* wanted) {
    throw UserError(
        fmt::format("{}: {}: '{}' is {}, expected {}: of another shape of model, or of other settings than it says",
                    owner, file, name, part_text(there), part_text(wanted)));
  };
  for (const LearnedPart& wanted : parts) {
    const LearnedPart* const there = find_part(learned.parts, wanted.name);
    if (!there || *there != wanted) refuse(wanted.name, there, &wanted);
  }
  for (const LearnedPart& there : learned.parts) {
    if (!find_part(parts, there.name)) refuse(there.name, &there, nullptr);
  }
}

void require_model(const LearnedFile& learned, const ModelIdentity& model, std::string_view owner,
                   const std::string& file, std::string_view remedy) {
  const ModelIdentity::Shape shape = model.shape();
  if (learned.layers != shape.layers || learned.kv_heads != shape.kv_heads) {
    throw UserError(fmt::format("{}: {} is for {} layers of {} KV heads, expected {} of {}; {}", owner, file,
                                learned.layers, learned.kv_heads, shape.layers, shape.kv_heads, remedy));
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
  KV_CHECK(std::ssize(learned.parameters) == learned.layout().elements());
  Metadata metadata = {{"format", std::string(kFormat)},      {"version", std::string(kVersion)},
                       {"learner", learned.learner},          {"model", learned.model},
                       {"model_sha256", learned.fingerprint}, {"made", learned.origin}};
  for (const auto& [name, value] : learned.settings) metadata[std::string(kSetting) + name] = value;
  if (!all_are_of_heads(learned.parts)) {
    metadata["layers"] = std::to_string(learned.layers);
    metadata["kv_heads"] = std::to_string(learned.kv_heads);
  }
  std::vector<TensorDecl> tensors;
  for (const LearnedPart& part : learned.parts) {
    const Dtype dtype = is_matrix(part) ? Dtype::kBF16 : Dtype::kF32;
    tensors.push_back({.name = part.name, .dtype = dtype, .shape = stored_shape(learned, part)});
    if (part.scope != LearnedScope::kHead) metadata[std::string(kScope) + part.name] = scope_name(part.scope);
  }
  SafetensorsWriter writer(path, std::move(tensors), std::move(metadata));
  for (size_t i = 0; i < learned.parts.size(); ++i) {
    for_each_owner(learned, i, [&](int64_t, int64_t from, int64_t count) {
      write_part(writer, learned.parts[i],
                 std::span(learned.parameters).subspan(static_cast<size_t>(from), static_cast<size_t>(count)));
    });
  }
  writer.finish();
}

std::vector<float> as_stored(const LearnedFile& learned) {
  std::vector<float> stored = learned.parameters;
  for (size_t i = 0; i < learned.parts.size(); ++i) {
    if (!is_matrix(learned.parts[i])) continue;
    for_each_owner(learned, i, [&](int64_t, int64_t at, int64_t count) {
      const std::span<float> of_owner = std::span(stored).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
      std::ranges::transform(of_owner, of_owner.begin(), [](float value) { return bf16_to_f32(f32_to_bf16(value)); });
    });
  }
  return stored;
}

LearnedFile read_learned(const std::filesystem::path& path, std::string_view owner) {
  return parse(SafetensorsFile::open(path), owner);
}

std::vector<InputFile> check_learned(const std::filesystem::path& path, std::string_view owner,
                                     const ModelIdentity& model, const LearnedDemand& demand) {
  if (model.is_absent()) return {};
  const std::string file = path.string();
  if (std::error_code error; !std::filesystem::exists(stored_file(path), error)) {
    throw UserError(fmt::format("{}: there are no learned weights {}; {}", owner, file, demand.remedy));
  }
  const LearnedFile learned = read_learned(path, owner);
  if (learned.learner != owner) {
    throw UserError(fmt::format("{}: {} was learned for {}; {}", owner, file, learned.learner, demand.remedy));
  }
  require_settings(learned, demand.settings, owner, file, demand.remedy);
  require_model(learned, model, owner, file, demand.remedy);
  require_parts(learned, demand.parts(learned, info_of(model.shape())), owner, file);
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

double learned_setting(const LearnedFile& learned, const std::string& name, double least, double most,
                       std::string_view owner) {
  const auto found = learned.settings.find(name);
  const std::string text = found == learned.settings.end() ? "" : found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    throw UserError(
        fmt::format("{}: what was learned for {} says {}: '{}', expected a number from {:.4g} to {:.4g}; {}", owner,
                    learned.model, name, text, least, most, kTrainMakesOne));
  }
  return value;
}

std::vector<float> parameters_as(const LearnedFile& learned, std::span<const LearnedPart> parts,
                                 std::string_view owner) {
  require_parts(learned, parts, owner, "learned weights");
  const LearnedLayout from = learned.layout(), to(parts, learned.layers, learned.kv_heads);
  std::vector<float> parameters(static_cast<size_t>(to.elements()));
  for (size_t i = 0; i < parts.size(); ++i) {
    const LearnedPart* const found = find_part(learned.parts, parts[i].name);
    const auto there = static_cast<size_t>(found - learned.parts.data());
    for (int64_t own = 0; own < to.owners(i); ++own) {
      std::copy_n(learned.parameters.begin() + from.first(there, own), found->elements(),
                  parameters.begin() + to.first(i, own));
    }
  }
  return parameters;
}

}  // namespace kv
