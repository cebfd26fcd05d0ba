#include "policies/parts/foresight_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include "kernels/random_normal.h"
#include "policies/parts/options.h"
#include "sim/source/source.h"

namespace kv {

namespace {

constexpr std::string_view kOwner = "foresight-kv";
constexpr float kDeviation = 0.02F;  // of initial parameters: the authors' initializer_range

constexpr std::string_view kBudget = "budget", kInterval = "interval", kSettings = "settings";

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// "1024/256 512/128"
std::vector<PruningSetting> parse_settings(std::string_view text, const Params& params) {
  std::vector<PruningSetting> settings;
  std::istringstream words{std::string(text)};
  for (std::string pair; words >> pair;) {
    const size_t slash = std::min(pair.find('/'), pair.size());
    const std::optional<int> budget = whole_number(std::string_view(pair).substr(0, slash));
    const std::optional<int> interval = whole_number(std::string_view(pair).substr(std::min(slash + 1, pair.size())));
    if (!budget || !interval) params.fail(kSettings, fmt::format("'{}': expected BUDGET/INTERVAL", pair));
    settings.push_back({*budget, *interval});
  }
  return settings;
}

constexpr int kMostCandidates = 65536;  // of kernels/pairwise_hinge.h

void check_setting(const PruningSetting& setting, std::string_view key, const Params& params) {
  const auto [budget, interval] = setting;
  const std::string pair = key == kSettings ? fmt::format("{}/{}: ", budget, interval) : "";
  if (interval < 1 || budget % interval != 0 || budget <= interval) {
    params.fail(key, fmt::format("{}expected a multiple of the interval {} that is above it", pair, interval));
  }
  if (budget > kMostCandidates) params.fail(key, fmt::format("{}expected at most {}", pair, kMostCandidates));
  if (budget + interval < ForesightScorer::kWindow) {
    params.fail(key, fmt::format("{}expected at least {} with the interval, the newest queries, which judge", pair,
                                 ForesightScorer::kWindow));
  }
}

std::vector<PruningSetting> read_settings(Params& params) {
  PruningSetting single;
  single.budget = option_at_least(params, 1, kBudget, single.budget,
                                  "entries that a head keeps at an event, a multiple of interval");
  single.interval = option_at_least(params, 1, kInterval, single.interval, "tokens from one event to the next");
  const std::string several = params.text(
      kSettings, "budgets and intervals that steps take in turn, as 1024/256 512/128, in place of budget and interval");
  if (params.has(kSettings) && (params.has(kBudget) || params.has(kInterval))) {
    params.fail(kSettings, "expected these or budget and interval, not both");
  }
  std::vector<PruningSetting> settings = parse_settings(several, params);
  const bool is_single = settings.empty();
  if (is_single) settings.push_back(single);
  for (const PruningSetting& setting : settings) check_setting(setting, is_single ? kBudget : kSettings, params);
  return settings;
}

}  // namespace

ForesightTraining::ForesightTraining(ForesightScorer& scorer, std::string file_name)
    : scorer_(scorer), file_name_(std::move(file_name)), supervised_(scorer.shape()), reinforced_(scorer.shape()) {}

void ForesightTraining::read(Params& params) {
  is_reinforced_ = params.get("stage", "supervised", {"supervised", "reinforced"},
                              "supervised: from what Golden Eviction evicts; reinforced: from what its own evictions "
                              "do to the model's losses") == "reinforced";
  settings_ = read_settings(params);
  start_ = params.text("start", "weights to begin with, a name as the policy's `weights`; stage reinforced needs one");
  supervised_.read(params);
  reinforced_.read(params);
  check_stage(params);
}

// What the stage needs, and nothing of the other's.
void ForesightTraining::check_stage(const Params& params) const {
  if (file_name_ == kInitialWeights || start_ == kInitialWeights) {
    throw UserError(
        fmt::format("{}: weights = {} are no file, expected another name to train", kOwner, kInitialWeights));
  }
  for (const std::string_view key : is_reinforced_ ? ForesightSupervised::keys() : ForesightReinforced::keys()) {
    if (params.has(key)) {
      params.fail(key, fmt::format("only stage {} has it", is_reinforced_ ? "supervised" : "reinforced"));
    }
  }
  if (!is_reinforced_) return;
  if (start_.empty()) params.fail("start", "stage reinforced goes on from weights, expected a name");
  for (const auto& [budget, interval] : settings_) {
    if (interval > kMostDrawn) {
      params.fail("stage", fmt::format("an interval of {}: expected at most {} in this stage", interval, kMostDrawn));
    }
  }
}

// The published settings (001, App. E.1).
TrainingOptions ForesightTraining::defaults() const {
  if (!is_reinforced_) return {};
  return {.steps = 200, .batch = 32, .rate = 3e-4, .schedule = TrainingOptions::Schedule::kConstant};
}

int64_t ForesightTraining::least_tokens() const {
  int64_t most = 0;
  for (const auto& [budget, interval] : settings_) most = std::max(most, int64_t{budget} + interval + 1);
  return is_reinforced_ ? most + 1 : most;
}

const PruningSetting& ForesightTraining::setting_of(int64_t step) const {
  return settings_[static_cast<size_t>(step % std::ssize(settings_))];
}

std::vector<InputFile> ForesightTraining::check(const ModelIdentity& model) const {
  if (start_.empty()) return {};
  return check_learned(learned_path(model.folder(), start_), kOwner, model, scorer_.shape().demand());
}

void ForesightTraining::load(std::span<const InputFile> files) {
  if (!files.empty()) begun_ = load_learned(files.front(), kOwner);
}

std::vector<float> ForesightTraining::initial(const SourceInfo& info, uint64_t seed) const {
  if (!begun_.parts.empty()) return parameters_as(begun_, parts(info), kOwner);
  std::vector<float> parameters(static_cast<size_t>(int64_t{info.layers} * info.kv_heads * elements_of(parts(info))));
  cpu::random_normal(
      {.output = {parameters.data(), DType::kF32}, .count = std::ssize(parameters), .seed = seed, .sigma = kDeviation});
  return parameters;
}

std::vector<LearnedMean> ForesightTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                                  std::span<double> gradient) {
  const auto& [budget, interval] = setting_of(batch.step);
  if (!is_reinforced_) return supervised_.learn(batch, budget, interval, parameters, gradient);
  reinforced_.set_reference(initial(batch.source.info(), batch.seed));
  return reinforced_.learn(batch, budget, interval, parameters, gradient);
}

}  // namespace kv
