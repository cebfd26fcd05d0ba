#pragma once

#include <cstdint>

#include "sim/policy/params.h"

namespace kv {

// What every training has, whatever is learned. Defaults are those of 001's supervised stage.
struct TrainingOptions {
  enum class Schedule : uint8_t { kCosine, kConstant };  // sim/learned/learning_rate.h
  int64_t steps = 1000;
  int64_t batch = 8;  // texts of a step
  double rate = 0.01;
  int64_t warm_up = 10;
  double warm_up_share = 0;  // of the steps, in place of warm_up where that is not given; 0: warm_up's own default
  Schedule schedule = Schedule::kCosine;
  double decay = 0;   // AdamW's
  double clip = 1;    // bound of the gradient's norm; 0: none
  uint64_t seed = 0;  // of the order of texts, of draws and of initial parameters; 0: the spec's

  // Whatever is not given is as in `fallback`.
  static TrainingOptions read(Params& params, const TrainingOptions& fallback);
};

}  // namespace kv
