#include "harness/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "harness/benchmarks.h"
#include "harness/journal.h"
#include "harness/manifest.h"
#include "harness/protocols/answers.h"
#include "harness/protocols/case_runner.h"
#include "harness/protocols/latency.h"
#include "harness/report/gnuplot.h"
#include "harness/report/report.h"
#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/spec/model_choice.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/model/weights.h"
#include "sim/source/trace.h"
#include "sim/tasks/jsonl.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string hash_of_ids(const Sample& sample) { return sha256_hex(std::as_bytes(std::span(sample.ids))); }

// The samples' ids, labels and links: all that a replay and its metrics read of them.
std::string hash_of_samples(const std::vector<Sample>& samples) {
  Sha256 hash;
  for (const Sample& sample : samples) {
    hash.update(fmt::format("{} {} {}\n", sample.ids.size(), sample.context_tokens, sample.links.size()));
    hash.update(std::as_bytes(std::span(sample.ids)));
    hash.update(std::as_bytes(std::span(sample.labels)));
    for (const Link& link : sample.links) {
      hash.update(fmt::format("{} {}", link.query_begin, link.query_end));
      for (const auto& [begin, end] : link.sources) hash.update(fmt::format(" {}-{}", begin, end));
      hash.update("\n");
    }
  }
  return hash.hex();
}

std::string hash_of_exam(const Exam& exam) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(exam.context)));
  for (const ExamQuestion& question : exam.questions) {
    hash.update(fmt::format("\n{} {} {}\n", question.ids.size(), question.prefix.size(), question.max_new_tokens));
    hash.update(std::as_bytes(std::span(question.ids)));
    hash.update(std::as_bytes(std::span(question.prefix)));
    for (const std::string& answer : question.answers) hash.update(fmt::format("{} {}", answer.size(), answer));
  }
  hash.update(fmt::format("{} {}", metric_name(exam.metric), exam.one_line));
  return hash.hex();
}

std::string options_text(const std::vector<GivenParam>& options) {
  std::string text;
  for (const GivenParam& option : options) text += fmt::format(" {}={}", option.key, option.text);
  return text;
}

// Rows, spec and manifest in the result folder, and the report of them.
void write_results(const Spec& spec, const RunOptions& options, std::span<const Row> rows, const std::string& manifest,
                   RunSummary& summary) {
  write_rows_atomically(options.out / "rows.csv", spec.axis_columns(), rows);
  write_atomically(options.out / "spec.yaml", spec.resolved);
  write_atomically(options.out / "manifest.json", manifest);
  if (options.draw == Draw::later) return;
  summary.markdown =
      write_report(options.out, spec.report,
                   {.title = spec.title, .question = spec.question, .spec = spec.resolved, .manifest = manifest});
}

class Experiment {
 public:
  // `begin`: when the work began.
  Experiment(const Spec& spec, const RunOptions& options, Clock::time_point begin)
      : spec_(spec),
        options_(options),
        begin_(begin),
        grid_(make_grid(spec)),
        axes_(spec.axis_columns()),
        backend_(make_backend(spec.device)),
        model_(grid_.workloads.front().model),
        subject_(open_subject(*backend_, spec, model_, identity())),  // a refused model leaves no folder
        journal_(options.out),
        progress_(options.verbosity, total()) {
    if (options.start == Start::fresh) journal_.forget();
    manifest_.models.emplace_back(subject_->name(), subject_->fingerprint());
  }

  RunSummary go() {
    for (const Workload& workload : grid_.workloads) run_workload(workload);
    subject_.reset();
    manifest_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    finish();
    return std::move(summary_);
  }

 private:
  const ModelIdentity& identity() const { return grid_.models[static_cast<size_t>(model_)]; }

  int total() const {
    int cases = 0;
    for (const Workload& workload : grid_.workloads)
      cases += batches(workload) * static_cast<int>(workload.cases.size());
    return cases;
  }

  // Under protocol latency one case measures all its repetitions.
  int batches(const Workload& workload) const {
    return spec_.protocol == Protocol::kLatency ? 1 : (workload.samples + spec_.batch - 1) / spec_.batch;
  }

