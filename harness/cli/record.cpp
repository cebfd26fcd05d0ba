#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"
#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/ranks/agreement.h"
#include "harness/spec/component_reader.h"
#include "harness/spec/task_options.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/model/model_files.h"
#include "sim/replay/recorder.h"

namespace kv {
namespace {

struct RecordArguments {
  std::string model, task, out, dtype = "f32", device = "cpu";
  IdsArguments input;
  std::vector<int> layers;
  int tokens = 0;
  uint64_t seed = 0;
  uint64_t index = 0;
};

Sample task_sample(const RecordArguments& arguments) {
  const Component task = parse_component(arguments.task, "task");
  if (arguments.tokens < 1) throw UserError(fmt::format("--task {}: needs --tokens N", task.name));
  const Tokenizer tokenizer = load_tokenizer(arguments.model);
  const TaskRequest request{.task = task.name,
                            .tokens = arguments.tokens,
                            .seed = arguments.seed,
                            .index = arguments.index,
                            .options = parse_task_options(find_task(task.name), task.options),
                            .length = {},
                            .first_token = first_token_of(load_model_config(arguments.model), tokenizer)};
  return make_sample(request, tokenizer, load_shipped_text());
}

Sample plain_sample(const RecordArguments& arguments) {
  Sample sample;
  sample.ids = load_ids(arguments.input, arguments.model);
  if (arguments.tokens > 0 && static_cast<size_t>(arguments.tokens) < sample.ids.size()) {
    sample.ids.resize(static_cast<size_t>(arguments.tokens));
  }
  sample.labels.assign(sample.ids.size(), Label::kContext);
  sample.context_tokens = static_cast<int32_t>(sample.ids.size());
  return sample;
}

void record(const RecordArguments& arguments) {
  if (!arguments.task.empty() && !(arguments.input.text.empty() && arguments.input.ids.empty())) {
    throw UserError("expected exactly one of --text, --ids and --task");
  }
  const Sample sample = arguments.task.empty() ? plain_sample(arguments) : task_sample(arguments);
  const auto backend = make_backend(arguments.device);
  ModelSource source(*backend, load_model(arguments.model));
  const std::string name = model_name(arguments.model);
  record_trace(
      arguments.out, *backend, source, sample,
      {.layers = arguments.layers, .dtype = arguments.dtype == "bf16" ? Dtype::kBF16 : Dtype::kF32, .model = name});
}

}  // namespace

void add_record(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<RecordArguments>();
  CLI::App* verb = app.add_subcommand("record", "Runs a model over a text or task and writes a trace");
  add_model_option(*verb, arguments->model);
  add_ids_options(*verb, arguments->input);
  verb->add_option("--task", arguments->task, "task, as a name, inline YAML or a file");
  verb->add_option("--tokens", arguments->tokens, "length of the task's sample; most tokens of a text")
      ->check(at_least(1));
  verb->add_option("--seed", arguments->seed, "of the task");
  verb->add_option("--index", arguments->index, "number of the task's sample");
  verb->add_option("--layers", arguments->layers, "layers to record, such as 0,3,7 (default: all)")->delimiter(',');
  verb->add_option("--dtype", arguments->dtype, "f32 or bf16")->check(any_word_of({"f32", "bf16"}));
  verb->add_option("--out", arguments->out, "trace file (safetensors)")->required();
  verb->add_option("--device", arguments->device, "cpu or cuda");
  verb->footer(
      "Examples:\n"
      "  kvlab record --model experiments/models/reference --task reason --tokens 2048 --layers 0,3,7 --out "
      "t.safetensors\n"
      "  kvlab record --model M --text README.md --dtype bf16 --out t.safetensors\n"
      "A spec replays it with `trace: t.safetensors`.");
  verb->callback([arguments] {
    require_alone("kvlab record");
    record(*arguments);
  });
}

}  // namespace kv
