#pragma once

#include <vector>

#include "sim/policy/params.h"
#include "sim/tasks/task.h"

namespace kv {

// Options of a task, as a spec gives them; `declared` (may be null) receives their names, types and meaning.
TaskOptions parse_task_options(const Task& task, const std::vector<GivenParam>& options,
                               std::vector<DeclaredParam>* declared = nullptr);

}  // namespace kv
