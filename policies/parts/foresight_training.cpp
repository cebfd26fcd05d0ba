#include "policies/parts/foresight_training.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/random_normal.h"
#include "policies/parts/options.h"
#include "sim/source/source.h"

namespace kv {

namespace {

constexpr std::string_view kOwner = "foresight-kv";
constexpr float kDeviation = 0.02F;  // of initial parameters: the authors' initializer_range

}  // namespace

ForesightTraining::ForesightTraining(ForesightScorer& scorer, std::string file_name)
    : scorer_(scorer), file_name_(std::move(file_name)), supervised_(scorer.shape()), reinforced_(scorer.shape()) {}

void ForesightTraining::read(Params& params) {
  is_reinforced_ = params.get("stage", "supervised", {"supervised", "reinforced"},
                              "supervised: from what Golden Eviction evicts; reinforced: from what its own evictions "
                              "do to the model's losses") == "reinforced";
  budget_ = option_at_least(params, 1, "budget", 1024, "entries that a head keeps at an event, a multiple of interval");
  interval_ = option_at_least(params, 1, "interval", 256, "tokens from one event to the next");
  start_ = params.text("start", "weights to begin with, a name as the policy's `weights`; stage reinforced needs one");
  if (budget_ % interval_ != 0 || budget_ <= interval_) {
    params.fail("budget", fmt::format("expected a multiple of the interval {} that is above it", interval_));
  }
  if (is_reinforced_ && start_.empty()) params.fail("start", "stage reinforced goes on from weights, expected a name");
  supervised_.read(params);
  reinforced_.read(params);
}

std::vector<InputFile> ForesightTraining::check(const ModelIdentity& model) const {
  if (start_.empty()) return {};
  return {check_learned(learned_path(model.folder(), start_), kOwner, model, settings())};
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

std::vector<Measured> ForesightTraining::learn(const LearnBatch& batch, std::span<const float> parameters,
                                               std::span<double> gradient) {
  if (!is_reinforced_) return supervised_.learn(batch, budget_, interval_, parameters, gradient);
  reinforced_.set_reference(initial(batch.source.info(), batch.seed));
  return reinforced_.learn(batch, budget_, interval_, parameters, gradient);
}

}  // namespace kv
