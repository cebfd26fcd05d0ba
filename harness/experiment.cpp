#include "harness/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "harness/auto_batch.h"
#include "harness/failure.h"
#include "harness/input_hashes.h"
#include "harness/journal.h"
#include "harness/manifest.h"
#include "harness/notice.h"
#include "harness/protocols/protocol.h"
#include "harness/protocols/unit.h"
#include "harness/ranks/agreement.h"
#include "harness/ranks/estimated_cost.h"
#include "harness/ranks/finished_pieces.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "harness/ranks/rank_machines.h"
#include "harness/ranks/shared_work.h"
#include "harness/result_folder.h"
#include "harness/results.h"
#include "harness/rows.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "harness/unit_key.h"
#include "harness/work_queue.h"
#include "kernels/cpu/parallel.h"
#include "kernels/error.h"

namespace kv {
namespace {

using Clock = std::chrono::steady_clock;
using CaseRows = std::vector<std::vector<Row>>;  // [cases], each in the order of the samples

class Experiment {
 public:
  Experiment(const Spec& spec, const RunOptions& options, Ranks& ranks, std::unique_ptr<Backend> backend,
             Clock::time_point begin)
      : spec_(spec),
        options_(options),
        ranks_(ranks),
        begin_(begin),
        grid_(make_grid(spec)),
        axes_(spec.axis_columns()),
        backend_(std::move(backend)),
        model_(grid_.workloads.front().model),
        subject_(open()),  // a refused model leaves no folder
        journal_(options.out, code_identity()) {
    if (ranks.is_first()) folder_.emplace(options.out);
    if (ranks.is_first() && options.start == Start::kFresh) journal_.forget();
    if (ranks.is_first()) manifest_.hashes = hash_inputs(spec, grid_);
  }

  // Several ranks finish all units together; the first then finds them in the journal, and goes on as one by itself.
  RunSummary go() {
    require_alike();
    last_store_ = Clock::now();
    manifest_.times.start = seconds_since(begin_);
    if (ranks_.are_several()) finish_together();
    if (!ranks_.is_first()) {
      await_assembly();
      return {};
    }
    progress_.emplace(options_.verbosity, total());
    const Clock::time_point assembly = Clock::now();
    for (const Workload& workload : grid_.workloads) run_workload(workload);
    if (ranks_.are_several()) manifest_.times.assembly = seconds_since(assembly);
    subject_.reset();
    summary_.reused -= together_cases_;
    manifest_.seconds = earlier_seconds_ - together_seconds_ + seconds_since(begin_);
    finish();
    if (closing_) await_assembly();
    return std::move(summary_);
  }

 private:
  // A unit's key names all that its rows depend on, and the first rank looks for those of the others by its own.
  void require_alike() {
    if (!ranks_.are_several()) return;
    std::string accelerator;
    for (const auto& [fact, text] : backend_->accelerator()) accelerator += fmt::format("{} {}; ", fact, text);
    std::string builds = machine_identity(false);
    std::replace(builds.begin(), builds.end(), '\n', ';');
    require_same(ranks_, "GPUs", accelerator);
    require_same(ranks_, "processors or builds", builds);
    if (spec_.protocol->samples_repeat) require_same(ranks_, "threads", std::to_string(cpu::thread_count()));
  }

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
    manifest_.times.workloads.push_back({.name = name_of(batch_of(workload, 0, workload.samples)),
                                         .samples = workload.samples,
                                         .seconds = std::vector<double>(workload.cases.size(), 0.0)});
    for (int first = 0; first < workload.samples; first += size) {
      run_batch(batch_of(workload, first, std::min(size, workload.samples - first)), rows);
    }
    if (spec_.protocol->finish) spec_.protocol->finish(spec_, workload.cases, rows);
    for (std::vector<Row>& case_rows : rows) std::move(case_rows.begin(), case_rows.end(), std::back_inserter(rows_));
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

