#include "harness/input_hashes.h"

#include <algorithm>
#include <filesystem>

#include "harness/files.h"
#include "harness/own_data.h"
#include "harness/shipped.h"
#include "harness/spec/model_choice.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::string file_sha256(const fs::path& file) { return sha256_hex(read_file(file)); }

// Of the bytes of the texts that tasks draw from, packed or not; empty where none are shipped.
std::string shipped_text_sha256(const Spec& spec) {
  const fs::path folder = find_shipped("experiments/data", fs::path(spec.file).parent_path());
  if (folder.empty()) return "";
  Sha256 hash;
  for (const char* name : {"books.jsonl", "code.jsonl", "gsm8k.jsonl"}) {
    const fs::path file = folder / name;
    std::error_code error;
    if (fs::exists(stored_file(file), error)) hash.update(read_file(stored_file(file)));
  }
  return hash.hex();
}

// The files that options of an entry name.
void add_option_files(const Spec& spec, const DataSpec& data, InputHashes::Named& hashes) {
  for (const GivenParam& option : data.options) {
    if (option.text.find('.') == option.text.npos) continue;
    try {
      const fs::path file = resolve_path(spec, {option.text, option.where});
      if (fs::is_regular_file(file)) hashes.emplace_back(data.name + " " + option.key, file_sha256(file));
    } catch (const UserError&) {  // a number or a word
    }
  }
}

InputHashes::Named hash_data(const Spec& spec) {
  InputHashes::Named hashes;
  std::string shipped;
  for (const DataSpec& data : spec.data) {
    if (data.kind == DataKind::kTask) {
      if (shipped.empty()) shipped = shipped_text_sha256(spec);
      if (!shipped.empty()) hashes.emplace_back(data.name, shipped);
      add_option_files(spec, data, hashes);
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
    add_option_files(spec, data, hashes);
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
