#include "harness/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "harness/auto_batch.h"
#include "harness/input_hashes.h"
#include "harness/journal.h"
#include "harness/manifest.h"
#include "harness/protocols/protocol.h"
#include "harness/protocols/unit.h"
#include "harness/result_folder.h"
#include "harness/results.h"
#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "harness/unit_key.h"
#include "harness/work_queue.h"
#include "kernels/error.h"

namespace kv {
namespace {

using Clock = std::chrono::steady_clock;
using CaseRows = std::vector<std::vector<Row>>;  // [cases], each in the order of the samples

class Experiment {
 public:
  Experiment(const Spec& spec, const RunOptions& options, Clock::time_point begin)
      : spec_(spec),
        options_(options),
        begin_(begin),
        grid_(make_grid(spec)),
        axes_(spec.axis_columns()),
        backend_(make_backend(spec.device)),
        model_(grid_.workloads.front().model),
        subject_(open_subject(*backend_, spec, model_, identity())),  // a refused model leaves no folder
        folder_(options.out),
        journal_(options.out, code_identity()),
        progress_(options.verbosity, total()) {
    if (options.start == Start::kFresh) journal_.forget();
    last_store_ = begin;
    manifest_.hashes = hash_inputs(spec, grid_);
  }

  RunSummary go() {
    for (const Workload& workload : grid_.workloads) run_workload(workload);
    subject_.reset();
    manifest_.seconds = earlier_seconds_ + seconds_since(begin_);
    finish();
    return std::move(summary_);
  }

 private:
  const ModelIdentity& identity() const { return grid_.models[static_cast<size_t>(model_)]; }

  int total() const {
    int cases = 0;
    for (const Workload& workload : grid_.workloads) {
      cases += weight(workload.samples) * static_cast<int>(workload.cases.size());
    }
    return cases;
  }

  // What counts as a case where `samples` of one run together: each of them, but for repetitions of one measurement.
  int weight(int samples) const { return spec_.protocol->samples_repeat ? 1 : samples; }

  int batch_size(const Workload& workload) {
    if (spec_.protocol->samples_repeat) return workload.samples;
    const UnitBatch whole = batch_of(workload, 0, workload.samples);
    const int size = spec_.batch > 0 ? spec_.batch : auto_batch(whole);
    manifest_.batches[name_of(whole)] = size;
    return size;
  }

  void run_workload(const Workload& workload) {
    open_model(workload.model);
    if (spec_.protocol->remarks) note_remarks(spec_.protocol->remarks(batch_of(workload, 0, workload.samples)));
    CaseRows rows(workload.cases.size());
    const int size = batch_size(workload);
    for (int first = 0; first < workload.samples; first += size) {
      run_batch(batch_of(workload, first, std::min(size, workload.samples - first)), rows);
    }
    if (spec_.protocol->finish) spec_.protocol->finish(spec_, workload.cases, rows);
    for (std::vector<Row>& case_rows : rows) rows_.insert(rows_.end(), case_rows.begin(), case_rows.end());
  }

  UnitBatch batch_of(const Workload& workload, int first, int count) const {
    return {.backend = *backend_,
            .spec = spec_,
            .subject = *subject_,
            .needs = grid_.needs,
            .workload = workload,
            .first = first,
            .count = count};
  }

  // Finished units come from the journal; the protocol gets the others together.
  void run_batch(const UnitBatch& batch, CaseRows& rows) {
    const std::vector<Case>& cases = batch.workload.cases;
    progress_.doing(fmt::format("{} sample {}", batch.data(), batch.first));
    const std::unique_ptr<UnitRunner> runner = spec_.protocol->open(batch);
    note_prompts(batch, runner->prompts());
    const std::string inputs = runner->inputs();
    std::vector<std::string> keys;
    std::vector<std::optional<FinishedUnit>> units;
    std::vector<size_t> missing;
    for (size_t i = 0; i < cases.size(); ++i) {
      keys.push_back(unit_key(batch, cases[i], inputs));
      units.push_back(journal_.find(keys.back(), axes_));
      units.back() ? note_reused(batch, *units.back()) : missing.push_back(i);
    }
    if (!missing.empty()) run_missing(batch, *runner, missing, keys, units);
    for (size_t i = 0; i < cases.size(); ++i) {
      summary_.cases += weight(batch.count);
      note_problems(batch, cases[i], units[i]->rows);
      rows[i].insert(rows[i].end(), units[i]->rows.begin(), units[i]->rows.end());
    }
  }

  void note_reused(const UnitBatch& batch, const FinishedUnit& unit) {
    summary_.reused += weight(batch.count);
    earlier_seconds_ += unit.seconds;
    progress_.reused(weight(batch.count));
  }

