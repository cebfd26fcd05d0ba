// Attention reads every page of the cache.

#include "sim/policy/selection.h"

namespace kv {

namespace {

const RegisterSelection registered{{
    .name = "all",
    .summary = "attention reads everything that is resident",
    .make = [](Params&) { return std::make_unique<Selection>(); },
}};

}  // namespace

}  // namespace kv
