#include "harness/own_data.h"

#include <fmt/format.h>

#include <system_error>

#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/spec/own_options.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/regular_file.h"
#include "sim/io/xz.h"
#include "sim/model/model_files.h"
#include "sim/tasks/own_prompts.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// Complaints about one file of traces, with the place of the entry that wants it.
class Judge {
 public:
  Judge(const Spec& spec, const DataSpec& data, const OwnTraces& traces, const fs::path& file)
      : spec_(spec), data_(data), options_(parse_own_options(data)), recipe_(traces.recipe), file_(file) {}

  void judge(const ModelIdentity& model) const {
    options_.any_writer ? check_vocabulary(model) : check_model(model);
    const ModelConfig config = load_model_config(model.files());
    if (recipe_.vocabulary > config.vocab_size) {
      refuse(fmt::format("has ids of a vocabulary of {} tokens, expected {}", recipe_.vocabulary, config.vocab_size));
    }
    check_prompts();
    expect("temperature", recipe_.temperature, options_.temperature);
    expect("top_p", recipe_.top_p, options_.top_p);
    expect("seed", recipe_.seed, options_.seed);
    expect("turns", recipe_.turns, options_.turns);
    expect("repetition", recipe_.repetition, options_.repetition);
    if (!options_.stored_template && recipe_.wording != "plain") refuse("was written with a chat template");
    if (data_.tokens > recipe_.tokens) {
      refuse(fmt::format("has traces of {} tokens, expected {}", recipe_.tokens, *data_.tokens));
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(fmt::format("{}: data: '{}': {} {}; `kvlab write {}` lets the model write", data_.source.where,
                                data_.name, file_.string(), what, spec_.file));
  }

  template <class Number>
  void expect(std::string_view name, Number written, Number wanted) const {
    if (written != wanted) refuse(fmt::format("was written with {} {}, expected {}", name, written, wanted));
  }

  void check_model(const ModelIdentity& model) const {
    if (recipe_.model_sha256 == model.fingerprint()) return;
    refuse(fmt::format(
        "is by model {} with files of SHA-256 {:.12}…, expected {:.12}… of {} (writer: any takes another's)",
        recipe_.model, recipe_.model_sha256, model.fingerprint(), model_name(model.files())));
  }

  void check_vocabulary(const ModelIdentity& model) const {
    if (recipe_.vocabulary_sha256 == vocabulary_sha256(load_tokenizer(model.files()))) return;
    refuse(fmt::format("is by model {}, whose vocabulary is not that of {}", recipe_.model, model_name(model.files())));
  }

  void check_prompts() const {
    if (options_.prompts.text.empty()) return;
    const std::string sha256 = load_prompts(resolve_path(spec_, options_.prompts)).sha256;
    if (sha256 == recipe_.prompts_sha256) return;
    refuse(fmt::format("was written from other prompts ({}, SHA-256 {:.12}…), expected {:.12}…", recipe_.prompts,
                       recipe_.prompts_sha256, sha256));
  }

  const Spec& spec_;
  const DataSpec& data_;
  OwnOptions options_;
  const OwnRecipe& recipe_;
  const fs::path& file_;
};

}  // namespace

fs::path own_traces_file(const Spec& spec, const DataSpec& data, const ModelIdentity& model) {
  const OwnOptions options = parse_own_options(data);
  if (!options.traces.text.empty()) return resolve_path(spec, options.traces);
  std::string stem = fs::path(options.prompts.text).filename().string();
  stem = stem.substr(0, stem.find('.', 1));
  return model.folder() / "own" / (stem + ".jsonl.xz");
}

OwnTraces load_own_traces(const Spec& spec, const DataSpec& data, const ModelIdentity& model) {
  const fs::path file = own_traces_file(spec, data, model);
  std::error_code error;
  if (!fs::exists(file, error)) {
    throw UserError(
        fmt::format("{}: data: '{}': there are no traces yet, expected {}; `kvlab write {}` lets the model "
                    "write them",
                    data.source.where, data.name, file.string(), spec.file));
  }
  OwnTraces traces = parse_own_traces(unxz(RegularFile(file).read(), file.string()), file.string());
  Judge(spec, data, traces, file).judge(model);
  return traces;
}

std::string vocabulary_sha256(const Tokenizer& tokenizer) {
  Sha256 hash;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.has_token(id)) continue;
    const std::string_view bytes = tokenizer.decode_token(id);
    hash.update(fmt::format("{} {} ", id, bytes.size()));
    hash.update(bytes);
  }
  return hash.hex();
}

}  // namespace kv
