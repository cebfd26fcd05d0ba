#pragma once

#include <cstdint>

namespace kv {

// Factors of the learning rate at step 0, 1, …, as ForesightKV's code has them (001; train.py of both stages).

// step / warm_up below warm_up (so the first step moves nothing), then half a cosine down to 0 at `steps`.
double cosine_after_warm_up(int64_t step, int64_t warm_up, int64_t steps);
// (step + 1) / warm_up up to and with step = warm_up, where it is above 1 (1.1 for 10), then 1: the released code's
// warm-up, one step too long.
double constant_after_warm_up(int64_t step, int64_t warm_up);

}  // namespace kv
