#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "harness/protocols/answer_runner.h"
#include "harness/protocols/batch_memory.h"
#include "harness/protocols/chat_option.h"
#include "harness/protocols/protocol.h"
#include "harness/protocols/pruning.h"
#include "harness/spec/case_check.h"
#include "harness/spec/grid.h"
#include "harness/spec/places.h"
#include "kernels/error.h"
#include "sim/tasks/answer_metrics.h"

namespace kv {
namespace {

// A policy that leaves a slot open must have it filled with that at some point of the axes.
void require_point(const Spec& spec, std::string_view slot, std::string_view filling) {
  for (const Axis& axis : spec.axes) {
    const auto is = [&](const std::vector<GivenParam>& point, std::string_view wanted) {
      return std::any_of(point.begin(), point.end(), [&](const GivenParam& param) {
        return param.key == slot && (wanted.empty() || param.text == wanted);
      });
    };
    const auto any = [&](std::string_view wanted) {
      return std::any_of(axis.points.begin(), axis.points.end(), [&](const auto& point) { return is(point, wanted); });
    };
    if (!any("") || any(filling)) continue;
    throw UserError(
        fmt::format("{}: axes: {}: protocol answer needs the policy full, too, expected '{}' among the values",
                    axis.where, slot, filling));
  }
}

// Tasks that the full cache fails are left out of averages, so its score must be among the rows.
void check_answer(const Spec& spec) {
  spec.refuse_key("trace", "protocol answer runs a model, expected the key 'model'");
  spec.refuse_key("metrics", "protocol answer has its own rows, expected no such key");
  sampling_of(spec);
  needles_of(spec);
  asks_for_chat(spec);
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kTask && data.kind != DataKind::kJsonl) {
      throw UserError(fmt::format("{}: data: '{}' asks nothing; protocol answer expects a task or jsonl",
                                  data.source.where, data.name));
    }
    if (!data.metric.empty()) at(data.source.where, [&] { return find_answer_metric(data.metric); });
  }
  const bool has_full = std::any_of(spec.policies.begin(), spec.policies.end(), [](const Component& policy) {
    return policy.name == "full" && policy.slots.show_all();
  });
  if (!has_full) throw UserError(fmt::format("{}: protocol answer needs the policy full among others", spec.file));
  require_point(spec, kAdmissionAxis, "none");
  require_point(spec, kSelectionAxis, "all");
}

// A context is compressed once, or pruned while it is read.
void check_answer_case(const CaseCheck& check) {
  const bool is_cut = check.candidate.fraction("keep") > 0, prunes = is_pruned(check.candidate);
  if (is_cut && prunes) {
    throw UserError(fmt::format(
        "{}: axes: protocol answer takes either the axis keep or the axes budget and interval, or capacity, "
        "not both",
        check.where_of({"budget", "interval", "capacity"})));
  }
  if (!check.policy.scorer) return;
  if (!is_cut && !prunes) check.refuse("needs the axis keep, the axes budget and interval, or the axis capacity");
  if (check.policy.oracle()) {
    throw UserError(fmt::format("{}: policy '{}' needs {}, which protocol answer has yet to write",
                                check.where_of_oracle(), check.component().label, check.wish_of_oracle()));
  }
  if (prunes) check_pruning(check);
  if (is_cut) at(check.where_of({kAdmissionAxis}), [&] { check_admission(check.policy, 0); });
}

std::string answer_plan(const Spec& spec, const Grid& grid) {
  int64_t answers = 0, contexts = 0;
  for (const Workload& workload : grid.workloads) {
    answers += static_cast<int64_t>(workload.cases.size()) * workload.samples;
    contexts += workload.samples;
  }
  return fmt::format("{}: {} contexts, {} times answered", spec.name, contexts, answers);
}

// Lines of a data set that ask nothing.
Remarks malformed_lines(const UnitBatch& batch) {
  const std::vector<JsonlProblem> problems = batch.subject.malformed(batch.workload);
  if (problems.empty()) return {};
  Remarks remarks;
  Row row{
      .experiment = batch.spec.name, .model = batch.subject.name(), .data = batch.data(), .device = batch.spec.device};
  row.axes.resize(batch.spec.axis_columns().size());
  row.metric = "malformed_lines";
  row.value = static_cast<double>(problems.size());
  for (const JsonlProblem& problem : problems) {
    row.text += (row.text.empty() ? "" : "; ") + problem.reason;
    remarks.problems.push_back(fmt::format("left out: {}", problem.reason));
  }
  remarks.rows.push_back(std::move(row));
  return remarks;
}

std::vector<ProtocolAxis> answer_axes() {
  std::vector<ProtocolAxis> axes = pruning_axes();
  axes.insert(axes.begin(), fraction_axis("keep", "share of the context's entries that a head keeps, on average"));
  axes.push_back(word_axis("query", {"agnostic", "aware"}, "whether the question is part of what is compressed"));
  return axes;
}

const RegisterProtocol answer{{
    .name = "answer",
    .summary = "questions are asked of a context that was compressed once, or pruned while it was read, and the "
               "generated answers graded",
    .takes_questions = true,
    .takes_every_slot = true,
    .axes = answer_axes(),
    .keys = {{.name = "sampling",
              .help = "how answers are drawn; greedy without it",
              .read = [](Params& params) { read_sampling(params); }},
             {.name = "needles",
              .help = "rows of where a question's needles stay; none without it",
              .read = [](Params& params) { asks_for_needles(params); }},
             {.name = "chat",
              .help = "an instruct model's chat template; without it texts are asked as they are",
              .read = [](Params& params) { reads_chat(params); }}},
    .numbers = {"accuracy", "answer_tokens", "repetition_rate", "truncation_rate", "kept_tokens", "kept_tokens_max",
                "kept_kv_bytes", "cache_bytes", "learned_bytes", "prefill_time", "compress_time", "answer_time"},
    .headlines =
        {{.name = "accuracy", .title = "Accuracy by task", .metric = "accuracy", .better = "higher", .unit = "%"}},
    .starter =
        R"(data:                                              # or {jsonl: my.jsonl}: contexts, questions and answers
  - {task: needle, tokens: 512, values: 1, questions: 1}  # kvlab list tasks, kvlab describe needle
  - {task: kv, tokens: 512, questions: 1}
axes:                                              # every combination runs; kvlab describe axes
  keep: [0.5, 0.2]                                 # share of the context that a head keeps
)",
    .starter_policies = "[full, snapkv, keydiff]  # full must be among them: what it cannot answer is left out",
    .check = check_answer,
    .check_case = check_answer_case,
    .plan = answer_plan,
    .memory = answer_memory,
    .remarks = malformed_lines,
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> {
      return std::make_unique<AnswerRunner>(batch, read_answer_samples(batch));
    },
    .finish = gate_by_full_cache,
}};

}  // namespace
}  // namespace kv
