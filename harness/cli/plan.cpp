#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "harness/cli/experiments.h"
#include "harness/cli/overrides.h"
#include "harness/cli/verbs.h"
#include "harness/protocols/protocol.h"
#include "harness/ranks/estimated_cost.h"
#include "harness/ranks/scaling.h"
#include "harness/result_origin.h"
#include "harness/run_times.h"
#include "harness/spec/grid.h"
#include "harness/spec/spec.h"
#include "kernels/error.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct PlanArguments {
  std::string spec, from;
  std::vector<std::string> measured;
  Overrides overrides;
  std::vector<int> ranks = {1, 2, 8, 64, 1024};
};

// A run that noted its times, and what a spec would take by them.
class Plan {
 public:
  Plan(const Spec& spec, const fs::path& from)
      : spec_(spec), file_((from / "manifest.json").string()), manifest_(read_result_manifest(from)) {
    const auto found = manifest_.find("times");
    if (found == manifest_.end()) {
      throw UserError(
          fmt::format("{}: says of no unit what it took; expected a run of this kvlab, of a sample or more", file_));
    }
    if (manifest_text_of(manifest_, "experiment") != spec.name) refuse("another experiment");
    times_ = run_times_from(*found, file_);
    divide(make_grid(spec, Learned::kUnread));
    double work = 0;
    for (const Piece& piece : pieces_) work += piece.seconds;
    if (!(work > 0) || !std::isfinite(work + times_.start + times_.open + times_.assembly)) {
      throw UserError(fmt::format("{}: times: of no use: all units together took {} s", file_, work));
    }
  }

  // A run of one rank has nothing to assemble, so that nobody knows what several would have.
  bool knows_assembly() const { return times_.assembly > 0; }

  ScalingEstimate on(int ranks) const {
    return estimate_scaling(
        pieces_, {.start = times_.start, .open = times_.open, .assembly = ranks > 1 ? assembly() : 0}, ranks);
  }
  size_t pieces() const { return pieces_.size(); }
  double longest() const {
    double longest = 0;
    for (const Piece& piece : pieces_) longest = std::max(longest, piece.seconds);
    return longest;
  }
  // Of the run itself: how many ranks, and what all of them took until the rows were there, to the second; of one that
  // was interrupted, more than that.
  int ranks() const {
    const auto ranks = manifest_.find("ranks");
    return ranks != manifest_.end() && ranks->is_array() && !ranks->empty() ? static_cast<int>(ranks->size()) : 1;
  }
  bool has_lost_ranks() const {
    const auto ranks = manifest_.find("ranks");
    if (ranks == manifest_.end() || !ranks->is_array()) return false;
    return std::any_of(ranks->begin(), ranks->end(),
                       [](const Json& rank) { return rank.is_object() && rank.contains("lost"); });
  }
  double took() const {
    const auto seconds = manifest_.find("seconds");
    if (seconds != manifest_.end() && seconds->is_number() && seconds->get<double>() >= 1) return *seconds;
    throw UserError(fmt::format("{}: seconds: expected a run of a second or more", file_));
  }
  void require_whole() const {
    if (has_lost_ranks()) throw UserError(fmt::format("{}: lost a rank on the way, so that no number fits it", file_));
    if (samples_ == measured_) return;
    throw UserError(fmt::format("{}: is of {} samples, expected the {} of the plan", file_, measured_, samples_));
  }
  // Of rows.csv, and as much again of the finished units that it is made of.
  double bytes() const { return 2 * static_cast<double>(times_.bytes) * growth(); }
  std::string machine() const {
    const auto machine = manifest_.find("machine");
    for (const char* fact : {"gpu", "cpu"}) {
      if (machine != manifest_.end() && machine->contains(fact) && machine->at(fact).is_string()) {
        return machine->at(fact).get<std::string>();
      }
    }
    return "an unnamed machine";
  }

 private:
  // What ranks would take, in the order in which they would.
  void divide(const Grid& grid) {
    if (grid.workloads.size() != times_.workloads.size()) refuse("other data, models or lengths");
    for (const size_t index : largest_first(grid.workloads)) {
      const Workload& workload = grid.workloads[index];
      const WorkloadTimes& times = times_.workloads[index];
      if (!times.name.ends_with(place_of(workload))) refuse("other data or lengths");
      if (workload.cases.size() != times.seconds.size()) refuse("other policies or axes");
      spec_.protocol->samples_repeat ? add_cases(workload, times) : add_batches(workload, times);
    }
  }

  // As a run names it, behind the model's name.
  std::string place_of(const Workload& workload) const {
    const std::string data = workload.data < 0 ? "" : spec_.data[static_cast<size_t>(workload.data)].name;
    return "/" + data + (workload.tokens > 0 ? fmt::format("/{} tokens", workload.tokens) : "");
  }

  void add_cases(const Workload& workload, const WorkloadTimes& times) {
    samples_ += workload.samples;
    measured_ += times.samples;
    for (const double seconds : times.seconds) {
      pieces_.push_back({workload.model, seconds / times.samples * workload.samples});
    }
  }

  void add_batches(const Workload& workload, const WorkloadTimes& times) {
    samples_ += workload.samples;
    measured_ += times.samples;
    double of_sample = 0;
    for (const double seconds : times.seconds) of_sample += seconds / times.samples;
    const int size = batch_of(times.name);
    for (int first = 0; first < workload.samples; first += size) {
      pieces_.push_back({workload.model, of_sample * std::min(size, workload.samples - first)});
    }
  }