  // Ranks take pieces of the workloads until none is left: a batch of samples, whose cases share what is computed of
  // them once; where samples are repetitions there is one batch, and each case is a piece. What a rank had begun that
  // was lost meanwhile, the others find missing.
  void finish_together() {
    progress_.emplace(options_.verbosity, total());
    manifest_.ranks = gather_machines(ranks_, backend_->accelerator());
    SharedWork::Outcome outcome;
    do {
      work_.emplace(ranks_, static_cast<int>(grid_.workloads.size()));
      outcome =
          work_->await_all(take_pieces(), [&](int64_t finished) { progress_->finished(static_cast<int>(finished)); });
      note_lost(outcome);
      together_cases_ += static_cast<int>(work_->computed());
      together_seconds_ += work_->computed_seconds();
      work_.reset();
    } while (outcome.begin_again);
    note_busy();
    progress_.reset();
    closing_.emplace(ranks_, 0);
  }

  // Whoever dies while the first rank assembles leaves nothing undone.
  void await_assembly() {
    closing_->await_all(SharedWork::End::kNothingLeft, [](int64_t) {});
    closing_.reset();
  }

  // What fails on a rank ends its own work. Where the first one fails or the user is mistaken all end. (A GPU that
  // fails aborts its process, which is then lost like one that was killed.)
  SharedWork::End take_pieces() {
    if (has_failed_) return SharedWork::End::kNothingLeft;
    last_store_ = Clock::now();  // to wait for others is no unit's time
    try {
      const std::vector<size_t> order = largest_first(grid_.workloads);
      for (size_t at = 0; at < order.size(); ++at) finish_workload(grid_.workloads[order[at]], static_cast<int>(at));
      busy_seconds_ = seconds_since(begin_);
      return SharedWork::End::kNothingLeft;
    } catch (const std::exception& error) {
      const Failure failure = failure_of(error);
      if (ranks_.is_first() || failure.exit_code == 2) throw;
      notice(fmt::format("kvlab: rank {}: {}; the others do what it had begun", ranks_.number_of(ranks_.rank()),
                         failure.message));
      has_failed_ = true;
      return SharedWork::End::kFailed;
    }
  }

  void finish_workload(const Workload& workload, int queue) {
    const auto cases = static_cast<int64_t>(workload.cases.size());
    const bool by_case = spec_.protocol->samples_repeat;
    // Who comes when all is taken opens nothing. There are no more pieces than samples, or cases.
    int64_t piece = work_->take(queue);
    if (piece >= (by_case ? cases : workload.samples)) return;
    open_model(workload.model);
    const int64_t size = batch_size(workload);
    for (; piece * (by_case ? 1 : size) < (by_case ? cases : workload.samples); piece = work_->take(queue)) {
      const int first = by_case ? 0 : static_cast<int>(piece * size);
      const UnitBatch batch = batch_of(workload, first, std::min(static_cast<int>(size), workload.samples - first));
      const std::unique_ptr<UnitRunner> runner = open_batch(batch);
      Units units =
          finish_units(batch, *runner, by_case ? std::vector{static_cast<size_t>(piece)} : all_cases(workload));
      if (by_case) continue;  // whose units are few, and found as those of an earlier start
      pieces_.add(number_of(workload), first, {.prompts = runner->prompts(), .keys = std::move(units.keys)});
    }
  }

  static std::vector<size_t> all_cases(const Workload& workload) {
    std::vector<size_t> cases(workload.cases.size());
    std::iota(cases.begin(), cases.end(), size_t{0});
    return cases;
  }

  // Of the ranks that were left until now.
  void note_lost(const SharedWork::Outcome& outcome) {
    std::vector<RankMachine*> left;
    for (RankMachine& machine : manifest_.ranks) {
      if (!machine.is_lost) left.push_back(&machine);
    }
    for (const int rank : outcome.lost) left[static_cast<size_t>(rank)]->is_lost = true;
    if (!ranks_.is_first()) return;
    for (const int number : outcome.numbers) {
      notice(fmt::format("kvlab: rank {} is gone; the others do what it had begun", number));
    }
  }

