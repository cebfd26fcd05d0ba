#include "harness/train.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>

#include "harness/checkpoint.h"
#include "harness/files.h"
#include "harness/input_hashes.h"
#include "harness/manifest.h"
#include "harness/protocols/train.h"
#include "harness/protocols/unit.h"
#include "harness/result_folder.h"
#include "harness/results.h"
#include "harness/rows.h"
#include "harness/spec/case_policy.h"
#include "harness/spec/grid.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/hash.h"
#include "sim/io/safetensors.h"
#include "sim/learned/learned_file.h"

namespace kv {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// The texts of all data entries of one model, one number each.
class Texts {
 public:
  Texts(Subject& subject, const Grid& grid, int model) : subject_(subject) {
    for (const Workload& workload : grid.workloads) {
      if (workload.model == model) workloads_.push_back(&workload);
    }
  }

  int count() const {
    int total = 0;
    for (const Workload* workload : workloads_) total += workload->samples;
    return total;
  }
  Sample text(int number) {
    for (const Workload* workload : workloads_) {
      if (number < workload->samples) return std::move(subject_.samples(*workload, number, 1).front());
      number -= workload->samples;
    }
    throw UserError(fmt::format("there is no text {}", number));
  }

 private:
  Subject& subject_;
  std::vector<const Workload*> workloads_;
};

class Trainings {
 public:
  Trainings(const Spec& spec, const RunOptions& options)
      : spec_(spec),
        options_(options),
        grid_(make_grid(spec)),
        backend_(make_backend(spec.device)),
        folder_(options.out),
        hashes_(hash_inputs(spec, grid_)),
        progress_(options.verbosity, all_steps()) {
    check_weights();
    if (options.start == Start::kFresh) fs::remove_all(checkpoints());
    std::error_code error;
    fs::create_directories(checkpoints(), error);
  }

  RunSummary go() {
    for (int model = 0; model < static_cast<int>(spec_.models.size()); ++model) train_model(model);
    finish();
    return std::move(summary_);
  }

 private:
  // The same for every model.
  const std::vector<Case>& cases() const { return grid_.workloads.front().cases; }
  int all_steps() const { return static_cast<int>(steps_of(spec_, cases()) * std::ssize(spec_.models)); }

  // What would be found out only after hours: weights that one training writes over another's, or cannot write.
  void check_weights() const {
    for (const ModelIdentity& identity : grid_.models) {
      std::map<fs::path, std::string> writers;
      for (const Case& policy_case : cases()) {
        Policy policy = make_case_policy(spec_, policy_case);
        const Component& component = spec_.policies[static_cast<size_t>(policy_case.policy)];
        const fs::path path = weights_path(learner_of(policy), policy_case, identity);
        check_replaceable(path);
        const auto [found, is_new] = writers.emplace(path, component.label);
        if (is_new) continue;
        throw UserError(
            fmt::format("{}: policy '{}' would write over the weights of '{}', {}; expected another option "
                        "'weights' for each",
                        component.where, component.label, found->second, path.string()));
      }
    }
  }

  fs::path checkpoints() const { return options_.out / "checkpoints"; }

  void train_model(int model) {
    const ModelIdentity& identity = grid_.models[static_cast<size_t>(model)];
    const std::unique_ptr<Subject> subject = open_subject(*backend_, spec_, model, identity);
    Texts texts(*subject, grid_, model);
    for (const Case& policy_case : cases()) train_policy(policy_case, identity, *subject, texts);
  }

  // One that other texts, settings or code began is another's.
  std::string key_of(const Case& policy_case, const Subject& subject, std::span<const InputFile> begun) const {
    std::string key = fmt::format("{}\n{}\n", code_identity(), subject.fingerprint());
    for (const auto& [fact, text] : backend_->accelerator()) key += fmt::format("{} {}\n", fact, text);
    for (const auto& [name, value] : spec_.row_keys) {
      if (name != "policies" && name != "model" && name != "models" && name != "axes")
        key += fmt::format("{} {}\n", name, value);
    }
    for (const auto& [name, sha256] : hashes_.data) key += fmt::format("{} {}\n", name, sha256);
    for (const auto& [name, sha256] : hashes_.tokenizers) key += fmt::format("{} {}\n", name, sha256);
    for (const InputFile& file : begun) key += file.sha256 + "\n";
    for (const GivenParam& setting : policy_case.settings) key += fmt::format("{} {}\n", setting.key, setting.text);
    key += make_case_policy(spec_, policy_case).scorer_name;
    return sha256_hex(key);
  }

