#include "harness/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "harness/checkpoint.h"
#include "harness/files.h"
#include "harness/input_hashes.h"
#include "harness/learned_weights.h"
#include "harness/manifest.h"
#include "harness/notice.h"
#include "harness/protocols/train.h"
#include "harness/protocols/unit.h"
#include "harness/ranks/agreement.h"
#include "harness/ranks/join_ranks.h"
#include "harness/ranks/own_share.h"
#include "harness/ranks/rank_machines.h"
#include "harness/ranks/rank_parts.h"
#include "harness/result_folder.h"
#include "harness/results.h"
#include "harness/rows.h"
#include "harness/spec/case_policy.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "harness/training_texts.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/stored_file.h"
#include "sim/learned/learned_file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Trainings {
 public:
  // `machine` is the first rank's, whose checkpoints all go on from.
  Trainings(const Spec& spec, const RunOptions& options, Ranks& ranks, std::unique_ptr<Backend> backend,
            std::string machine)
      : spec_(spec),
        options_(options),
        ranks_(ranks),
        machine_(std::move(machine)),
        grid_(make_grid(spec)),
        backend_(std::move(backend)),
        hashes_(hash_inputs(spec, grid_)),
        progress_(options.verbosity, all_steps()) {
    if (ranks.is_first()) folder_.emplace(options.out);
    check_weights(spec, grid_, options);
    for (int model = models() - 1; model >= 0; --model) check_model(model);
  }

  // The first rank alone writes.
  RunSummary go() {
    if (ranks_.is_first()) prepare_checkpoints();
    ranks_.gather("");  // before anybody looks for one
    for (int model = 0; model < models(); ++model) train_model(model);
    std::vector<RankMachine> machines = gather_machines(ranks_, backend_->accelerator());
    if (!ranks_.is_first()) return {};
    finish(std::move(machines));
    return std::move(summary_);
  }

 private:
  // Of one step, those of this rank.
  struct StepTexts {
    int64_t step = 0;
    std::vector<int> numbers{};
    std::vector<SharedIds> texts{};
    std::vector<std::span<const int32_t>> sequences{};  // the same
  };

  // Where a training's weights go, and what lies there as it begins (contents_of).
  struct Place {
    fs::path file{};
    std::string holds{};
  };

  int models() const { return static_cast<int>(spec_.models.size()); }
  // The same for every data entry; those of two models differ in their files alone.
  const std::vector<Case>& cases(int model) const {
    const auto found = std::find_if(grid_.workloads.begin(), grid_.workloads.end(),
                                    [&](const Workload& workload) { return workload.model == model; });
    return found->cases;
  }
  int all_steps() const { return static_cast<int>(steps_of(spec_, cases(0)) * models()); }

  // Texts and what weights must look like are known only where the model is open.
  void check_model(int model) {
    Subject& subject = open(model);
    const SourceInfo& info = subject.source(0, 1).info();
    int64_t least_tokens = 0;
    for (const Case& policy_case : cases(model)) {
      Policy policy = make_case_policy(spec_, policy_case);
      Learner& learner = learner_of(policy);
      const TrainingOptions options = read_training(spec_, policy_case, learner);
      if (options.batch < ranks_.size()) refuse_batch(options.batch);
      learner.load(policy_case.files);
      Training training(options, learner, {learner.parts(info), info.layers, info.kv_heads},
                        learner.initial(info, options.seed));  // refuses weights of another shape
      choose_place(policy_case, model, training);
      least_tokens = std::max(least_tokens, learner.least_tokens());
    }
    TrainingTexts(subject, spec_, grid_, model).check(least_tokens);
  }

  [[noreturn]] void refuse_batch(int64_t batch) const {
    throw UserError(
        fmt::format("{}: learn: the {} texts of a step are divided over {} ranks, expected a 'batch' of at "
                    "least as many, or fewer ranks",
                    spec_.file, batch, ranks_.size()));
  }

  // Weights that are there are somebody's work. They stay, and what is learned goes to the result folder or nowhere.
  void choose_place(const Case& policy_case, int model, Training& training) {
    Place& place = places_[checkpoint_of(policy_case, model)];
    place.file = place_by(options_, policy_case, model);
    if (!ranks_.is_first()) return;  // it alone writes
    if (options_.start != Start::kFresh) spare_others(policy_case, model, training, place.file);
    place.holds = contents_of(place.file);
  }

  void spare_others(const Case& policy_case, int model, Training& training, fs::path& file) {
    const std::optional<Checkpoint> begun = restore(checkpoint_of(policy_case, model), training);
    const Checkpoint* const under_way = begun && !begun->has_written ? &*begun : nullptr;
    const LearnedFile learned = learned_file(policy_case, model, training);
    if (may_write(file, learned, under_way)) return;
    if (!options_.keeps_beside || !options_.weights.empty() || models() > 1) refuse_place(policy_case, file, learned);
    RunOptions beside = options_;
    beside.weights = options_.out / "learned";
    check_weights(spec_, grid_, beside);
    const fs::path theirs = std::exchange(file, place_by(beside, policy_case, model));
    if (!may_write(file, learned, under_way)) refuse_place(policy_case, file, learned);
    notice(fmt::format("{} stays as it is: what is learned goes to {} (--fresh writes over the former)",
                       theirs.string(), file.string()));
  }

  // A training that was killed may write where it was let to when it began, unless somebody has written there since.
  static bool may_write(const fs::path& file, const LearnedFile& learned, const Checkpoint* under_way) {
    const WeightsThere there = weights_there(file, learned);
    if (there == WeightsThere::kNone || there == WeightsThere::kSame) return true;
    return under_way && one_spelling(file) == under_way->weights && contents_of(file) == under_way->replaced;
  }

  // As the file's SHA-256 says; empty where there is none.
  static std::string contents_of(const fs::path& file) {
    const fs::path stored = stored_file(file);
    std::error_code error;
    return fs::is_regular_file(stored, error) ? file_sha256(stored) : "";
  }

  // Where others have written since this training began, theirs stays.
  void keep(const Case& policy_case, int model, const Training& training) {
    const Place& place = place_of(policy_case, model);
    const LearnedFile learned = learned_file(policy_case, model, training);
    if (contents_of(place.file) != place.holds && !may_write(place.file, learned, nullptr)) {
      refuse_place(policy_case, place.file, learned);
    }
    keep_learned(place.file, learned);
  }

  [[noreturn]] void refuse_place(const Case& policy_case, const fs::path& place, const LearnedFile& learned) const {
    const Component& component = spec_.policies[static_cast<size_t>(policy_case.policy)];
    throw UserError(fmt::format(
        "{}: policy '{}' would write over weights that {}, {}; expected another option 'weights', another --weights "
        "DIR, or --fresh",
        component.where, component.label,
        weights_there(place, learned) == WeightsThere::kOfAnotherRun ? "another run has learned"
                                                                     : "were learned otherwise",
        place.string()));
  }

  fs::path place_by(const RunOptions& options, const Case& policy_case, int model) const {
    Policy policy = make_case_policy(spec_, policy_case);
    return weights_path(learner_of(policy), policy_case, grid_.models[static_cast<size_t>(model)], options);
  }
  const Place& place_of(const Case& policy_case, int model) const {
    return places_.at(checkpoint_of(policy_case, model));
  }

  LearnedFile learned_file(const Case& policy_case, int model, const Training& training) {
    Policy policy = make_case_policy(spec_, policy_case);
    Learner& learner = learner_of(policy);
    const uint64_t seed = read_training(spec_, policy_case, learner).seed;
    Subject& subject = open(model);
    const SourceInfo& info = subject.source(0, 1).info();
    return {.learner = learner_name(policy),
            .model = subject.name(),
            .fingerprint = subject.fingerprint(),
            .settings = learner.settings(),
            .origin = origin_of_training(spec_, policy_case, seed, backend_->accelerator()),
            .layers = info.layers,
            .kv_heads = info.kv_heads,
            .parts = learner.parts(info),
            .parameters = {training.parameters().begin(), training.parameters().end()}};
  }

  // The last one that was asked for stays open.
  Subject& open(int model) {
    if (subject_ && open_ == model) return *subject_;
    subject_.reset();
    subject_ = open_subject(*backend_, spec_, model, grid_.models[static_cast<size_t>(model)]);
    open_ = model;
    return *subject_;
  }

  fs::path checkpoints() const { return options_.out / "checkpoints"; }
  fs::path checkpoint_of(const Case& policy_case, int model) const {
    return checkpoints() / (key_of(policy_case, model).substr(0, 24) + ".safetensors");
  }

  void prepare_checkpoints() const {
    std::error_code error;
    fs::create_directories(checkpoints(), error);
    sweep_checkpoints(checkpoints());
    if (options_.start != Start::kFresh) return;
    for (int model = 0; model < models(); ++model) {
      for (const Case& policy_case : cases(model)) remove_file(checkpoint_of(policy_case, model));
    }
  }

  void train_model(int model) {
    Subject& subject = open(model);
    TrainingTexts texts(subject, spec_, grid_, model);
    for (const Case& policy_case : cases(model)) train_policy(policy_case, model, subject, texts);
  }

  // One that other texts, settings, code or another machine began is another's.
  std::string key_of(const Case& policy_case, int model) const {
    const std::string& fingerprint = hashes_.models[static_cast<size_t>(model)].second;
    std::string key = fmt::format("{}\n{}\n{}\n", code_identity(), machine_, fingerprint);
    for (const auto& [name, value] : spec_.row_keys) {
      if (name != "policies" && name != "model" && name != "models" && name != "axes")
        key += fmt::format("{} {}\n", name, value);
    }
    for (const auto& [name, sha256] : hashes_.data) key += fmt::format("{} {}\n", name, sha256);
    for (const auto& [name, sha256] : hashes_.tokenizers) key += fmt::format("{} {}\n", name, sha256);
    for (const InputFile& file : policy_case.files) key += file.sha256 + "\n";
    for (const GivenParam& setting : policy_case.settings) key += fmt::format("{} {}\n", setting.key, setting.text);
    Policy policy = make_case_policy(spec_, policy_case);
    key += fmt::format("{}\n{}\n", policy.scorer_name, learner_name(policy));
    for (const auto& [setting, value] : learner_of(policy).settings()) key += fmt::format("{} {}\n", setting, value);
    return sha256_hex(key);
  }

  void train_policy(const Case& policy_case, int model, Subject& subject, TrainingTexts& texts) {
    Policy policy = make_case_policy(spec_, policy_case);
    Learner& learner = learner_of(policy);
    const TrainingOptions options = read_training(spec_, policy_case, learner);
    learner.load(policy_case.files);
    Source& source = subject.source(0, 1);
    const SourceInfo& info = source.info();
    Training training(options, learner, {learner.parts(info), info.layers, info.kv_heads},
                      learner.initial(info, options.seed));
    const fs::path file = checkpoint_of(policy_case, model);
    Checkpoint done = resume(file, training);
    require_same(ranks_, "inputs of the training", key_of(policy_case, model));
    require_same(ranks_, "checkpoints", std::to_string(training.steps_done()));
    const std::string label = label_of(policy_case);
    progress_.doing(fmt::format("{} on {}", label, subject.name()));
    const Place& place = place_of(policy_case, model);
    done.weights = one_spelling(place.file).string();
    done.replaced = place.holds;
    const auto keep_all = [&] {
      agree(ranks_, [&] {
        if (ranks_.is_first()) keep(policy_case, model, training);
      });
    };
    if (training.is_done()) {
      keep_all();
      if (!std::exchange(done.has_written, true) && ranks_.is_first()) write_checkpoint(file, done);
    }
    run_steps(options, training, source, texts, file, done, label, keep_all);
    summary_.weights.push_back(place.file);
    add_rows(done, policy_case, subject.name());
    seconds_ += done.seconds;
  }

  // As a complaint or the progress names it.
  std::string label_of(const Case& policy_case) const {
    std::string label = spec_.policies[static_cast<size_t>(policy_case.policy)].label;
    for (const std::string& value : policy_case.axes) label += value.empty() ? "" : " " + value;
    return label;
  }

  static std::optional<Checkpoint> restore(const fs::path& file, Training& training) {
    std::optional<Checkpoint> found = read_checkpoint(file);
    if (!found) return std::nullopt;
    try {
      training.restore(found->state);
    } catch (const UserError& error) {
      refuse_checkpoint(fmt::format("{}: {}", file.string(), error.what()));
    }
    return found;
  }

  Checkpoint resume(const fs::path& file, Training& training) {
    std::optional<Checkpoint> found = restore(file, training);
    if (!found) return {};
    summary_.reused += static_cast<int>(training.steps_done());
    progress_.reused(static_cast<int>(training.steps_done()));
    return std::move(*found);
  }

  // `keep` comes between two checkpoints of all steps, of which the second says that the weights are written.
  void run_steps(const TrainingOptions& options, Training& training, Source& source, TrainingTexts& texts,
                 const fs::path& file, Checkpoint& done, const std::string& label, const std::function<void()>& keep) {
    const Clock::time_point begin = Clock::now();
    const double before = done.seconds;
    const auto save = [&] {
      if (!ranks_.is_first()) return;
      done.state = training.state();
      done.seconds = before + seconds_since(begin);
      write_checkpoint(file, done);
    };
    Clock::time_point saved = begin;
    while (!training.is_done()) {
      try {
        agree(ranks_, [&] { note_step(run_step(options, training, source, texts, label), done); });
      } catch (const UserError&) {
        if (training.steps_done() > 0) save();
        throw;
      } catch (const SaidElsewhere&) {
        if (training.steps_done() > 0) save();
        ranks_.gather("");  // nobody ends before that
        throw;
      }
      progress_.done();
      progress_.going_on(fmt::format("step {}", training.steps_done()));
      if (training.is_done()) {
        save();
        keep();
        done.has_written = true;
      }
      if (training.is_done() || seconds_since(saved) >= options_.checkpoint_seconds) {
        save();
        saved = Clock::now();
        options_.after_case();
      }
    }
  }

  std::vector<Measured> run_step(const TrainingOptions& options, Training& training, Source& source,
                                 TrainingTexts& texts, const std::string& label) {
    try {
      return run_part(options, training, source, texts);
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}: {}", spec_.file, label, error.what()));
    }
  }

  // Every rank learns from its own of a step's texts, and all come to the same parameters.
  std::vector<Measured> run_part(const TrainingOptions& options, Training& training, Source& source,
                                 TrainingTexts& texts) {
    const int64_t step = training.steps_done();
    const StepTexts of_step = next_ ? *std::exchange(next_, std::nullopt) : step_texts(options, texts, step);
    KV_CHECK(of_step.step == step);
    const bool is_last = step + 1 == options.steps;
    if (!is_last) texts.expect(numbers_of(options, texts, step + 1));
    LearnBatch batch = batch_of(options, source, of_step);
    std::optional<StepPart> part;
    if (ranks_.are_several()) batch.part = &part.emplace(part_of(options.batch, of_step.sequences));
    return training.step(batch, [&]() -> std::optional<LearnBatch> {
      if (is_last) return std::nullopt;
      next_ = step_texts(options, texts, step + 1);
      return batch_of(options, source, *next_);
    });
  }

  // Of this rank.
  std::vector<int> numbers_of(const TrainingOptions& options, const TrainingTexts& texts, int64_t step) const {
    return texts_of_rank(texts_of_step(step, options.batch, texts.count(), options.seed), ranks_);
  }

  StepTexts step_texts(const TrainingOptions& options, TrainingTexts& texts, int64_t step) const {
    StepTexts of_step{.step = step, .numbers = numbers_of(options, texts, step)};
    of_step.texts = texts.take(of_step.numbers);
    for (const SharedIds& ids : of_step.texts) of_step.sequences.emplace_back(*ids);
    return of_step;
  }

  LearnBatch batch_of(const TrainingOptions& options, Source& source, const StepTexts& texts) {
    return {.backend = *backend_,
            .source = source,
            .sequences = texts.sequences,
            .sample_numbers = texts.numbers,
            .prefill_chunk = spec_.chunk(),
            .seed = options.seed,
            .step = texts.step,
            .memory = &memory_};
  }

  StepPart part_of(int64_t batch, std::span<const std::span<const int32_t>> sequences) {
    double tokens = 0;
    for (const std::span<const int32_t> ids : sequences) tokens += static_cast<double>(ids.size());
    parts_.add_up({&tokens, 1});
    return {.all = parts_,
            .first_text = texts_of_rank(batch, ranks_).first,
            .step_texts = batch,
            .step_tokens = static_cast<int64_t>(tokens)};
  }

  static void note_step(const std::vector<Measured>& measured, Checkpoint& done) {
    std::vector<double> values;
    done.metrics.clear();
    for (const Measured& one : measured) {
      done.metrics.push_back(one.metric);
      values.push_back(one.value);
    }
    done.values.push_back(std::move(values));
  }

  void add_rows(const Checkpoint& done, const Case& policy_case, const std::string& model) {
    Row blank{.experiment = spec_.name,
              .model = model,
              .policy = spec_.policies[static_cast<size_t>(policy_case.policy)].label,
              .device = spec_.device,
              .seed = static_cast<int64_t>(spec_.seed),
              .axes = policy_case.axes};
    for (const DataSpec& data : spec_.data) blank.data += (blank.data.empty() ? "" : "+") + data.name;
    for (size_t step = 0; step < done.values.size(); ++step) {
      for (size_t i = 0; i < done.metrics.size(); ++i) {
        add_row(rows_, blank, done.metrics[i], done.values[step][i], "").x = static_cast<double>(step);
      }
    }
  }

  void finish(std::vector<RankMachine> machines) {
    summary_.cases = all_steps();
    const WrittenRows rows = written_rows(spec_.axis_columns(), std::move(rows_));
    summary_.markdown = write_results(*folder_, spec_, options_.draw, rows,
                                      manifest_json({.spec = &spec_,
                                                     .overrides = options_.overrides,
                                                     .hashes = hashes_,
                                                     .accelerator = backend_->accelerator(),
                                                     .ranks = std::move(machines),
                                                     .rows = rows.csv,
                                                     .cases = summary_.cases,
                                                     .seconds = seconds_}));
  }

  const Spec& spec_;
  const RunOptions& options_;
  Ranks& ranks_;
  RankParts parts_{ranks_};
  std::string machine_;
  Grid grid_;
  std::unique_ptr<Backend> backend_;
  Tensor memory_;                       // learners', from one step to the next
  std::optional<StepTexts> next_;       // between two steps of a training
  std::optional<ResultFolder> folder_;  // the first rank's
  InputHashes hashes_;
  std::map<fs::path, Place> places_;  // of the weights, by the checkpoint of their training
  std::unique_ptr<Subject> subject_;  // of model open_
  int open_ = 0;
  Progress progress_;
  std::vector<Row> rows_;
  double seconds_ = 0;  // of all steps, those of earlier runs included
  RunSummary summary_;
};

}  // namespace

RunSummary train(const Spec& spec, const RunOptions& options) {
  const std::unique_ptr<Ranks> alone = options.ranks ? nullptr : lone_rank();
  Ranks& ranks = options.ranks ? *options.ranks : *alone;
  std::unique_ptr<Backend> backend;
  agree(ranks, [&] { backend = make_backend(spec.device); });
  std::string machine = machine_identity(false);
  for (const auto& [fact, text] : backend->accelerator()) machine += fmt::format("\n{} {}", fact, text);
  machine = ranks.gather(machine).front();
  require_own_devices(ranks, backend->device_identity());
  std::optional<Trainings> trainings;
  agree(ranks, [&] { trainings.emplace(spec, options, ranks, std::move(backend), std::move(machine)); });
  require_shared(ranks, options.out);
  RunSummary summary;
  end_all_where_it_fails(ranks, [&] { summary = trainings->go(); });
  return summary;
}

}  // namespace kv