  void run_workload(const Workload& workload) {
    if (workload.model != model_) {
      subject_.reset();  // two models at once would double the memory
      model_ = workload.model;
      subject_ = open_subject(*backend_, spec_, model_, identity());
      manifest_.models.emplace_back(subject_->name(), subject_->fingerprint());
    }
    note_profiles(workload);
    std::vector<std::vector<Row>> rows(workload.cases.size());
    if (spec_.protocol == Protocol::kLatency) {
      LatencyRunner runner(*backend_, spec_, *subject_);
      run_cases(workload, {.data = "random"}, rows, [&](const Case& one) { return runner.run(one); });
    } else if (spec_.protocol == Protocol::kAnswer) {
      note_malformed(workload);
      for (int batch = 0; batch < batches(workload); ++batch) answer_batch(workload, batch, rows);
      gate_by_full_cache(spec_, workload.cases, rows);
    } else {
      for (int batch = 0; batch < batches(workload); ++batch) run_batch(workload, batch, rows);
    }
    for (std::vector<Row>& own : rows) rows_.insert(rows_.end(), own.begin(), own.end());
  }

  void run_batch(const Workload& workload, int batch, std::vector<std::vector<Row>>& rows) {
    const int first = batch * spec_.batch;
    const int count = std::min(spec_.batch, workload.samples - first);
    const std::string data = data_name(workload);
    progress_.doing(fmt::format("{} sample {}", data, first));
    std::vector<Sample> samples;
    std::string unavailable;
    try {
      samples = subject_->samples(workload, first, count);
      note_prompts(workload, data, samples);
    } catch (const UserError& error) {
      unavailable = error.what();
    }
    CaseRunner runner({.backend = *backend_,
                       .spec = spec_,
                       .subject = *subject_,
                       .needs = grid_.needs,
                       .samples = samples,
                       .first = first,
                       .count = count,
                       .data = data,
                       .unavailable = unavailable});
    const std::string hash = unavailable.empty() ? hash_of_samples(samples) : sha256_hex(unavailable);
    run_cases(workload, {.data = data, .first = first, .hash = hash}, rows,
              [&](const Case& one) { return runner.run(one); });
  }

  void note_profiles(const Workload& workload) {
    for (const Case& one : workload.cases) {
      for (const InputFile& file : one.files) {
        const ManifestInputs::Profile profile{subject_->name(), file.path.filename().string(), file.sha256};
        auto& known = manifest_.profiles;
        if (std::find(known.begin(), known.end(), profile) == known.end()) known.push_back(profile);
      }
    }
  }

  void note_malformed(const Workload& workload) {
    const std::vector<JsonlProblem> problems = subject_->malformed(workload);
    if (problems.empty()) return;
    Row row{.experiment = spec_.name, .model = subject_->name(), .data = data_name(workload), .device = spec_.device};
    row.axes.resize(axes_.size());
    row.metric = "malformed_lines";
    row.value = static_cast<double>(problems.size());
    for (const JsonlProblem& problem : problems) {
      row.text += (row.text.empty() ? "" : "; ") + problem.reason;
      summary_.problems.push_back(fmt::format("left out: {}", problem.reason));
    }
    rows_.push_back(std::move(row));
  }

  void answer_batch(const Workload& workload, int batch, std::vector<std::vector<Row>>& rows) {
    const int first = batch * spec_.batch;
    const std::string data = data_name(workload);
    progress_.doing(fmt::format("{} sample {}", data, first));
    std::vector<AnswerSample> samples;
    std::string hashes;
    for (int number = first; number < std::min(first + spec_.batch, workload.samples); ++number) {
      AnswerSample sample{.number = number};
      try {
        sample.exam = std::move(subject_->exams(workload, number, 1).front());
        manifest_.prompts[prompts_name(workload, data)] += hash_of_exam(sample.exam);
        hashes += hash_of_exam(sample.exam);
      } catch (const UserError& error) {
        sample.unavailable = error.what();
        hashes += sample.unavailable;
      }
      samples.push_back(std::move(sample));
    }
    AnswerRunner runner({.backend = *backend_,
                         .spec = spec_,
                         .subject = *subject_,
                         .samples = samples,
                         .cases = workload.cases,
                         .data = data});
    run_cases(workload, {.data = data, .first = first, .hash = sha256_hex(hashes)}, rows,
              [&](const Case& one) { return runner.run(one); });
  }

  // What the cases of a batch share.
  struct Inputs {
    std::string data;
    int first = 0;
    std::string hash{};  // of the samples
  };

