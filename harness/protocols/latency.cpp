#include <fmt/format.h>

#include "harness/protocols/latency_runner.h"
#include "harness/protocols/protocol.h"
#include "harness/spec/case_check.h"
#include "harness/spec/grid.h"
#include "harness/spec/places.h"
#include "sim/replay/schedule.h"

namespace kv {
namespace {

// What means nothing where only time and memory are measured.
void check_latency(const Spec& spec) {
  spec.refuse_key("trace", "protocol latency runs a model, expected the key 'model'");
  spec.refuse_key("data", "protocol latency draws its own tokens, expected no such key");
  spec.refuse_key("metrics", "protocol latency has its own rows, expected no such key");
  spec.refuse_key("batch", "under protocol latency a batch is an axis, expected axes: {batch: ...}");
}

// A prompt that is cut once, or a generation that is pruned as it goes.
void check_latency_case(const CaseCheck& check) {
  const TimedRun timed = TimedRun::of(check.candidate);
  const Policy& policy = check.policy;
  if (timed.context == 0 && timed.new_tokens == 0) check.refuse("needs an axis context or new_tokens");
  if (timed.prefill_chunk > 0 && timed.context == 0)
    check.refuse("has no prompt to read in chunks; needs an axis context");
  if (!policy.scorer) return;
  if (policy.admission->window() > 0) {
    check.refuse(
        "is timed without an admission alone, which leaves its events to chance; expected one that never evicts",
        check.where_of({kAdmissionAxis}));
  }
  if (policy.oracle()) {
    check.refuse(fmt::format("needs {}, which nothing computes there", check.wish_of_oracle()),
                 check.where_of_oracle());
  }
  const bool is_pruned = timed.budget > 0 && timed.interval > 0 && timed.keep == 0;
  const bool is_cut = timed.budget == 0 && timed.interval == 0 && timed.keep > 0;
  if (!is_pruned && !is_cut) check.refuse("needs either the axes budget and interval or the axis keep");
  if (is_pruned && timed.context > 0) check.refuse("takes either the axis context, or budget and interval");
  if (is_cut && timed.context == 0) check.refuse("needs the axis context, of which keep is a fraction");
  if (is_pruned && check.check_pruning(timed.budget, timed.interval) != timed.interval) {
    check.refuse("prunes at an interval of its own; expected one that keeps to the asked interval");
  }
  if (is_cut) {
    at(check.where_of({"budget", "keep"}),
       [&] { policy.scorer->check_budget(kept_tokens(timed.context, timed.keep), 0); });
  }
}

ProtocolAxis batch_axis() {
  return {.name = "batch", .help = "sequences at once; max: as many as fit", .check = [](const GivenParam& param) {
            if (param.text != "max") whole_number(param, 1, 1 << 30, "a number of sequences, or max");
          }};
}

std::string latency_plan(const Spec& spec, const Grid& grid) {
  size_t cases = 0;
  for (const Workload& workload : grid.workloads) cases += workload.cases.size();
  return fmt::format("{}: {} cases, each measured {} times", spec.name, cases, spec.samples);
}

const RegisterProtocol latency{{
    .name = "latency",
    .summary = "time and memory of prompts and generations over random tokens; samples are repetitions",
    .reads_data = false,
    .judges_answers = false,
    .takes_every_slot = true,
    .samples_repeat = true,
    .axes = {token_axis("context", "tokens of the prompt, whose prefill is timed"),
             token_axis("new_tokens", "tokens of the generation whose time is worked out"),
             batch_axis(),
             cutting(budget_axis()),
             cutting(interval_axis()),
             cutting(fraction_axis("keep", "share of the prompt's entries that a head keeps, on average")),
             token_axis("prefill_chunk", "tokens of the prompt that are read at once, in place of the spec's key"),
             {.name = "arm", .help = "only names a point, for tables and for `only`"}},
    .numbers = {"prefill_time",  "compress_time",    "admission_time",      "kept_kv_bytes",       "held_bytes",
                "learned_bytes", "decode_step_time", "eviction_event_time", "eviction_score_time", "eviction_cut_time",
                "decode_time",   "eviction_time",    "generation_time",     "decode_throughput",   "evictions",
                "weight_bytes",  "peak_kv_bytes",    "peak_bytes",          "batch_size",          "max_batch"},
    .headlines = {{.name = "prefill-time",
                   .title = "Time to first token",
                   .metric = "prefill_time",
                   .better = "lower",
                   .axis = "context"},
                  {.name = "decode-step-time",
                   .title = "Time of a decode step",
                   .metric = "decode_step_time",
                   .better = "lower",
                   .unit = "ms"},
                  {.name = "decode-throughput",
                   .title = "Tokens generated a second",
                   .metric = "decode_throughput",
                   .better = "higher",
                   .axis = "new_tokens"},
                  {.name = "peak-memory",
                   .title = "Memory at its peak",
                   .metric = "peak_bytes",
                   .better = "lower",
                   .unit = "GB"}},
    .starter = R"(axes:                    # every combination runs; kvlab describe axes
  context: [256, 512]    # tokens of the prompt
  keep: 0.5              # share of them that a head keeps
)",
    .starter_policies = "[full, snapkv, keydiff]",
    .check = check_latency,
    .check_case = check_latency_case,
    .plan = latency_plan,
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> {
      return std::make_unique<LatencyRunner>(batch);
    },
}};

}  // namespace
}  // namespace kv
