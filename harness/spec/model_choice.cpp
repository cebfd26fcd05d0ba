#include "harness/spec/model_choice.h"

#include <fmt/format.h>

#include "harness/model_folder.h"
#include "kernels/error.h"
#include "sim/model/model_files.h"
#include "sim/model/named_models.h"
#include "sim/source/trace.h"

namespace kv {
namespace {

// Both as written where they are missing: whoever opens them says so.
std::filesystem::path path_of(const Spec& spec, const Located& source) {
  try {
    return resolve_path(spec, source);
  } catch (const UserError&) {
    return source.text;
  }
}

std::filesystem::path files_or_name(const Spec& spec, const ModelChoice& choice) {
  try {
    return find_model_files(spec, choice);
  } catch (const UserError&) {
    return choice.source.text;
  }
}

ModelIdentity::Shape shape_of_trace(const std::filesystem::path& file) {
  const Trace trace = Trace::open(file, Trace::Checksum::kSkip);
  const TraceInfo& info = trace.info();
  return {.layers = static_cast<int>(info.layers.size()),
          .kv_heads = info.kv_heads,
          .q_heads = info.q_heads,
          .head_dim = info.head_dim,
          .width = info.width};
}

}  // namespace

std::filesystem::path find_model_files(const Spec& spec, const ModelChoice& choice) {
  std::filesystem::path files = path_of(spec, choice.source);
  if (is_model(files)) return files;
  if (std::filesystem::path snapshot = cached_model(choice.source.text); !snapshot.empty()) return snapshot;
  throw UserError(fmt::format("{}: {}", choice.source.where, absent_model(choice.source.text)));
}

ModelConfig config_of(const ModelChoice& choice, const std::filesystem::path& files) {
  if (!choice.random) {
    if (is_model(files)) return load_model_config(files);
    throw UserError(fmt::format("{}: {}", choice.source.where, absent_model(choice.source.text)));
  }
  try {
    return find_named_model(choice.source.text).parse();
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", choice.source.where, error.what()));
  }
}

ModelIdentity identity_of(const Spec& spec, int model) {
  if (!spec.traces.empty()) {
    return {{}, [file = path_of(spec, spec.traces.front())] { return shape_of_trace(file); }};
  }
  const ModelChoice& choice = spec.models[static_cast<size_t>(model)];
  const std::filesystem::path files = choice.random ? "" : files_or_name(spec, choice);
  return {files, [choice, files] { return shape_of(config_of(choice, files)); }};
}

}  // namespace kv
