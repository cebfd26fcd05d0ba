// Nothing is turned away: every entry is seen until an event evicts it.

#include "sim/policy/admission.h"

namespace kv {

namespace {

const RegisterAdmission registered{{
    .name = "none",
    .summary = "every entry is seen until an event evicts it",
    .make = [](Params&) { return std::make_unique<Admission>(); },
}};

}  // namespace

}  // namespace kv
