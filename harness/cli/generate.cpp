#include "sim/replay/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"
#include "harness/model_tokenizer.h"
#include "harness/notice.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"

namespace kv {
namespace {

struct GenerateArguments {
  std::string model, prompt, out, policy, device = "cpu";
  IdsArguments input;
  int max_new_tokens = 128;
  Sampling sampling;
  int budget = 0;
  int interval = 0;
  std::optional<double> keep;
};

std::vector<int32_t> prompt_ids(const GenerateArguments& arguments) {
  const bool has_source = !(arguments.prompt.empty() && arguments.input.text.empty() && arguments.input.ids.empty());
  if (!has_source) throw UserError("expected one of --prompt TEXT, --text FILE and --ids FILE");
  if (arguments.prompt.empty()) return load_ids(arguments.input, arguments.model);
  return ids_of_text(arguments.prompt, arguments.model);
}

// Ids where the model brings no tokenizer, which --ids does not need.
std::string readable(const GenerateArguments& arguments, const std::vector<int32_t>& ids) {
  if (arguments.input.ids.empty()) return load_tokenizer(arguments.model).decode(ids);
  return fmt::format("{}", fmt::join(ids, " "));
}

void report(const GenerateResult& result, size_t prompt) {
  const GenerateResult::Sequence& sequence = result.sequences[0];
  const size_t steps = sequence.ids.size() - 1;
  std::string line =
      fmt::format("kvlab: {} tokens after {} ({}); first after {:.3f} s", sequence.ids.size(), prompt,
                  sequence.ending == GenerateResult::Ending::kStop ? "stop id" : "length", result.prefill_seconds);
  if (steps > 0) line += fmt::format(", then {:.2f} ms a token", 1e3 * result.decode_seconds / double(steps));
  const int64_t events = result.costs.sequences[0].events;
  if (events > 0) line += fmt::format("; {} cuts, {:.3f} s of them after the first", events, result.evict_seconds);
  notice(line);
}

void run_generate(const GenerateArguments& arguments) {
  const std::vector<int32_t> ids = prompt_ids(arguments);
  const auto backend = make_backend(arguments.device);  // outlives the policy, whose state lives on it
  Policy policy = load_policy(arguments.policy.empty() ? "full" : arguments.policy, arguments.model);
  ModelSource source(*backend, load_model(arguments.model));
  const std::vector<int> eos = load_model_config(arguments.model).eos_ids;
  const std::vector<int32_t> stop_ids(eos.begin(), eos.end());
  const std::span<const int32_t> prompts[] = {ids};
  const GenerateResult result = generate({.backend = *backend,
                                          .source = source,
                                          .policy = policy,
                                          .prompts = prompts,
                                          .budget = arguments.budget,
                                          .interval = arguments.interval,
                                          .keep = arguments.keep,
                                          .max_new_tokens = arguments.max_new_tokens,
                                          .stop_ids = stop_ids,
                                          .sampling = arguments.sampling,
                                          .seed = arguments.sampling.seed});
  const std::vector<int32_t>& written = result.sequences[0].ids;
  if (arguments.out.empty()) {
    fmt::print("{}\n", readable(arguments, written));
  } else {
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {std::ssize(ids)}, .data = ids.data()},
        {.name = "output_ids", .dtype = Dtype::kI32, .shape = {std::ssize(written)}, .data = written.data()},
    };
    write_safetensors(arguments.out, tensors, {{"format", "kvlab-generate"}, {"policy", policy.name}});
  }
  report(result, ids.size());
}

}  // namespace

void add_generate(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* verb = app.add_subcommand("generate", "Continues a text, over the full cache or under a policy");
  add_model_option(*verb, arguments->model);
  CLI::Option* prompt = verb->add_option("--prompt", arguments->prompt, "the text itself, as --text");
  for (CLI::Option* other : add_ids_options(*verb, arguments->input)) prompt->excludes(other);
  verb->add_option("--max-new-tokens", arguments->max_new_tokens, "tokens to write at most (default: 128)");
  verb->add_option("--temperature", arguments->sampling.temperature, "0 (default): the most likely token each time");
  verb->add_option("--top-k", arguments->sampling.top_k, "draw among that many; 0 (default): among all");
  verb->add_option("--top-p", arguments->sampling.top_p, "draw among the likeliest that reach it; 1 (default): all");
  verb->add_option("--seed", arguments->sampling.seed, "of draws, and of policies that draw");
  verb->add_option("--policy", arguments->policy, "policy, as inline YAML or a file; without it the cache is full");
  verb->add_option("--budget", arguments->budget, "entries a KV head keeps at a cut")->check(at_least(1));
  verb->add_option("--interval", arguments->interval, "tokens between cuts")->check(at_least(1));
  verb->add_option("--keep", arguments->keep, "instead: fraction of the prompt that stays, above 0 and at most 1");
  verb->add_option("--out", arguments->out, "safetensors file: input_ids [T], output_ids [N]; else text is printed");
  verb->add_option("--device", arguments->device, "cpu or cuda");
  verb->footer(
      "Examples:\n"
      "  kvlab generate --model experiments/models/reference --prompt 'It was a' --max-new-tokens 40\n"
      "  kvlab generate --model M --text t.txt --temperature 0.7 --top-p 0.95 --seed 1\n"
      "  kvlab generate --model M --text t.txt --policy '{policy: snapkv}' --budget 256 --interval 64\n"
      "  kvlab generate --model M --ids ids.safetensors --policy keydiff --keep 0.2 --out o.safetensors --device cuda");
  verb->callback([arguments] { run_generate(*arguments); });
}

}  // namespace kv