  // One that failed is lost, too, but lives and says so.
  void note_busy() {
    const std::vector<std::string> seconds = ranks_.gather(has_failed_ ? "" : shortest(busy_seconds_));
    const std::vector<std::string> pieces = ranks_.gather(pieces_.text());
    if (ranks_.is_first()) std::ranges::for_each(pieces, [&](const std::string& text) { pieces_.merge(text); });
    auto of_rank = seconds.begin();
    for (RankMachine& machine : manifest_.ranks) {
      if (machine.is_lost) continue;
      machine.is_lost = of_rank->empty();
      if (!machine.is_lost) machine.busy_seconds = std::stod(*of_rank);
      ++of_rank;
    }
  }

  // Finished units come from the journal; the protocol gets the others together.
  void run_batch(const UnitBatch& batch, CaseRows& rows) {
    const std::vector<Case>& cases = batch.workload.cases;
    std::vector<std::optional<FinishedUnit>> units = known_units(batch);
    if (units.empty()) {
      const std::unique_ptr<UnitRunner> runner = open_batch(batch);
      note_prompts(batch, runner->prompts());
      units = finish_units(batch, *runner, all_cases(batch.workload)).finished;
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      summary_.cases += weight(batch.count);
      manifest_.times.workloads.back().seconds[i] += units[i]->seconds;
      note_problems(batch, cases[i], units[i]->rows);
      std::move(units[i]->rows.begin(), units[i]->rows.end(), std::back_inserter(rows[i]));
    }
  }

  // Those of a batch that a rank says it has finished; none where one of them is missing.
  std::vector<std::optional<FinishedUnit>> known_units(const UnitBatch& batch) {
    const FinishedPiece* piece = pieces_.find(number_of(batch.workload), batch.first);
    if (!piece) return {};
    std::vector<std::optional<FinishedUnit>> units(piece->keys.size());
    cpu::parallel_for(std::ssize(units), [&](int64_t i) {
      units[static_cast<size_t>(i)] = journal_.find(piece->keys[static_cast<size_t>(i)], axes_);
    });
    if (!std::ranges::all_of(units, [](const auto& unit) { return unit.has_value(); })) return {};
    note_prompts(batch, piece->prompts);
    for (const auto& unit : units) note_reused(batch, *unit);
    return units;
  }

  size_t number_of(const Workload& workload) const { return static_cast<size_t>(&workload - grid_.workloads.data()); }

  std::unique_ptr<UnitRunner> open_batch(const UnitBatch& batch) {
    progress_->doing(fmt::format("{} sample {}", batch.data(), batch.first));
    return spec_.protocol->open(batch);
  }

  struct Units {  // [cases]; where some alone are wanted, the others are empty
    std::vector<std::string> keys;
    std::vector<std::optional<FinishedUnit>> finished;
  };

  // The units of those cases, by their index among all.
  Units finish_units(const UnitBatch& batch, UnitRunner& runner, const std::vector<size_t>& wanted) {
    const std::vector<Case>& cases = batch.workload.cases;
    const std::string inputs = runner.inputs();
    std::vector<std::string> keys(cases.size());
    std::vector<std::optional<FinishedUnit>> units(cases.size());
    std::vector<size_t> missing;
    cpu::parallel_for(std::ssize(wanted), [&](int64_t at) {
      const size_t i = wanted[static_cast<size_t>(at)];
      keys[i] = unit_key(batch, cases[i], inputs);
      units[i] = journal_.find(keys[i], axes_);
    });
    for (const size_t i : wanted) units[i] ? note_reused(batch, *units[i]) : missing.push_back(i);
    if (!missing.empty()) run_missing(batch, runner, missing, keys, units);
    return {.keys = std::move(keys), .finished = std::move(units)};
  }

