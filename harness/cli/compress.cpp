#include "sim/replay/compress.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/inputs.h"
#include "harness/cli/verbs.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"

namespace kv {
namespace {

struct CompressArguments {
  std::string model, policy, out, device = "cpu";
  IdsArguments input;
  double keep = 0;
  uint64_t seed = 0;
};

void run_compress(const CompressArguments& arguments) {
  check_replaceable(arguments.out);
  const auto backend = make_backend(arguments.device);  // outlives the policy, whose state lives on it
  Policy policy = load_evicting_policy(arguments.policy, arguments.model);
  const std::vector<int32_t> ids = load_ids(arguments.input, arguments.model);
  ModelSource source(*backend, load_model(arguments.model));
  const CompressResult result = compress(*backend, source, policy, ids, arguments.keep, arguments.seed);
  const std::vector<int64_t> shape = {result.layers, result.kv_heads, result.tokens};
  const std::vector<TensorData> tensors = {
      {.name = "score", .dtype = Dtype::kF32, .shape = shape, .data = result.score.data()},
      {.name = "keep", .dtype = Dtype::kU8, .shape = shape, .data = result.keep.data()},
  };
  write_safetensors(arguments.out, tensors, {{"format", "kvlab-compress"}, {"policy", policy.name}});
}

}  // namespace

void add_compress(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<CompressArguments>();
  CLI::App* verb = app.add_subcommand("compress", "Writes a policy's scores and keep mask after a prefill");
  add_model_option(*verb, arguments->model);
  add_ids_options(*verb, arguments->input);
  verb->add_option("--policy", arguments->policy, "policy, as inline YAML or a file")->required();
  verb->add_option("--keep", arguments->keep, "fraction of the tokens that stays, above 0 and at most 1")
      ->required()
      ->check(CLI::Range(1e-6, 1.0));
  verb->add_option("--out", arguments->out, "safetensors file: score f32 and keep u8, [layers, kv_heads, tokens]")
      ->required();
  verb->add_option("--seed", arguments->seed, "of policies that draw");
  verb->add_option("--device", arguments->device, "cpu or cuda");
  verb->footer(
      "Example:\n"
      "  kvlab compress --model M --ids ids.safetensors --policy '{policy: snapkv, mode: kvpress}' --keep 0.25 "
      "--out keep.safetensors");
  verb->callback([arguments] { run_compress(*arguments); });
}

}  // namespace kv
