#include "harness/spec/own_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/error.h"

namespace kv {
namespace {

void require(bool holds, const Params& params, std::string_view key, std::string_view expected) {
  if (!holds) params.fail(key, fmt::format("expected {}", expected));
}

OwnOptions read(Params& params) {
  OwnOptions options;
  options.prompts.text = params.text("prompts", "file of JSON lines with `prompt`, one turn each");
  options.temperature = params.get("temperature", 0.7, "of the draws; 0: the most likely token each time");
  options.top_p = params.get("top_p", 0.95, "drawn among the likeliest that reach it");
  options.seed = params.get("seed", 1, "of the draws and of the prompts' order");
  options.turns = params.get("turns", 64, "prompts of a trace at most; the next follows after an end of text");
  options.repetition =
      params.get("repetition", 0.5, "a trace of which a larger share of 4-grams occurred before in it is refused");
  options.stored_template =
      params.get("template", "stored", {"stored", "none"},
                 "the model's chat template, where it has one, or prompts as they are") == "stored";
  options.traces.text =
      params.text("traces", "file that kvlab write made; without it own/<prompts>.jsonl.xz beside the model");
  options.any_writer =
      params.get("writer", "itself", {"itself", "any"},
                 "whose traces these may be: the model's own, or any model's of its vocabulary") == "any";
  return options;
}

void check(const Params& params, const OwnOptions& options) {
  require(options.temperature >= 0 && options.temperature <= 1e4, params, "temperature", "0 to 10000");
  require(options.top_p > 0 && options.top_p <= 1, params, "top_p", "above 0 and at most 1");
  require(options.seed >= 0, params, "seed", "at least 0");
  require(options.turns >= 1 && options.turns <= 1 << 20, params, "turns", "1 to 1048576");
  require(options.repetition > 0 && options.repetition <= 1, params, "repetition", "above 0 and at most 1");
}

}  // namespace

OwnOptions parse_own_options(const DataSpec& data) {
  Params params(std::string(kOwnTask), data.options);
  OwnOptions options = read(params);
  params.finish();
  check(params, options);
  if (options.prompts.text.empty() && options.traces.text.empty()) {
    throw UserError(fmt::format("{}: data: '{}' lacks the key 'prompts': what the model writes from", data.source.where,
                                data.name));
  }
  for (const GivenParam& given : data.options) {
    if (given.key == "prompts") options.prompts.where = given.where;
    if (given.key == "traces") options.traces.where = given.where;
  }
  return options;
}

std::vector<DeclaredParam> describe_own() {
  Params params{std::string(kOwnTask)};
  read(params);
  return params.declared();
}

}  // namespace kv