  void train_policy(const Case& policy_case, const ModelIdentity& identity, Subject& subject, Texts& texts) {
    Policy policy = make_case_policy(spec_, policy_case);
    Learner& learner = learner_of(policy);
    const TrainingOptions options = read_training(spec_, policy_case, learner);
    const std::vector<InputFile> begun = learner.check(identity);
    learner.load(begun);
    Source& source = subject.source(0, 1);
    const SourceInfo& info = source.info();
    Training training(options, learner, learner.initial(info, options.seed));
    const fs::path file = checkpoints() / (key_of(policy_case, subject, begun).substr(0, 24) + ".safetensors");
    Checkpoint done = resume(file, training);
    const std::string label = label_of(policy_case);
    for (const InputFile& start : begun) {
      hashes_.profiles.push_back({subject.name(), start.path.filename().string(), start.sha256});
    }
    progress_.doing(fmt::format("{} on {}", label, subject.name()));
    run_steps(options, training, learner, source, texts, file, done, label);
    write_learned(weights_path(learner, policy_case, identity),
                  {.learner = policy.name,
                   .model = subject.name(),
                   .fingerprint = subject.fingerprint(),
                   .settings = learner.settings(),
                   .origin = origin_json(spec_, backend_->accelerator()),
                   .layers = info.layers,
                   .kv_heads = info.kv_heads,
                   .parts = learner.parts(info),
                   .parameters = {training.parameters().begin(), training.parameters().end()}});
    add_rows(done, policy_case, subject.name());
    seconds_ += done.seconds;
  }

  // As a complaint or the progress names it.
  std::string label_of(const Case& policy_case) const {
    std::string label = spec_.policies[static_cast<size_t>(policy_case.policy)].label;
    for (const std::string& value : policy_case.axes) label += value.empty() ? "" : " " + value;
    return label;
  }

  Checkpoint resume(const fs::path& file, Training& training) {
    std::optional<Checkpoint> found = read_checkpoint(file);
    if (!found) return {};
    training.restore(found->state);
    summary_.reused += static_cast<int>(training.steps_done());
    progress_.reused(static_cast<int>(training.steps_done()));
    return std::move(*found);
  }

  void run_steps(const TrainingOptions& options, Training& training, const Learner& learner, Source& source,
                 Texts& texts, const fs::path& file, Checkpoint& done, const std::string& label) {
    const Clock::time_point begin = Clock::now();
    const double before = done.seconds;
    const auto save = [&] {
      done.state = training.state();
      done.seconds = before + seconds_since(begin);
      write_checkpoint(file, done);
    };
    Clock::time_point saved = begin;
    while (!training.is_done()) {
      try {
        note_step(run_step(options, training, learner, source, texts), done);
      } catch (const UserError& error) {
        if (training.steps_done() > 0) save();
        throw UserError(fmt::format("{}: {}: {}", spec_.file, label, error.what()));
      }
      progress_.done();
      progress_.going_on(fmt::format("step {}", training.steps_done()));
      if (training.is_done() || seconds_since(saved) >= options_.checkpoint_seconds) {
        save();
        saved = Clock::now();
        options_.after_case();
      }
    }
  }

  std::vector<Measured> run_step(const TrainingOptions& options, Training& training, const Learner& learner,
                                 Source& source, Texts& texts) {
    const int64_t step = training.steps_done();
    const std::vector<int> numbers = texts_of_step(step, options.batch, texts.count(), options.seed);
    std::vector<Sample> samples;
    for (const int number : numbers) {
      samples.push_back(texts.text(number));
      if (std::ssize(samples.back().ids) >= learner.least_tokens()) continue;
      throw UserError(fmt::format("text {} has {} tokens, expected at least {}", number, samples.back().ids.size(),
                                  learner.least_tokens()));
    }
    std::vector<std::span<const int32_t>> sequences;
    for (const Sample& sample : samples) sequences.emplace_back(sample.ids);
    return training.step({.backend = *backend_,
                          .source = source,
                          .sequences = sequences,
                          .sample_numbers = numbers,
                          .prefill_chunk = spec_.prefill_chunk,
                          .seed = options.seed,
                          .step = step});
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

  // Points of the axes have a file each, named after them; an axis of names of files has named it.
  fs::path weights_path(const Learner& learner, const Case& policy_case, const ModelIdentity& identity) const {
    const fs::path model = identity.folder().empty() ? options_.out : identity.folder();
    fs::path path = learned_path(model, learner.file_name());
    std::string name = path.stem().string();
    for (const std::string& value : policy_case.axes) {
      if (!value.empty() && value != learner.file_name()) name += "-" + value;
    }
    path.replace_filename(name + path.extension().string());
    if (!options_.weights.empty()) path = options_.weights / path.filename();
    std::error_code error;  // a folder that cannot be made is one that cannot be written to
    fs::create_directories(path.parent_path(), error);
    return path;
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

  void finish() {
    summary_.cases = all_steps();
    summary_.markdown = write_results(folder_, spec_, options_.draw, rows_,
                                      manifest_json({.spec = &spec_,
                                                     .overrides = options_.overrides,
                                                     .hashes = hashes_,
                                                     .accelerator = backend_->accelerator(),
                                                     .rows = format_rows(spec_.axis_columns(), rows_),
                                                     .cases = summary_.cases,
                                                     .seconds = seconds_}));
  }

  const Spec& spec_;
  const RunOptions& options_;
  Grid grid_;
  std::unique_ptr<Backend> backend_;
  ResultFolder folder_;
  InputHashes hashes_;
  Progress progress_;
  std::vector<Row> rows_;
  double seconds_ = 0;  // of all steps, those of earlier runs included
  RunSummary summary_;
};

}  // namespace

RunSummary train(const Spec& spec, const RunOptions& options) { return Trainings(spec, options).go(); }

}  // namespace kv
