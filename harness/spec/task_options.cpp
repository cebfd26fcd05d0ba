#include "harness/spec/task_options.h"

#include <algorithm>
#include <map>
#include <optional>

namespace kv {

TaskOptions parse_task_options(const Task& task, const std::vector<GivenParam>& options,
                               std::vector<DeclaredParam>* declared) {
  Params params(task.name, options);
  const auto listed = [&](const char* name) {
    return std::find(task.options.begin(), task.options.end(), name) != task.options.end();
  };
  const auto count = [&](const char* name, const char* help) -> std::optional<int> {
    if (!listed(name)) return std::nullopt;
    const int value = params.get(name, 0, help);
    if (!params.has(name)) return std::nullopt;
    if (value < 0) params.fail(name, "expected a count");
    return value;
  };
  TaskOptions out;
  out.needles = count("needles", "facts hidden in the text");
  out.values = count("values", "values of each key");
  out.questions = count("questions", "questions asked");
  out.chains = count("chains", "chains of variables");
  out.hops = count("hops", "assignments in a chain after the first");
  out.distractors = count("distractors", "further facts, of keys that are never asked for");
  if (listed("depth")) {
    const double depth = params.get(
        "depth", 0.0, "where the facts asked for stand, 0 (front) to 1 (end); each elsewhere where not given");
    if (params.has("depth")) {
      if (!(depth >= 0 && depth <= 1)) params.fail("depth", "expected 0 to 1");
      out.depth = depth;
    }
  }
  if (listed("definitions")) {
    const double definitions = params.get(
        "definitions", 0.0,
        "share of the text that defines quantities, above 0 and at most 0.2: the trace goes round until the text is "
        "full; 0: about a quarter, and the trace goes round once");
    if (!(definitions >= 0 && definitions <= 0.2)) params.fail("definitions", "expected 0 to 0.2");
    if (definitions > 0) out.definitions = definitions;
  }
  if (listed("hay")) {
    static const std::map<std::string, Hay> kHays = {
        {"book", Hay::kBook}, {"code", Hay::kCode}, {"noise", Hay::kNoise}, {"needles", Hay::kNeedles}};
    const std::string hay = params.get("hay", "drawn", {"drawn", "book", "code", "noise", "needles"},
                                       "what the facts are hidden in; drawn: as the task has it");
    if (hay != "drawn") out.hay = kHays.at(hay);
  }
  if (listed("wording")) {
    const std::string wording = params.get("wording", "reference", {"reference", "neutral"},
                                           "as the reference model was trained, or plain English");
    if (wording == "neutral") out.wording = Wording::kNeutral;
  }
  if (declared) *declared = params.declared();
  params.finish();
  return out;
}

}  // namespace kv