  template <class RunCase>
  void run_cases(const Workload& workload, const Inputs& inputs, std::vector<std::vector<Row>>& rows,
                 const RunCase& run) {
    for (size_t i = 0; i < workload.cases.size(); ++i) {
      const Case& one = workload.cases[i];
      const std::string key = key_of(one, inputs);
      std::optional<std::vector<Row>> found = journal_.find(key, axes_);
      const bool known = found.has_value();
      if (!known) {
        found = run(one);
        journal_.store(key, axes_, *found);
        options_.after_case();
      }
      ++summary_.cases;
      summary_.reused += known ? 1 : 0;
      note_problems(one, inputs, *found);
      rows[i].insert(rows[i].end(), found->begin(), found->end());
      known ? progress_.reused() : progress_.done();
    }
  }

  std::string data_name(const Workload& workload) const {
    return workload.data < 0 ? "trace" : spec_.data[static_cast<size_t>(workload.data)].name;
  }

  void note_prompts(const Workload& workload, const std::string& data, const std::vector<Sample>& samples) {
    for (const Sample& sample : samples) manifest_.prompts[prompts_name(workload, data)] += hash_of_ids(sample);
  }

  std::string prompts_name(const Workload& workload, const std::string& data) const {
    const std::string tokens = workload.tokens > 0 ? fmt::format("/{} tokens", workload.tokens) : "";
    return fmt::format("{}/{}{}", subject_->name(), data, tokens);
  }

  // Everything that determines a case's rows.
  std::string key_of(const Case& one, const Inputs& inputs) const {
    const Component& policy = spec_.policies[static_cast<size_t>(one.policy)];
    const BaselineNeeds& needs = grid_.needs;
    std::string text =
        fmt::format("code {}\nexperiment {}\nmodel {} {}\ndata {} from {} {}\n", code_identity(), spec_.name,
                    subject_->name(), subject_->fingerprint(), inputs.data, inputs.first, inputs.hash);
    text += fmt::format("policy {} as {}{}\n", policy.name, policy.label, options_text(one.options));
    text += fmt::format("allocation {}{}\n", one.allocation.name, options_text(one.allocation.options));
    for (const InputFile& file : one.files) text += fmt::format("{} reads {}\n", file.slot, file.sha256);
    text += fmt::format("protocol {} {} {} {} {}{}\n", static_cast<int>(spec_.protocol), one.budget, one.interval,
                        one.keep, one.query_aware, options_text(spec_.sampling));
    for (size_t i = 0; i < axes_.size(); ++i) text += fmt::format("axis {} = {}\n", axes_[i], one.axes[i]);
    for (const Component& metric : spec_.metrics)
      text += fmt::format("metric {}{}\n", metric.name, options_text(metric.options));
    text += fmt::format("seed {} device {} chunk {} batch {}\n", spec_.seed, spec_.device, spec_.prefill_chunk,
                        spec_.batch);
    text += fmt::format("needs {} {} {} {} {} {}\n", needs.statistics_block, needs.block_sums, needs.block_max,
                        needs.outputs, needs.projections, needs.value_norms);
    return sha256_hex(text);
  }

  void note_problems(const Case& one, const Inputs& inputs, const std::vector<Row>& rows) {
    const auto whole = std::find_if(rows.begin(), rows.end(),
                                    [](const Row& row) { return row.metric.empty() && !row.skipped.empty(); });
    if (whole == rows.end()) return;
    const bool failed = whole->skipped.starts_with(kFailedPrefix);
    (failed ? summary_.failed : summary_.skipped) += 1;
    std::string axes;
    for (size_t i = 0; i < axes_.size(); ++i) axes += fmt::format(", {} {}", axes_[i], one.axes[i]);
    summary_.problems.push_back(fmt::format("{}: {}, {} from sample {}{}: {}", failed ? "failed" : "skipped",
                                            spec_.policies[static_cast<size_t>(one.policy)].label, inputs.data,
                                            inputs.first, axes, whole->skipped));
  }

