#pragma once

#include "sim/policy/params.h"

namespace kv {

// Option `recent` of a policy that judges by a window of the newest queries: newest entries that always stay where they
// are more than the window; −1: as many as the interval, as 001's H2O and Golden protect. Default 0: the window alone.
int recent_option(Params& params);

// How many of the newest entries an event never takes, >= window.
int protected_newest(int recent, int window, int interval);

}  // namespace kv