  void note_reused(const UnitBatch& batch, const FinishedUnit& unit) {
    if (!work_) {
      summary_.reused += weight(batch.count);
      earlier_seconds_ += unit.seconds;
    }
    note_finished(batch, [&] { progress_->reused(weight(batch.count)); });
  }

  // Of several ranks the first shows what all have finished.
  void note_finished(const UnitBatch& batch, const std::function<void()>& alone) {
    if (!work_) return alone();
    progress_->finished(static_cast<int>(work_->add_finished(weight(batch.count))));
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
  // it is no finished unit. Seconds are those since the unit before, or the start: those of all add up to what a run
  // took beyond its start and the opening of models.
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
    if (work_ && fits) work_->add_computed(weight(batch.count), unit.seconds);
    note_finished(batch, [&] { progress_->done(weight(batch.count)); });
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
    subject_ = open();
    last_store_ = Clock::now();  // a unit's time is its own
  }

  std::unique_ptr<Subject> open() {
    const Clock::time_point begin = Clock::now();
    std::unique_ptr<Subject> subject = open_subject(*backend_, spec_, model_, identity());
    opening_seconds_ += seconds_since(begin);
    ++openings_;
    return subject;
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
    journal_.tidy();
    manifest_.spec = &spec_;
    manifest_.overrides = options_.overrides;
    manifest_.accelerator = backend_->accelerator();
    manifest_.rows = format_rows(axes_, rows_, RowChoice::kUntimed);
    const WrittenRows rows = written_rows(axes_, std::move(rows_));
    manifest_.times.open = opening_seconds_ / openings_;
    manifest_.times.bytes = std::ssize(rows.csv);
    manifest_.cases = summary_.cases;
    summary_.markdown = write_results(*folder_, spec_, options_.draw, rows, manifest_json(manifest_));
  }

  const Spec& spec_;
  const RunOptions& options_;
  Ranks& ranks_;
  const Clock::time_point begin_;
  Grid grid_;
  std::vector<std::string> axes_;
  std::unique_ptr<Backend> backend_;
  int model_;
  double opening_seconds_ = 0;
  int openings_ = 0;
  std::unique_ptr<Subject> subject_;    // of that model
  std::optional<ResultFolder> folder_;  // the first rank's
  Journal journal_;
  std::optional<Progress> progress_;
  std::optional<SharedWork> work_;     // while ranks finish units together
  std::optional<SharedWork> closing_;  // while the first one assembles and the others wait
  FinishedPieces pieces_;              // of this rank; in the end the first one has those of all
  int together_cases_ = 0;             // that they computed then
  double together_seconds_ = 0;
  double busy_seconds_ = 0;  // until this rank found nothing left to do
  bool has_failed_ = false;  // this rank
  std::mutex finishing_;     // a unit: journal, clock and progress
  Clock::time_point last_store_;
  double earlier_seconds_ = 0;  // of the units that earlier runs finished
  std::vector<Row> rows_;
  ManifestInputs manifest_;
  RunSummary summary_;
};

}  // namespace

RunSummary run_units(const Spec& spec, const RunOptions& options, Clock::time_point begin) {
  const std::unique_ptr<Ranks> alone = options.ranks ? nullptr : lone_rank();
  Ranks& ranks = options.ranks ? *options.ranks : *alone;
  std::unique_ptr<Backend> backend;
  agree(ranks, [&] { backend = make_backend(spec.device); });
  require_own_devices(ranks, backend->device_identity());  // before it holds a model
  std::optional<Experiment> experiment;
  agree(ranks, [&] { experiment.emplace(spec, options, ranks, std::move(backend), begin); });
  require_shared(ranks, options.out);
  RunSummary summary;
  end_all_where_it_fails(ranks, [&] { summary = experiment->go(); });
  return summary;
}

}  // namespace kv
