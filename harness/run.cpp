#include "harness/run.h"

#include <fmt/format.h>

#include <chrono>

#include "harness/benchmarks.h"
#include "harness/experiment.h"
#include "harness/files.h"
#include "harness/manifest.h"
#include "harness/model_tokenizer.h"
#include "harness/own_data.h"
#include "harness/protocols/protocol.h"
#include "harness/result_folder.h"
#include "harness/results.h"
#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/spec/model_choice.h"
#include "harness/subject.h"
#include "harness/train.h"
#include "kernels/error.h"
#include "sim/io/gguf.h"
#include "sim/io/hash.h"
#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "sim/source/trace.h"
#include "sim/tasks/jsonl.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

BenchmarkFile load_benchmarks(const Spec& spec) {
  const fs::path path = resolve_path(spec, spec.benchmarks);
  return parse_benchmarks(read_file(path), path.string());
}

// Nothing runs: the rows of the file, and the report of them.
RunSummary tabulate(const Spec& spec, const RunOptions& options) {
  const BenchmarkFile file = load_benchmarks(spec);
  const WrittenRows rows = written_rows(spec.axis_columns(), benchmark_rows(file, spec.name));
  RunSummary summary{.cases = static_cast<int>(file.benchmarks.size())};
  const std::string manifest =
      manifest_json({.spec = &spec,
                     .overrides = options.overrides,
                     .rows = rows.csv,
                     .benchmarks = file.manifest,
                     .benchmarks_sha256 = sha256_hex(read_file(resolve_path(spec, spec.benchmarks))),
                     .cases = summary.cases});
  summary.markdown = write_results(ResultFolder(options.out), spec, options.draw, rows, manifest);
  return summary;
}

void check_model(const Spec& spec, const ModelChoice& model) {
  if (model.random) {
    config_of(model, {});
  } else {
    load_model(find_model_files(spec, model));  // whose weights must be as its configuration says
  }
}

// UserError where a policy of the spec needs what the trace lacks.
void check_trace(const Spec& spec, const Trace& trace) {
  for (const Component& component : spec.policies) {
    const Policy policy = make_policy(component.name, component.options, component.slots);
    const auto refuse = [&](const char* what, const char* tensor) {
      throw UserError(fmt::format("{}: policy '{}' needs {}, which {} lacks (layers.N.{})", component.where,
                                  component.label, what, trace.name(), tensor));
    };
    for (const PolicySlot& place : policy.slots()) {
      const Needs needs = place.slot.needs();
      if (needs.pre_rope_queries && !trace.info().has_pre_rope_queries) refuse("pre-RoPE queries", "pre_rope_queries");
      if (needs.pre_rope_keys && !trace.info().has_pre_rope_keys) refuse("pre-RoPE keys", "pre_rope_keys");
      if (needs.inputs && !trace.info().has_inputs) refuse("layer inputs", "inputs");
    }
  }
}

// The traces that every model of the spec wrote.
void check_own(const Spec& spec, const DataSpec& data, const std::vector<ModelIdentity>& models) {
  for (const ModelChoice& model : spec.models) {
    if (model.random) refuse_text(model);
  }
  for (const ModelIdentity& model : models) load_own_traces(spec, data, model);
}

// The data's files, and a tokenizer where there are texts to read.
void check_data(const Spec& spec, const DataSpec& data, const std::vector<ModelIdentity>& models) {
  if (data.kind == DataKind::kOwn) return check_own(spec, data, models);
  if (data.kind != DataKind::kTask) resolve_path(spec, data.source);
  if (data.kind == DataKind::kJsonl) load_jsonl(resolve_path(spec, data.source));  // one line at least is of use
  if (data.kind == DataKind::kIds) return;
  for (const ModelChoice& model : spec.models) {
    if (model.random) refuse_text(model);
    const fs::path files = find_model_files(spec, model);
    if (is_gguf(files) || !has_tokenizer(files)) load_tokenizer(files);  // says what is wrong with it
  }
}

}  // namespace

RunSummary run_experiment(const Spec& spec, const RunOptions& options) {
  const auto begin = Clock::now();
  validate_experiment(spec);
  if (spec.protocol->learns) return train(spec, options);
  if (!spec.protocol->open) {
    throw UserError(fmt::format("{}: protocol {} makes no rows; run `kvlab {} {}`", spec.file, spec.protocol->name,
                                spec.protocol->verb, spec.file));
  }
  if (!spec.benchmarks.text.empty()) return tabulate(spec, options);
  return run_units(spec, options, begin);
}

std::string validate_experiment(const Spec& spec) {
  if (!spec.benchmarks.text.empty()) {
    return fmt::format("{}: a table of {} benchmarks, nothing runs", spec.name,
                       load_benchmarks(spec).benchmarks.size());
  }
  const Grid grid = make_grid(spec);
  make_backend(spec.device);
  for (const ModelChoice& model : spec.models) check_model(spec, model);
  for (const Located& trace : spec.traces)
    check_trace(spec, Trace::open(resolve_path(spec, trace), Trace::Checksum::kSkip));
  text_folder(spec);  // UserError where the spec's is not there
  for (const DataSpec& data : spec.data) check_data(spec, data, grid.models);
  return spec.protocol->plan(spec, grid);
}

}  // namespace kv
