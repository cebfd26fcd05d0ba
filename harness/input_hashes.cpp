#include "harness/input_hashes.h"

#include <algorithm>
#include <filesystem>

#include "harness/files.h"
#include "harness/own_data.h"
#include "harness/spec/model_choice.h"
#include "harness/spec/own_options.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Of the bytes of the texts that tasks draw from, packed or not; empty where there are none.
std::string text_sha256(const Spec& spec) {
  const fs::path folder = text_folder(spec);
  if (folder.empty()) return "";
  Sha256 hash;
  for (const char* name : {"books.jsonl", "code.jsonl", "gsm8k.jsonl"}) {
    const fs::path file = folder / name;
    std::error_code error;
    if (fs::exists(stored_file(file), error)) hash.update(read_file(stored_file(file)));
  }
  return hash.hex();
}

InputHashes::Named hash_data(const Spec& spec) {
  InputHashes::Named hashes;
  std::string texts;
  for (const DataSpec& data : spec.data) {
    if (data.kind == DataKind::kTask) {
      if (texts.empty()) texts = text_sha256(spec);
      if (!texts.empty()) hashes.emplace_back(data.name, texts);
    } else if (data.kind != DataKind::kOwn) {
      hashes.emplace_back(data.name, file_sha256(resolve_path(spec, data.source)));
    }
  }
  return hashes;
}

// What this model has written, which lies beside it, and from which prompts.
void add_own_traces(const Spec& spec, const ModelIdentity& identity, const std::string& model,
                    InputHashes::Named& hashes) {
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kOwn) continue;
    hashes.emplace_back(data.name + " of " + model, file_sha256(own_traces_file(spec, data, identity)));
    const OwnOptions options = parse_own_options(data);
    for (const auto& [name, file] : {std::pair("prompts", options.prompts), std::pair("traces", options.traces)}) {
      if (!file.text.empty()) hashes.emplace_back(data.name + " " + name, file_sha256(resolve_path(spec, file)));
    }
  }
}

void add_profiles(const Workload& workload, const std::string& model, std::vector<InputHashes::Profile>& profiles) {
  for (const Case& unit_case : workload.cases) {
    for (const InputFile& file : unit_case.files) {
      const InputHashes::Profile profile{model, file.path.filename().string(), file.sha256};
      if (std::find(profiles.begin(), profiles.end(), profile) == profiles.end()) profiles.push_back(profile);
    }
  }
}

}  // namespace

std::string file_sha256(const fs::path& file) { return sha256_hex(read_file(file)); }

InputHashes hash_inputs(const Spec& spec, const Grid& grid) {
  InputHashes hashes{.data = hash_data(spec)};
  for (size_t i = 0; i < grid.models.size(); ++i) {
    const SubjectIdentity subject = subject_identity(spec, static_cast<int>(i), grid.models[i]);
    hashes.models.emplace_back(subject.name, subject.fingerprint);
    add_own_traces(spec, grid.models[i], subject.name, hashes.data);
    if (!subject.tokenizer_sha256.empty()) hashes.tokenizers.emplace_back(subject.name, subject.tokenizer_sha256);
    for (const Workload& workload : grid.workloads) {
      if (workload.model == static_cast<int>(i)) add_profiles(workload, subject.name, hashes.profiles);
    }
  }
  return hashes;
}

}  // namespace kv
