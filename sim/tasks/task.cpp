#include "sim/tasks/task.h"

#include <fmt/format.h>

#include <map>

#include "kernels/check.h"
#include "kernels/error.h"

namespace kv {
namespace {

std::map<std::string, Task, std::less<>>& registry() {
  static std::map<std::string, Task, std::less<>> tasks;
  return tasks;
}

}  // namespace

RegisterTask::RegisterTask(Task task) {
  const std::string name = task.name;
  KV_CHECK(registry().emplace(name, std::move(task)).second);
}

std::vector<const Task*> all_tasks() {
  std::vector<const Task*> tasks;
  for (const auto& [name, task] : registry()) tasks.push_back(&task);
  return tasks;
}

void refuse_data_set_task(std::string_view name) {
  if (name == "qa-1" || name == "qa-2")
    throw UserError(fmt::format("task {} is not generated, expected a JSON-lines data set of its questions", name));
}

const Task& find_task(std::string_view name) {
  const auto found = registry().find(name);
  if (found != registry().end()) return found->second;
  refuse_data_set_task(name);
  std::string known;
  for (const auto& [each, task] : registry()) known += (known.empty() ? "" : ", ") + each;
  throw UserError(fmt::format("task {} is unknown, expected one of {}", name, known));
}

}  // namespace kv