  void finish() {
    std::vector<Row> untimed;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(untimed),
                 [](const Row& row) { return !is_timing(row.metric); });
    manifest_.spec = &spec_;
    manifest_.overrides = options_.overrides;
    manifest_.accelerator = backend_->accelerator();
    manifest_.rows = format_rows(axes_, untimed);
    manifest_.cases = summary_.cases;
    write_results(spec_, options_, rows_, manifest_json(manifest_), summary_);
    journal_.remove();
  }

  const Spec& spec_;
  const RunOptions& options_;
  const Clock::time_point begin_;
  Grid grid_;
  std::vector<std::string> axes_;
  std::unique_ptr<Backend> backend_;
  int model_;
  std::unique_ptr<Subject> subject_;  // of that model
  Journal journal_;
  Progress progress_;
  std::vector<Row> rows_;
  ManifestInputs manifest_;
  RunSummary summary_;
};

BenchmarkFile load_benchmarks(const Spec& spec) {
  const fs::path path = resolve_path(spec, spec.benchmarks);
  return parse_benchmarks(read_file(path), path.string());
}

// Nothing runs: the rows of the file, and the report of them.
RunSummary tabulate(const Spec& spec, const RunOptions& options) {
  const BenchmarkFile file = load_benchmarks(spec);
  const std::vector<std::string> axes = spec.axis_columns();
  const std::vector<Row> rows = benchmark_rows(file, spec.name);
  RunSummary summary{.cases = static_cast<int>(file.benchmarks.size())};
  const std::string manifest = manifest_json({.spec = &spec,
                                              .overrides = options.overrides,
                                              .rows = format_rows(axes, rows),
                                              .benchmarks = file.manifest,
                                              .cases = summary.cases});
  const Journal journal(options.out);  // refuses a folder that cannot be written
  write_results(spec, options, rows, manifest, summary);
  journal.remove();
  return summary;
}

void check_can_draw(const Spec& spec) {
  if (spec.report.plots.empty()) return;
  try {
    check_gnuplot();
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}; run --no-draw does without, and report draws later", error.what()));
  }
}

void check_model(const Spec& spec, const ModelChoice& model) {
  if (model.random) {
    config_of(model, {});
  } else {
    load_model(resolve_path(spec, model.source));  // whose weights must be as its configuration says
  }
}

std::string latency_summary(const Spec& spec, const Grid& grid) {
  size_t cases = 0;
  for (const Workload& workload : grid.workloads) cases += workload.cases.size();
  return fmt::format("{}: {} cases, each measured {} times", spec.name, cases, spec.samples);
}

}  // namespace

bool is_timing(std::string_view metric) {
  return metric.ends_with("_time") || metric.ends_with("_throughput") || metric == "max_batch" ||
         metric == "batch_size" || metric == "peak_bytes";
}

RunSummary run_experiment(const Spec& spec, const RunOptions& options) {
  const auto begin = Clock::now();
  validate_experiment(spec);
  if (spec.protocol == Protocol::kProfile) {
    throw UserError(fmt::format("{}: protocol profile makes no rows; run `kvlab profile {}`", spec.file, spec.file));
  }
  if (options.draw == Draw::now) check_can_draw(spec);
  if (!spec.benchmarks.text.empty()) return tabulate(spec, options);
  return Experiment(spec, options, begin).go();
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
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kTask) resolve_path(spec, data.source);
    if (data.kind == DataKind::kJsonl) load_jsonl(resolve_path(spec, data.source));  // one line at least is of use
    if (data.kind == DataKind::kIds) continue;
    for (const ModelChoice& model : spec.models) {
      if (model.random) refuse_text(model);
      const fs::path file = resolve_path(spec, model.source) / "tokenizer.json";
      if (!fs::exists(file)) load_tokenizer(file.parent_path());
    }
  }
  if (spec.protocol == Protocol::kLatency) return latency_summary(spec, grid);
  if (spec.protocol == Protocol::kProfile) {
    return fmt::format("{}: {} budget profiles, of each policy and of the oracle's order, for each of {} models",
                       spec.name, spec.policies.size() + 1, spec.models.size());
  }
  int64_t cases = 0, passes = 0;
  for (const Workload& workload : grid.workloads) {
    cases += static_cast<int64_t>(workload.cases.size()) * workload.samples;
    passes += workload.samples;
  }
  if (spec.protocol == Protocol::kAnswer) {
    return fmt::format("{}: {} contexts, {} times answered", spec.name, passes, cases);
  }
  return fmt::format("{}: {} full-cache passes and {} replays of one sample", spec.name, passes, cases);
}

}  // namespace kv
