#include "harness/protocols/calibrator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "harness/protocols/answer_importance.h"
#include "harness/spec/case_policy.h"
#include "kernels/error.h"
#include "sim/budget/profile_file.h"
#include "sim/replay/prefill.h"

namespace kv {

namespace {

// With room for what answer_importance() reads.
LoopState full_cache(Prefill& prefill, int32_t tokens, const ExamQuestion& question) {
  const auto room = static_cast<int32_t>(question.ids.size() + question.prefix.size() + question.expected.size());
  double seconds = 0;
  return prefill.compressed(0, {&tokens, 1}, seconds, {&room, 1});
}

}  // namespace

CalibrationOptions read_calibration(Params& params) {
  CalibrationOptions options;
  options.name = params.text("name", "what the file's name says of it; without one it is the model's own profile");
  const bool plain = std::all_of(options.name.begin(), options.name.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '.'; });
  if (!plain) params.fail("name", "expected letters, digits, - and .");
  options.interval =
      params.get("interval", 0,
                 "scorers judge a context as at an event of decode-time pruning after so many tokens, as those must "
                 "that judge by an interval's queries; 0: as before one-shot compression");
  if (options.interval < 0) params.fail("interval", "expected at least 0");
  return options;
}

Calibrator::Calibrator(const Spec& spec, Backend& backend, const Grid& grid, int model, Progress& progress)
    : spec_(spec),
      backend_(backend),
      identity_(grid.models[static_cast<size_t>(model)]),
      subject_(open_subject(backend, spec, model, identity_)),
      importance_options_(spec.read_options(kImportanceKey, ImportanceOptions::read_unit)),
      calibration_options_(spec.read_options(kCalibrationKey, read_calibration)),
      progress_(progress) {
  subject_->source(0, 1);  // throws where the model does not fit
  for (const Case& policy_case : grid.workloads.front().cases) {
    policies_.push_back(load_case_policy(spec, policy_case));
  }
  orders_.resize(policies_.size());
  questions_.resize(policies_.size() + 1);
  for (const Workload& workload : grid.workloads) {
    if (workload.model == model) run(workload);
  }
}

std::vector<SavedProfile> Calibrator::profiles() {
  std::vector<SavedProfile> profiles;
  for (size_t p = 0; p < policies_.size(); ++p) {
    const Protection& protection = orders_[p].front()->at_half();
    profiles.push_back(profile_of(spec_.policies[p].label, policies_[p].scorer_name,
                                  policies_[p].scorer->takes_prompts(), protection, questions_[p]));
  }
  profiles.push_back(profile_of(std::string(kOracleOrder), std::string(kOracleOrder), true, {}, questions_.back()));
  return profiles;
}

void Calibrator::run(const Workload& workload) {
  const DataSpec& data = spec_.data[static_cast<size_t>(workload.data)];
  std::string text = fmt::format("{}: {}", data.name, data.source.text);
  for (const GivenParam& option : data.options) text += fmt::format(", {} {}", option.key, option.text);
  for (const GivenParam& option : spec_.options_of(kImportanceKey)) {
    text += fmt::format(", importance {} {}", option.key, option.text);
  }
  if (calibration_options_.interval > 0) text += fmt::format(", interval {}", calibration_options_.interval);
  calibration_.data.push_back(fmt::format("{}, tokens {}", text, workload.tokens));
  for (int i = 0; i < workload.samples; ++i) {
    progress_.doing(fmt::format("{} sample {}", data.name, i));
    take(subject_->exams(workload, i, 1).front());
    progress_.done();
  }
}

void Calibrator::take(const Exam& exam) {
  ContextNorms norms(*subject_->model());
  Observer* const observers[] = {&norms};
  const std::span<const int32_t> contexts[] = {exam.context};
  const int32_t numbers[] = {calibration_.samples};
  const auto tokens = static_cast<int32_t>(exam.context.size());
  const int interval = calibration_options_.interval;
  if (tokens <= interval) {
    throw UserError(fmt::format("{}: a context of {} tokens, expected more than {}: interval = {}", spec_.file, tokens,
                                kCalibrationKey, interval));
  }
  std::vector<Policy*> policies;
  for (Policy& policy : policies_) policies.push_back(&policy);
  Prefill prefill({.backend = backend_,
                   .source = *subject_->model(),
                   .contexts = contexts,
                   .policies = policies,
                   .seed = spec_.seed,
                   .sample_numbers = numbers,
                   .prefill_chunk = spec_.chunk(),
                   .interval = interval,
                   .observers = observers});
  for (size_t p = 0; p < policies_.size(); ++p) {
    orders_[p].push_back(std::make_unique<ScorerOrders>(backend_, subject_->model()->info(), prefill, p,
                                                        *policies_[p].scorer, tokens, interval));
  }
  for (const ExamQuestion& question : exam.questions) {
    importance_.push_back(std::make_unique<CalibrationQuestion::Values>(
        answer_importance(backend_, *subject_->model(), exam, question, norms, importance_options_,
                          full_cache(prefill, tokens, question))));
    const CalibrationQuestion::Values* const importance = importance_.back().get();
    for (size_t p = 0; p < policies_.size(); ++p) {
      questions_[p].push_back({.importance = importance, .orders = orders_[p].back()->by_ratio()});
    }
    oracle_orders_.push_back(std::make_unique<ScorerOrders::Orders>(oracle_order(*importance)));
    questions_.back().push_back({.importance = importance, .orders = {}});
    questions_.back().back().orders.fill(oracle_orders_.back().get());
  }
  ++calibration_.samples;
  calibration_.questions += static_cast<int>(exam.questions.size());
  calibration_.tokens = std::max<int64_t>(calibration_.tokens, tokens);
}

// A profile of another importance or calibration does not take the place of the model's own, which is of prompts where
// the scorer takes any.
std::filesystem::path Calibrator::file_of(const std::string& scorer, bool takes_prompts) const {
  std::filesystem::path file = default_profile_file(identity_.folder(), scorer);
  std::string name = file.stem().string();
  if (!calibration_options_.name.empty()) name += "+" + calibration_options_.name;
  if (takes_prompts && calibration_options_.interval > 0) {
    name += fmt::format("+interval={}", calibration_options_.interval);
  }
  for (const GivenParam& option : spec_.options_of(kImportanceKey)) {
    name += fmt::format("+{}={}", option.key, option.text);
  }
  return file.replace_filename(name + ".json");
}

SavedProfile Calibrator::profile_of(const std::string& label, const std::string& scorer, bool takes_prompts,
                                    const Protection& protection, std::span<const CalibrationQuestion> questions) {
  const SourceInfo& info = subject_->model()->info();
  CalibrationResult result = calibrate(questions);
  calibration_.seed = spec_.seed;
  return {.label = label,
          .file = file_of(scorer, takes_prompts),
          .profile = {.model = subject_->name(),
                      .fingerprint = subject_->fingerprint(),
                      .scorer = scorer,
                      .protection = protection,
                      .calibration = calibration_,
                      .losses = std::move(result.losses),
                      .split_half = result.split_half,
                      .layers = info.layers,
                      .kv_heads = info.kv_heads,
                      .removed = std::move(result.removed)}};
}

}  // namespace kv
