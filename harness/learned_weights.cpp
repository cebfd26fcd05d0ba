#include "harness/learned_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "harness/manifest.h"
#include "harness/protocols/train.h"
#include "harness/spec/case_policy.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/io/stored_path.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Keys of the origin that say how parameters were trained; the others say when, where and by which code.
const std::string kOptions(kLearnKey), kBegun = "begun_from";

// What an axis sets, as part of a file's name: "24/12" is no folder.
std::string name_part(std::string_view value) {
  static constexpr std::string_view kAlso = ".+_-";
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kAlso.find(c) != kAlso.npos;
  };
  std::string part(value);
  std::replace_if(
      part.begin(), part.end(), [&](char c) { return !is_plain(c); }, '-');
  return part;
}

// Whether both say the same of how they were trained; who says nothing of it, as files of an earlier version, may have
// been trained in any way.
bool trained_alike(const std::string& there, const std::string& here) {
  using Json = nlohmann::json;
  const Json then = Json::parse(there, nullptr, false), now = Json::parse(here, nullptr, false);
  if (!then.is_object() || !now.is_object()) return false;
  const auto agrees = [&](const std::string& key) { return then.contains(key) && then[key] == now.value(key, Json()); };
  return agrees(kOptions) && agrees(kBegun);
}

// One training, as a complaint about its weights names it.
struct Writer {
  const Component* component = nullptr;
  int model = 0;
};

// Collects who writes which file, over all models.
class WeightsCheck {
 public:
  WeightsCheck(const Spec& spec, const Grid& grid, const RunOptions& options)
      : spec_(spec), grid_(grid), options_(options) {}

  void go() {
    for_each_training([&](const Workload& workload, const Case& policy_case) {
      for (const InputFile& file : policy_case.files) {
        readers_.emplace(one_spelling(file.path), writer_of(workload, policy_case));
      }
    });
    for_each_training([&](const Workload& workload, const Case& policy_case) {
      Policy policy = make_case_policy(spec_, policy_case);
      Learner& learner = learner_of(policy);
      const ModelIdentity& identity = grid_.models[static_cast<size_t>(workload.model)];
      const fs::path path = weights_path(learner, policy_case, identity, options_);
      check(path, writer_of(workload, policy_case));
    });
  }

 private:
  // Workloads of a model have the same trainings.
  template <class Visit>
  void for_each_training(const Visit& visit) const {
    int model = -1;
    for (const Workload& workload : grid_.workloads) {
      if (workload.model == model) continue;
      model = workload.model;
      for (const Case& policy_case : workload.cases) visit(workload, policy_case);
    }
  }

  Writer writer_of(const Workload& workload, const Case& policy_case) const {
    return {&spec_.policies[static_cast<size_t>(policy_case.policy)], workload.model};
  }

  void check(const fs::path& path, const Writer& writer) {
    if (const auto found = readers_.find(one_spelling(path)); found != readers_.end()) {
      refuse(writer, fmt::format("what {} begins with", said_of(found->second, writer)), path,
             "another option 'weights'");
    }
    const auto [found, is_new] = writers_.emplace(one_spelling(path), writer);
    if (!is_new) {
      const bool same_model = found->second.model == writer.model;
      refuse(writer, fmt::format("the weights of {}", said_of(found->second, writer)), path,
             same_model ? "another option 'weights' for each"
                        : "a spec for each model, with another --weights or option 'weights'");
    }
    std::error_code error;  // a folder that cannot be made is one that cannot be written to
    fs::create_directories(path.parent_path(), error);
    check_replaceable(path);
  }

  std::string said_of(const Writer& one, const Writer& other) const {
    if (one.model == other.model) return fmt::format("'{}'", one.component->label);
    return fmt::format("'{}' on {}", one.component->label, model_name(one.model));
  }
  std::string model_name(int model) const {
    return subject_identity(spec_, model, grid_.models[static_cast<size_t>(model)]).name;
  }

  [[noreturn]] static void refuse(const Writer& writer, const std::string& what, const fs::path& path,
                                  std::string_view remedy) {
    throw UserError(fmt::format("{}: policy '{}' would write over {}, {}; expected {}", writer.component->where,
                                writer.component->label, what, path.string(), remedy));
  }

  const Spec& spec_;
  const Grid& grid_;
  const RunOptions& options_;
  std::map<fs::path, Writer> readers_, writers_;
};

// None where there are no learned weights of the slot.
std::optional<LearnedFile> read_weights(const fs::path& path, const std::string& learner) {
  if (std::error_code error; !fs::exists(stored_file(path), error)) return std::nullopt;
  try {
    return read_learned(path, learner);
  } catch (const UserError&) {
    return std::nullopt;  // something else, which gives way
  }
}

bool is_same(const LearnedFile& there, const LearnedFile& learned) {
  try {
    return there.learner == learned.learner && there.fingerprint == learned.fingerprint &&
           there.settings == learned.settings && there.layers == learned.layers && there.kv_heads == learned.kv_heads &&
           trained_alike(there.origin, learned.origin) &&
           parameters_as(there, learned.parts, learned.learner) == as_stored(learned);
  } catch (const UserError&) {
    return false;  // of other parts
  }
}

}  // namespace

fs::path one_spelling(const fs::path& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : canonical;
}

fs::path weights_path(const Learner& learner, const Case& policy_case, const ModelIdentity& identity,
                      const RunOptions& options) {
  const fs::path model = identity.folder().empty() ? options.out : identity.folder();
  fs::path path = learned_path(model, learner.file_name());
  std::string name = path.stem().string();
  for (const std::string& value : policy_case.axes) {
    if (!value.empty() && value != learner.file_name()) name += "-" + name_part(value);
  }
  path.replace_filename(name + path.extension().string());
  return options.weights.empty() ? path : options.weights / path.filename();
}

void check_weights(const Spec& spec, const Grid& grid, const RunOptions& options) {
  WeightsCheck(spec, grid, options).go();
}

std::string origin_of_training(const Spec& spec, const Case& policy_case, uint64_t seed, const Facts& accelerator) {
  std::map<std::string, std::string> options;
  for (const GivenParam& param : spec.options_of(kLearnKey)) options[param.key] = param.text;
  for (const GivenParam& param : policy_case.settings) options[param.key] = param.text;
  options["training_seed"] = std::to_string(seed);
  Facts begun;
  for (const InputFile& file : policy_case.files) begun.emplace_back(file.path.filename().string(), file.sha256);
  return origin_json(spec, accelerator, {{kOptions, Facts(options.begin(), options.end())}, {kBegun, begun}});
}

WeightsThere weights_there(const fs::path& path, const LearnedFile& learned) {
  const std::optional<LearnedFile> there = read_weights(path, learned.learner);
  if (!there) return WeightsThere::kNone;
  if (is_same(*there, learned)) return WeightsThere::kSame;
  return trained_alike(there->origin, learned.origin) ? WeightsThere::kOfAnotherRun : WeightsThere::kLearnedOtherwise;
}

void keep_learned(const fs::path& path, const LearnedFile& learned) {
  if (weights_there(path, learned) != WeightsThere::kSame) write_learned(path, learned);
}

}  // namespace kv