  // What does not fit the memory beside other units is tried again without them.
  void run_missing(const UnitBatch& batch, UnitRunner& runner, const std::vector<size_t>& missing,
                   const std::vector<std::string>& keys, std::vector<std::optional<FinishedUnit>>& units) {
    const std::vector<Case>& cases = batch.workload.cases;
    std::vector<const Case*> views;
    for (const size_t i : missing) views.push_back(&cases[i]);
    runner.begin(views);
    const int at_once = runner.most_at_once();
    WorkQueue queue(missing);
    backend_->side_by_side(at_once, [&] {
      queue.drain([&](size_t i) { units[i] = finish_unit(keys[i], batch, runner, cases[i], at_once == 1); });
    });
    for (const size_t i : missing) {
      if (!units[i]) units[i] = finish_unit(keys[i], batch, runner, cases[i], true);
    }
  }

  // None where other units took the memory that it needs. What does not fit though it is alone may fit another time, so
  // it is no finished unit. Seconds are those since the unit before, so that those of all add up to what a run took.
  std::optional<FinishedUnit> finish_unit(const std::string& key, const UnitBatch& batch, UnitRunner& runner,
                                          const Case& unit_case, bool alone) {
    FinishedUnit unit;
    bool fits = true;
    try {
      unit.rows = run_unit(batch, runner, unit_case);
    } catch (const MemoryError& error) {
      if (!alone) return std::nullopt;
      fits = false;
      unit.rows = batch.skipped(unit_case, error.what());
    }
    const std::lock_guard lock(finishing_);
    unit.seconds = seconds_since(last_store_);
    if (fits) unit = journal_.store(key, axes_, unit);
    last_store_ = Clock::now();
    progress_.done(weight(batch.count));
    options_.after_case();
    return unit;
  }

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  static std::vector<Row> run_unit(const UnitBatch& batch, UnitRunner& runner, const Case& unit_case) {
    try {
      return runner.run(unit_case);
    } catch (const MemoryError&) {
      throw;
    } catch (const UserError& error) {
      return batch.skipped(unit_case, error.what());
    }
  }

  void open_model(int model) {
    if (model == model_) return;
    subject_.reset();  // two models at once would double the memory
    model_ = model;
    subject_ = open_subject(*backend_, spec_, model_, identity());
  }

  void note_remarks(const Remarks& remarks) {
    rows_.insert(rows_.end(), remarks.rows.begin(), remarks.rows.end());
    summary_.problems.insert(summary_.problems.end(), remarks.problems.begin(), remarks.problems.end());
  }

  std::string name_of(const UnitBatch& batch) const {
    const int tokens = batch.workload.tokens;
    const std::string length = tokens > 0 ? fmt::format("/{} tokens", tokens) : "";
    return fmt::format("{}/{}{}", subject_->name(), batch.data(), length);
  }

  void note_prompts(const UnitBatch& batch, const std::vector<std::string>& hashes) {
    if (hashes.empty()) return;
    std::string& all = manifest_.prompts[name_of(batch)];
    for (const std::string& hash : hashes) all += hash;
  }

  void note_problems(const UnitBatch& batch, const Case& unit_case, const std::vector<Row>& rows) {
    const auto ends_case = [](const Row& row) { return row.metric.empty() && !row.skipped.empty(); };
    const auto problem = std::find_if(rows.begin(), rows.end(), ends_case);
    if (problem == rows.end()) return;
    const bool failed = problem->skipped.starts_with(kFailedPrefix);
    (failed ? summary_.failed : summary_.skipped) +=
        static_cast<int>(std::count_if(rows.begin(), rows.end(), ends_case));
    std::string axes;
    for (size_t i = 0; i < axes_.size(); ++i) axes += fmt::format(", {} {}", axes_[i], unit_case.axes[i]);
    summary_.problems.push_back(fmt::format("{}: {}, {} from sample {}{}: {}", failed ? "failed" : "skipped",
                                            problem->policy, batch.data(), batch.first, axes, problem->skipped));
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
    summary_.markdown = write_results(folder_, spec_, options_.draw, rows_, manifest_json(manifest_));
  }

  const Spec& spec_;
  const RunOptions& options_;
  const Clock::time_point begin_;
  Grid grid_;
  std::vector<std::string> axes_;
  std::unique_ptr<Backend> backend_;
  int model_;
  std::unique_ptr<Subject> subject_;  // of that model
  ResultFolder folder_;
  Journal journal_;
  Progress progress_;
  std::mutex finishing_;  // a unit: journal, clock and progress
  Clock::time_point last_store_;
  double earlier_seconds_ = 0;  // of the units that earlier runs finished
  std::vector<Row> rows_;
  ManifestInputs manifest_;
  RunSummary summary_;
};

}  // namespace

RunSummary run_units(const Spec& spec, const RunOptions& options, Clock::time_point begin) {
  return Experiment(spec, options, begin).go();
}

}  // namespace kv
