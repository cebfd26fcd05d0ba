#pragma once

#include <string>

#include "harness/protocols/unit.h"
#include "harness/spec/case.h"

namespace kv {

// SHA-256 of everything that determines the rows of a unit of work: the code and its build, the processor and the card
// (where rows are timings alone, the number of threads, too), the files of model and tokenizer, what the batch reads
// (`inputs`, UnitRunner::inputs()), and every field of the resolved case and of the spec that is more than explanation.
// Two units of equal keys have equal rows, timings apart. A field that is added to one of these structs does not
// compile until harness/unit_key.cpp says what becomes of it.
std::string unit_key(const UnitBatch& batch, const Case& unit_case, const std::string& inputs);

}  // namespace kv
