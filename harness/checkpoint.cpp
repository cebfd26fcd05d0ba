#include "harness/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/rows.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"

namespace kv {

namespace {

constexpr const char* kFormat = "kvlab-checkpoint";
constexpr const char* kWeights = "weights";
constexpr const char* kReplaced = "replaced";
constexpr const char* kHasWritten = "has_written";

[[noreturn]] void refuse(const SafetensorsFile& file, const std::string& what) {
  throw UserError(fmt::format("{}: {}", file.name(), what));
}

double number(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  const auto value = found == file.metadata().end() ? std::nullopt : parse_number(found->second);
  if (!value || *value < 0) refuse(file, fmt::format("its metadata lack a number '{}'", key));
  return *value;
}

std::vector<std::string> names(const SafetensorsFile& file) {
  const auto found = file.metadata().find("metrics");
  const auto json = nlohmann::json::parse(found == file.metadata().end() ? "" : found->second, nullptr, false);
  const bool texts =
      json.is_array() && std::all_of(json.begin(), json.end(), [](const auto& name) { return name.is_string(); });
  if (!texts) refuse(file, "its metadata lack a list of names 'metrics'");
  return json.get<std::vector<std::string>>();
}

// Bits, not numbers rounded to f32: a resumed run has the same rows.
std::vector<std::vector<double>> values_of(const SafetensorsFile& file, size_t steps, size_t metrics) {
  const TensorInfo& tensor = file.require("values");
  const std::vector<int64_t> expected = {static_cast<int64_t>(steps), static_cast<int64_t>(metrics)};
  if (tensor.dtype != Dtype::kF64 || tensor.shape != expected) {
    refuse(file, fmt::format("'values' is {} {}, expected F64 {}", dtype_name(tensor.dtype), shape_text(tensor.shape),
                             shape_text(expected)));
  }
  std::vector<std::vector<double>> values(steps, std::vector<double>(metrics));
  const std::span<const std::byte> bytes = file.bytes(tensor);
  for (size_t i = 0; i < steps && metrics > 0; ++i) {
    std::memcpy(values[i].data(), bytes.data() + i * metrics * sizeof(double), metrics * sizeof(double));
  }
  return values;
}

Checkpoint parse(const SafetensorsFile& file) {
  if (const auto format = file.metadata().find("format");
      format == file.metadata().end() || format->second != kFormat) {
    refuse(file, "is no checkpoint");
  }
  Checkpoint checkpoint{.metrics = names(file), .seconds = number(file, "seconds")};
  for (const auto& [key, text] : {std::pair{kWeights, &checkpoint.weights}, {kReplaced, &checkpoint.replaced}}) {
    if (const auto found = file.metadata().find(key); found != file.metadata().end()) *text = found->second;
  }
  checkpoint.has_written = file.metadata().contains(kHasWritten);
  Training::State& state = checkpoint.state;
  state.step = static_cast<int64_t>(number(file, "step"));
  state.adam.steps = static_cast<int64_t>(number(file, "adam_steps"));
  state.parameters = file.read_f32(file.require("parameters"));
  state.adam.mean = file.read_f32(file.require("adam.mean"));
  state.adam.square = file.read_f32(file.require("adam.square"));
  checkpoint.values = values_of(file, static_cast<size_t>(state.step), checkpoint.metrics.size());
  return checkpoint;
}

}  // namespace

void refuse_checkpoint(const std::string& what) { throw UserError(what + "; remove it, or start over with --fresh"); }

void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  const Training::State& state = checkpoint.state;
  std::vector<double> values;
  for (const std::vector<double>& step : checkpoint.values) values.insert(values.end(), step.begin(), step.end());
  const auto count = static_cast<int64_t>(state.parameters.size());
  const auto steps = static_cast<int64_t>(checkpoint.values.size()), metrics = std::ssize(checkpoint.metrics);
  const TensorData tensors[] = {
      {.name = "values", .dtype = Dtype::kF64, .shape = {steps, metrics}, .data = values.data()},
      {.name = "parameters", .dtype = Dtype::kF32, .shape = {count}, .data = state.parameters.data()},
      {.name = "adam.mean", .dtype = Dtype::kF32, .shape = {count}, .data = state.adam.mean.data()},
      {.name = "adam.square", .dtype = Dtype::kF32, .shape = {count}, .data = state.adam.square.data()}};
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"step", std::to_string(state.step)},
                                                 {"adam_steps", std::to_string(state.adam.steps)},
                                                 {"metrics", nlohmann::json(checkpoint.metrics).dump()},
                                                 {"seconds", shortest(checkpoint.seconds)},
                                                 {kWeights, checkpoint.weights},
                                                 {kReplaced, checkpoint.replaced}};
  if (checkpoint.has_written) metadata.emplace(kHasWritten, "yes");
  write_safetensors(path, tensors, metadata);
}

std::optional<Checkpoint> read_checkpoint(const std::filesystem::path& path) {
  if (std::error_code error; !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    return parse(SafetensorsFile::open(path));
  } catch (const UserError& error) {
    refuse_checkpoint(error.what());
  }
}

void sweep_checkpoints(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".tmp") left.push_back(entry.path());
  }
  for (const std::filesystem::path& file : left) std::filesystem::remove(file, error);
}

}  // namespace kv
