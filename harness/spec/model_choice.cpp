#include "harness/spec/model_choice.h"

#include <fmt/format.h>

#include "kernels/error.h"
#include "sim/model/named_models.h"
#include "sim/source/trace.h"

namespace kv {
namespace {

// As written where it is missing: whoever opens it says so.
std::filesystem::path path_of(const Spec& spec, const Located& source) {
  try {
    return resolve_path(spec, source);
  } catch (const UserError&) {
    return source.text;
  }
}

ModelIdentity::Shape shape_of_trace(const std::filesystem::path& file) {
  const Trace trace = Trace::open(file, Trace::Checksum::kSkip);
  return {static_cast<int>(trace.info().layers.size()), trace.info().kv_heads};
}

}  // namespace

ModelConfig config_of(const ModelChoice& choice, const std::filesystem::path& folder) {
  if (!choice.random) return load_model_config(folder);
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
  const std::filesystem::path folder = choice.random ? "" : path_of(spec, choice.source);
  return {folder, [choice, folder] {
            const ModelConfig config = config_of(choice, folder);
            return ModelIdentity::Shape{config.layers, config.kv_heads};
          }};
}

}  // namespace kv
