#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "harness/cli/inputs.h"
#include "harness/cli/kept_positions.h"
#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"
#include "sim/source/model_source.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct ScoreArguments {
  std::string model, out, keeps, policy, device = "cpu";
  IdsArguments input;
  int logits_tail = 0;
  int budget = 0;
  int interval = 0;
  uint64_t seed = 0;
};

struct Scores {
  std::vector<float> nll, entropy;  // [T], the last nll is of nothing
};

class LossKeeper final : public Observer {
 public:
  explicit LossKeeper(Scores& scores) : scores_(scores) {}
  void block_done(const Block&, const TokenLosses& losses) override {
    scores_.nll.insert(scores_.nll.end(), losses.nll.begin(), losses.nll.end());
    scores_.entropy.insert(scores_.entropy.end(), losses.entropy.begin(), losses.entropy.end());
  }

 private:
  Scores& scores_;
};

Scores score_under(Policy& policy, const ScoreArguments& arguments, Backend& backend, ModelSource& source,
                   const std::vector<int32_t>& ids, KeptPositions& kept) {
  const std::span<const int32_t> sequences[] = {ids};
  const int32_t length = static_cast<int32_t>(ids.size());
  int interval = 0;
  std::optional<Baseline> baseline;
  Schedule schedule = full_schedule(std::span(&length, 1), 1024);
  if (policy.scorer) {
    if (arguments.budget < 1 || arguments.interval < 1) {
      throw UserError(fmt::format("--policy {}: needs --budget and --interval, at least 1 each", policy.name));
    }
    interval = check_decode(policy, arguments.budget, arguments.interval);
    schedule = decode_schedule(std::span(&length, 1), arguments.budget, interval);
    if (policy.oracle()) {
      BaselineNeeds wanted = policy.future_needs();
      wanted.merge({.statistics_block = interval});
      baseline = compute_baseline(backend, source, sequences, wanted);
    }
  }
  Scores scores;
  LossKeeper keeper(scores);
  std::vector<Observer*> observers = {&keeper};
  if (!arguments.keeps.empty()) observers.push_back(&kept);
  source.keep_logits_tail(arguments.logits_tail);
  replay({.backend = backend,
          .source = source,
          .policy = policy,
          .sequences = sequences,
          .schedule = schedule,
          .budget = policy.scorer ? arguments.budget : 0,
          .interval = interval,
          .seed = arguments.seed,
          .sample_numbers = {},
          .baseline = baseline ? &*baseline : nullptr,
          .observers = observers});
  return scores;
}

// A model whose numbers overflow has no losses; a file of NaN would look like some.
void refuse_non_finite(const Scores& scores, const std::string& model) {
  for (size_t i = 0; i < scores.entropy.size(); ++i) {
    const bool finite =
        std::isfinite(scores.entropy[i]) && (i + 1 == scores.nll.size() || std::isfinite(scores.nll[i]));
    if (!finite) {
      throw UserError(fmt::format("{}: the loss of token {} is {}, its entropy {}: the model's numbers overflow", model,
                                  i, scores.nll[i], scores.entropy[i]));
    }
  }
}

void score(const ScoreArguments& arguments) {
  check_replaceable(arguments.out);
  if (!arguments.keeps.empty()) check_replaceable(arguments.keeps);
  const std::vector<int32_t> ids = load_ids(arguments.input, arguments.model);
  const int64_t tokens = static_cast<int64_t>(ids.size());
  if (arguments.logits_tail > tokens) {
    throw UserError(fmt::format("--logits-tail {}: there are only {} tokens", arguments.logits_tail, tokens));
  }
  if (arguments.policy.empty() && (arguments.budget > 0 || arguments.interval > 0)) {
    throw UserError("--budget, --interval: without --policy the cache is full, expected --policy, too");
  }
  if (fs::path(arguments.keeps).lexically_normal() == fs::path(arguments.out).lexically_normal()) {
    throw UserError(fmt::format("--keeps {}: is the file of --out, expected another one", arguments.keeps));
  }
  if (arguments.policy.empty() && !arguments.keeps.empty()) {
    throw UserError("--keeps: without --policy everything stays, expected --policy, too");
  }
  const auto backend = make_backend(arguments.device);  // outlives the policy, whose state lives on it
  Policy policy = load_evicting_policy(arguments.policy.empty() ? "full" : arguments.policy, arguments.model);
  ModelSource source(*backend, load_model(arguments.model));
  KeptPositions kept;
  const Scores scores = score_under(policy, arguments, *backend, source, ids, kept);
  refuse_non_finite(scores, arguments.model);

  std::vector<TensorData> tensors = {
      {.name = "input_ids", .dtype = Dtype::kI32, .shape = {tokens}, .data = ids.data()},
      {.name = "nll", .dtype = Dtype::kF32, .shape = {tokens - 1}, .data = scores.nll.data()},
      {.name = "entropy", .dtype = Dtype::kF32, .shape = {tokens}, .data = scores.entropy.data()},
  };
  if (arguments.logits_tail > 0) {
    tensors.push_back({.name = "logits_tail",
                       .dtype = Dtype::kF32,
                       .shape = {arguments.logits_tail, source.vocab()},
                       .data = source.logits_tail(0).data()});
  }
  write_safetensors(arguments.out, tensors, {{"format", "kvlab-score"}, {"policy", policy.name}});
  if (!arguments.keeps.empty()) write_atomically(arguments.keeps, kept.lines());
}

}  // namespace

void add_score(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<ScoreArguments>();
  CLI::App* verb = app.add_subcommand("score", "Writes each token's loss and entropy, full cache or under a policy");
  add_model_option(*verb, arguments->model);
  add_ids_options(*verb, arguments->input);
  verb->add_option("--out", arguments->out, "safetensors file: input_ids [T], nll [T-1], entropy [T], logits_tail")
      ->required();
  verb->add_option("--logits-tail", arguments->logits_tail, "logits of the last N tokens, too")->check(at_least(0));
  verb->add_option("--policy", arguments->policy, "policy, as inline YAML or a file; without it the cache is full");
  verb->add_option("--budget", arguments->budget, "entries a KV head keeps at an event")->check(at_least(1));
  verb->add_option("--interval", arguments->interval, "tokens between events")->check(at_least(1));
  verb->add_option("--keeps", arguments->keeps,
                   "JSON lines, too: the positions that stay, an event, layer and KV head");
  verb->add_option("--seed", arguments->seed, "of policies that draw");
  verb->add_option("--device", arguments->device, "cpu or cuda");
  verb->footer(
      "Examples:\n"
      "  kvlab score --model experiments/models/reference --text README.md --out /tmp/full.safetensors\n"
      "  kvlab score --model M --ids ids.safetensors --out s.safetensors --logits-tail 4\n"
      "  kvlab score --model M --text t.txt --out s.safetensors --policy '{policy: h2o}' --budget 256 --interval 64 "
      "--keeps kept.jsonl");
  verb->callback([arguments] { score(*arguments); });
}

}  // namespace kv
