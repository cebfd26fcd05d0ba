#include "sim/learned/training_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace kv {

namespace {

int64_t count_option(Params& params, std::string_view key, int64_t fallback, int least, std::string_view help) {
  const int value = params.get(key, static_cast<int>(fallback), help);
  if (value < least) params.fail(key, fmt::format("expected at least {}", least));
  return value;
}

double positive_option(Params& params, std::string_view key, double fallback, std::string_view help) {
  const double value = params.get(key, fallback, help);
  if (!(value > 0) || !std::isfinite(value)) params.fail(key, "expected a number above 0");
  return value;
}

double option_of_at_least_0(Params& params, std::string_view key, double fallback, std::string_view help) {
  const double value = params.get(key, fallback, help);
  if (!(value >= 0) || !std::isfinite(value)) params.fail(key, "expected a number of at least 0");
  return value;
}

}  // namespace

TrainingOptions TrainingOptions::read(Params& params, const TrainingOptions& fallback) {
  TrainingOptions options;
  options.steps = count_option(params, "steps", fallback.steps, 1, "steps of the optimiser");
  options.batch = count_option(params, "batch", fallback.batch, 1, "texts a step");
  options.rate = positive_option(params, "rate", fallback.rate, "Adam's learning rate, which the schedule scales");
  const auto shared = static_cast<int64_t>(fallback.warm_up_share * static_cast<double>(options.steps));
  options.warm_up =
      count_option(params, "warm_up", fallback.warm_up_share > 0 ? std::max<int64_t>(1, shared) : fallback.warm_up, 1,
                   "steps over which the rate rises");
  options.schedule =
      params.get("schedule", fallback.schedule == Schedule::kCosine ? "cosine" : "constant", {"cosine", "constant"},
                 "of the rate after its rise: half a cosine down to 0, or as it is") == "cosine"
          ? Schedule::kCosine
          : Schedule::kConstant;
  options.decay = option_of_at_least_0(params, "decay", fallback.decay, "AdamW's decay, which the rate scales");
  options.clip = option_of_at_least_0(params, "clip", fallback.clip, "bound of the gradient's norm; 0: none");
  options.seed = static_cast<uint64_t>(count_option(
      params, "training_seed", 0, 0, "of the order of texts, of draws and of initial weights; 0: the spec's seed"));
  if (options.schedule == Schedule::kCosine && options.steps <= options.warm_up) {
    params.fail("steps", fmt::format("expected more than the warm-up's {}", options.warm_up));
  }
  return options;
}

}  // namespace kv
