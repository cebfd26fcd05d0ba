// Full cache: nothing is ever evicted. What every other policy is measured against.

#include "sim/policy/policy.h"

namespace kv {

namespace {

const RegisterPolicy registered{{
    .name = "full",
    .summary = "keeps every entry",
    .make = [](Params&) -> std::unique_ptr<Scorer> { return nullptr; },
}};

}  // namespace

}  // namespace kv