  int batch_of(const std::string& workload) const {
    if (spec_.batch > 0) return spec_.batch;
    Json batch = manifest_.value("batch", Json());
    if (batch.is_object()) {
      const Json chosen = batch.value("auto", Json());
      batch = chosen.is_object() ? chosen.value(workload, Json()) : Json();
    }
    if (batch.is_number_integer()) {
      const auto size = batch.get<int64_t>();
      if (size >= 1 && size <= std::numeric_limits<int>::max()) return static_cast<int>(size);
    }
    throw UserError(fmt::format("{}: batch: does not say how many samples of {} ran together", file_, workload));
  }

  [[noreturn]] void refuse(const char* what) const {
    throw UserError(fmt::format("{}: is of {} than {}; expected a run of the same spec, which may have fewer samples",
                                file_, what, spec_.file));
  }

  double growth() const { return static_cast<double>(samples_) / static_cast<double>(measured_); }
  double assembly() const { return times_.assembly * growth(); }

  const Spec& spec_;
  std::string file_;
  Json manifest_;
  RunTimes times_;
  std::vector<Piece> pieces_;
  int64_t samples_ = 0, measured_ = 0;
};

std::string time_text(double seconds) {
  if (seconds < 600) return fmt::format("{:.1f} s", seconds);
  return seconds < 36000 ? fmt::format("{:.1f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string bytes_text(double bytes) {
  if (bytes < 1e6) return fmt::format("{:.0f} KB", bytes / 1e3);
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.1f} GB", bytes / 1e9);
}

// What takes most of the rank-seconds that are no work: what to change first.
std::string first_obstacle(const ScalingEstimate& estimate, size_t pieces) {
  const std::pair<double, const char*> losses[] = {
      {estimate.waiting, static_cast<size_t>(estimate.ranks) > pieces ? "more ranks than pieces" : "the last pieces"},
      {estimate.start, "start-up"},
      {estimate.open, "opening models"},
      {estimate.assembly, "assembling rows"}};
  const auto& largest = *std::max_element(std::begin(losses), std::end(losses),
                                          [](const auto& a, const auto& b) { return a.first < b.first; });
  return fmt::format("{} ({:.1f} %)", largest.second, 100 * largest.first / estimate.all());
}

void print_plan(const Spec& spec, const Plan& plan, const std::vector<int>& ranks) {
  const ScalingEstimate one = plan.on(1);
  fmt::print("{}: {} pieces, {} of work on {}, the longest {}; {} of results\n\n", spec.name, plan.pieces(),
             time_text(one.work), plan.machine(), time_text(plan.longest()), bytes_text(plan.bytes()));
  fmt::print("{:>6}  {:>10}  {:>8}  {:>6}  {}\n", "ranks", "time", "speed-up", "idle", "lost first to");
  for (const int count : ranks) {
    const ScalingEstimate estimate = plan.on(count);
    fmt::print("{:>6}  {:>10}  {:>8.2f}  {:>4.1f} %  {}\n", count, time_text(estimate.seconds),
               one.seconds / estimate.seconds, 100 * estimate.idle() / estimate.all(),
               first_obstacle(estimate, plan.pieces()));
  }
  if (!plan.knows_assembly())
    fmt::print("\nWithout what the first rank takes to assemble rows: one rank had none to.\n");
}

// What runs of the plan's size took, beside what it says of as many ranks.
void print_measured(const Spec& spec, const Plan& plan, const std::vector<std::string>& folders) {
  if (folders.empty()) return;
  fmt::print("\n{:>6}  {:>10}  {:>10}  {:>8}  {}\n", "ranks", "time", "measured", "off by", "run");
  for (const std::string& folder : folders) {
    const Plan run(spec, folder);
    run.require_whole();
    if (run.machine() != plan.machine()) {
      throw UserError(
          fmt::format("{}: was measured on {}, expected {} as the plan is of", folder, run.machine(), plan.machine()));
    }
    const double estimated = plan.on(run.ranks()).seconds, took = run.took();
    fmt::print("{:>6}  {:>10}  {:>10}  {:>+6.1f} %  {}\n", run.ranks(), time_text(estimated), time_text(took),
               100 * (estimated / took - 1), folder);
  }
}

}  // namespace

void add_plan(CLI::App& app, Verbs&) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* verb =
      app.add_subcommand("plan", "Estimates what more samples and more GPUs would take, from a run's times");
  verb->add_option("SPEC", arguments->spec, "experiment file (YAML)")->required();
  verb->add_option("--from", arguments->from, "result folder of a run of it (default: results/<spec name>)");
  verb->add_option("--measured", arguments->measured,
                   "result folders of whole runs of that size, to compare the plan with");
  verb->add_option("--ranks", arguments->ranks, "how many, one or several (default: 1 2 8 64 1024)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  add_override_options(*verb, arguments->overrides);
  verb->footer(
      "Examples:\n"
      "  kvlab run experiments/001-table2.yaml --set samples=16 --out /tmp/short\n"
      "  kvlab plan experiments/001-table2.yaml --from /tmp/short --set samples=1024 --ranks 2,8,64\n"
      "Pieces are batches of samples, or cases where samples are repetitions. Seconds a sample are those of the run, "
      "on\n"
      "its machine. Idle: the share of ranks' time in which they find no piece and others still work, or assemble "
      "rows.");
  verb->callback([arguments] {
    const Spec spec = load_named_spec(arguments->spec, arguments->overrides.texts());
    if (!spec.protocol->open || !spec.benchmarks.text.empty()) {
      throw UserError(
          fmt::format("{}: protocol {} has no units that ranks take", arguments->spec, spec.protocol->name));
    }
    const fs::path from = arguments->from.empty() ? fs::path("results") / spec.name : fs::path(arguments->from);
    const Plan plan(spec, from);
    print_plan(spec, plan, arguments->ranks);
    print_measured(spec, plan, arguments->measured);
  });
}

}  // namespace kv
