#include "harness/cli/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "harness/files.h"
#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/spec/component_check.h"
#include "harness/spec/component_reader.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"
#include "sim/policy/spelling.h"

namespace kv {

void add_model_option(CLI::App& verb, std::string& model) {
  const auto read = [&model](const std::string& name) { model = find_model(name).string(); };
  verb.add_option_function<std::string>(
          "--model", read, "Hugging Face folder, .gguf file, or OWNER/NAME in the local Hugging Face cache")
      ->required();
}

std::vector<CLI::Option*> add_ids_options(CLI::App& verb, IdsArguments& arguments) {
  auto* text = verb.add_option("--text", arguments.text, "text file; the model's first token is put in front");
  auto* ids = verb.add_option("--ids", arguments.ids, "safetensors file with input_ids (I32 or I64)");
  text->excludes(ids);
  return {text, ids};
}

std::vector<int32_t> load_ids(const IdsArguments& arguments, const std::string& model) {
  if (arguments.text.empty() == arguments.ids.empty()) throw UserError("expected either --text FILE or --ids FILE");
  if (!arguments.ids.empty()) return read_ids(arguments.ids);
  return ids_of_text(read_file(arguments.text), model);
}

std::vector<int32_t> ids_of_text(const std::string& text, const std::string& model) {
  const Tokenizer tokenizer = load_tokenizer(model);
  std::vector<int32_t> ids{first_token_of(load_model_config(model), tokenizer)};
  const std::vector<int32_t> text_ids = tokenizer.encode(text);
  ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  return ids;
}

CLI::Validator at_least(double least) {
  const auto check = [least](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least) return {};
    return fmt::format("'{}', expected a number of at least {}", text, least);
  };
  return {check, fmt::format(">= {}", least)};
}

CLI::Validator any_word_of(std::vector<std::string> words) {
  const std::string accepted = fmt::format("{}", fmt::join(words, " | "));
  const auto check = [words = std::move(words)](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return {};
    return fmt::format("'{}'{} (expected one of: {})", shown(text), did_you_mean(text, words), fmt::join(words, ", "));
  };
  return {check, accepted};
}

namespace {

// A slot by which queries may not see all that is there: entries leave between events, which verbs that tell what
// events leave have no words for.
void refuse_veils(const Policy& policy, const std::string& where) {
  const char* const why = "here yet; kvlab run takes it";
  if (policy.admission->window() > 0) {
    throw UserError(
        fmt::format("{}: admission '{}': expected none {} (docs/admissions.md)", where, policy.admission_name, why));
  }
  if (policy.selection->selects()) {
    throw UserError(
        fmt::format("{}: selection '{}': expected all {} (docs/selections.md)", where, policy.selection_name, why));
  }
}

Policy policy_of(const Component& component) {
  check_policy_names(component);
  Policy policy = make_policy(component.name, component.options, component.slots);
  require_meaning(*policy.allocation, component.slots.allocation.name);
  return policy;
}

Policy loaded(Policy policy, const std::string& model) {
  policy.load(policy.check(identity_of_files(model)));
  return policy;
}

}  // namespace

Policy load_policy(const std::string& yaml_or_file, const std::string& model) {
  return loaded(policy_of(parse_component(yaml_or_file, "policy")), model);
}

Policy load_evicting_policy(const std::string& yaml_or_file, const std::string& model) {
  const Component component = parse_component(yaml_or_file, "policy");
  Policy policy = policy_of(component);
  refuse_veils(policy, component.where);
  return loaded(std::move(policy), model);
}

}  // namespace kv
