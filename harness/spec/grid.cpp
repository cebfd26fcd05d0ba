#include "harness/spec/grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "harness/protocols/answers.h"
#include "harness/spec/model_choice.h"
#include "kernels/error.h"
#include "sim/policy/spelling.h"
#include "sim/replay/schedule.h"
#include "sim/tasks/draw_task.h"

namespace kv {
namespace {

// Query block of the full pass's statistics where no budget or interval asks for another.
constexpr int kStatisticsBlock = 64;

template <class T>
T number_of(const GivenParam& param, T low, T high, std::string_view expected) {
  T value{};
  const auto [end, error] = std::from_chars(param.text.data(), param.text.data() + param.text.size(), value);
  if (error == std::errc() && end == param.text.data() + param.text.size() && value >= low && value <= high) {
    return value;
  }
  throw UserError(fmt::format("{}: axes: {} = {}: expected {}", param.where, param.key, param.text, expected));
}

// Errors that name no place get that of what caused them.
template <class Make>
auto at(const std::string& where, const Make& make) {
  try {
    return make();
  } catch (const UserError& error) {
    const std::string file = where.substr(0, where.find(':'));
    const std::string_view what = error.what();
    if (what.starts_with(file + ":") || what.starts_with("--set ")) throw;
    throw UserError(fmt::format("{}: {}", where, what));
  }
}

void check_name(const Component& component, const char* kind, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), component.name) != known.end()) return;
  throw UserError(fmt::format("{}: unknown {} '{}'{} (expected one of: {})", component.where, kind, component.name,
                              did_you_mean(component.name, known), fmt::join(known, ", ")));
}

template <class Entries>
std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto* entry : entries) names.push_back(entry->name);
  return names;
}

bool lists(const std::vector<DeclaredParam>& declared, const std::string& key) {
  return std::any_of(declared.begin(), declared.end(), [&](const DeclaredParam& param) { return param.key == key; });
}

bool sets(const std::vector<GivenParam>& options, const std::string& key) {
  return std::any_of(options.begin(), options.end(), [&](const GivenParam& param) { return param.key == key; });
}

// `arm` only names a point, for tables and for `only`.
constexpr std::array<std::string_view, 7> kLatencyAxes = {"context",  "new_tokens", "batch", "budget",
                                                          "interval", "keep",       "arm"};

bool is_latency_axis(std::string_view column) {
  return std::find(kLatencyAxes.begin(), kLatencyAxes.end(), column) != kLatencyAxes.end();
}

// What a policy that never evicts has no use for.
bool is_cut_axis(std::string_view column) { return column == "budget" || column == "interval" || column == "keep"; }

enum class Owner { kProtocol, kTokens, kTask, kPolicy, kAllocation };

constexpr std::string_view kAllocationAxis = "allocation";

void check_allocation(const std::string& name, const std::string& where) {
  check_name({.name = name, .where = where}, "allocation", names_of(allocations()));
}

// Which columns of the axes go where.
class Columns {
 public:
  explicit Columns(const Spec& spec) : spec_(spec) {
    for (const Component& policy : spec.policies) policy_options_.push_back(describe_policy(policy.name));
    for (const Axis& axis : spec.axes) {
      for (const GivenParam& param : axis.points.front()) owners_[param.key] = classify(param);
    }
  }

  Owner owner(const std::string& column) const { return owners_.at(column); }
  bool has(const std::string& column) const { return owners_.contains(column); }
  bool applies_to_policy(size_t policy, const std::string& column) const {
    return lists(policy_options_[policy], column);
  }
  static bool applies_to_task(const DataSpec& data, const std::string& column) {
    if (data.kind != DataKind::kTask) return false;
    const std::vector<std::string>& known = find_task(data.source.text).options;
    return std::find(known.begin(), known.end(), column) != known.end();
  }

 private:
  Owner classify(const GivenParam& param) const {
    const std::string& column = param.key;
    const bool decode = spec_.protocol == Protocol::kDecode;
    if (spec_.protocol == Protocol::kLatency && is_latency_axis(column)) return Owner::kProtocol;
    if (spec_.protocol == Protocol::kAnswer && column == "query") return Owner::kProtocol;
    if (column == "budget" || column == "interval" || column == "keep") {
      if (decode == (column != "keep")) return Owner::kProtocol;
      const char* protocol = decode ? "decode" : spec_.protocol == Protocol::kAnswer ? "answer" : "one-shot";
      throw UserError(fmt::format("{}: axes: {} does not belong to protocol {} (expected {})", param.where, column,
                                  protocol, decode ? "budget and interval" : "keep"));
    }
    if (column == "tokens" && spec_.protocol != Protocol::kLatency) return check_tokens(param);
    if (column == kAllocationAxis) return check_allocations(param);
    bool task = false, policy = false;
    for (const DataSpec& data : spec_.data) {
      if (!applies_to_task(data, column)) continue;
      task = true;
      if (sets(data.options, column)) refuse_twice(param, data.name);
    }
    for (size_t p = 0; p < spec_.policies.size(); ++p) {
      if (!applies_to_policy(p, column)) continue;
      policy = true;
      if (sets(spec_.policies[p].options, column)) refuse_twice(param, spec_.policies[p].label);
    }
    if (task && policy) {
      throw UserError(fmt::format("{}: axes: '{}' is an option of both a task and a policy, expected one of them",
                                  param.where, column));
    }
    if (task) return Owner::kTask;
    if (policy) return Owner::kPolicy;
    refuse_unknown(param);
  }

  Owner check_allocations(const GivenParam& param) const {
    for (const Component& policy : spec_.policies) {
      if (policy.allocation.name != "uniform") refuse_twice(param, policy.label);
    }
    return Owner::kAllocation;
  }

  Owner check_tokens(const GivenParam& param) const {
    if (!spec_.traces.empty()) {
      throw UserError(fmt::format("{}: axes: a trace has its own length, expected no axis 'tokens'", param.where));
    }
    for (const DataSpec& data : spec_.data) {
      if (data.tokens) refuse_twice(param, data.name);
    }
    return Owner::kTokens;
  }

  [[noreturn]] static void refuse_twice(const GivenParam& param, const std::string& other) {
    throw UserError(
        fmt::format("{}: axes: '{}' is set by '{}', too; expected one of them", param.where, param.key, other));
  }

  std::vector<std::string> protocol_axes() const {
    if (spec_.protocol == Protocol::kDecode) return {"budget", "interval"};
    if (spec_.protocol == Protocol::kOneShot) return {"keep"};
    if (spec_.protocol == Protocol::kAnswer) return {"keep", "query"};
    return {kLatencyAxes.begin(), kLatencyAxes.end()};
  }

  [[noreturn]] void refuse_unknown(const GivenParam& param) const {
    std::vector<std::string> known = protocol_axes();
    const auto add = [&](const std::string& name) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    };
    if (spec_.protocol != Protocol::kLatency) add("tokens");
    add(std::string(kAllocationAxis));
    for (const DataSpec& data : spec_.data) {
      if (data.kind != DataKind::kTask) continue;
      for (const std::string& option : find_task(data.source.text).options) add(option);
    }
    for (const auto& options : policy_options_) {
      for (const DeclaredParam& option : options) add(option.key);
    }
    throw UserError(
        fmt::format("{}: axes: '{}' is no option of this experiment's data or policies{} (expected one of: {})",
                    param.where, param.key, did_you_mean(param.key, known), fmt::join(known, ", ")));
  }

  const Spec& spec_;
  std::vector<std::vector<DeclaredParam>> policy_options_;
  std::map<std::string, Owner> owners_;
};

using Point = std::vector<GivenParam>;  // one a column

// The product of all axes, the first one slowest.
std::vector<Point> product(const std::vector<Axis>& axes) {
  std::vector<Point> points(1);
  for (const Axis& axis : axes) {
    std::vector<Point> longer;
    for (const Point& point : points) {
      for (const auto& added : axis.points) {
        longer.push_back(point);
        longer.back().insert(longer.back().end(), added.begin(), added.end());
      }
    }
    points = std::move(longer);
  }
  return points;
}

bool is_data(Owner owner) { return owner == Owner::kTokens || owner == Owner::kTask; }

Workload make_workload(const Spec& spec, int model, int data_index, const Columns& columns, const Point& point,
                       std::vector<std::string>& key) {
  Workload workload{.model = model, .data = data_index};
  if (data_index < 0) {
    workload.samples = spec.traces.empty() ? spec.samples : static_cast<int>(spec.traces.size());
    return workload;
  }
  const DataSpec& data = spec.data[static_cast<size_t>(data_index)];
  workload.samples = data.samples;
  workload.tokens = data.tokens.value_or(0);
  std::vector<GivenParam> options = data.options;
  for (const GivenParam& param : point) {
    const Owner owner = columns.owner(param.key);
    const bool has_length = owner == Owner::kTokens && data.kind != DataKind::kJsonl;  // its contexts have their own
    if (has_length) workload.tokens = number_of<int>(param, 1, 1 << 24, "a number of tokens");
    if (owner == Owner::kTask && Columns::applies_to_task(data, param.key)) options.push_back(param);
    const bool applies = has_length || (owner == Owner::kTask && Columns::applies_to_task(data, param.key));
    key.push_back(applies ? param.text : "");
  }
  if (data.kind == DataKind::kTask) {
    if (workload.tokens == 0) {
      throw UserError(
          fmt::format("{}: data: '{}' lacks the key 'tokens' (a sample's length)", data.source.where, data.name));
    }
    if (workload.tokens < 2 || workload.tokens > kMostTaskTokens) {
      throw UserError(fmt::format("{}: data: '{}': tokens = {}: expected 2 to {}", data.source.where, data.name,
                                  workload.tokens, kMostTaskTokens));
    }
    workload.options = parse_task_options(find_task(data.source.text), options);
  }
  return workload;
}

void set_protocol_axis(Case& one, const GivenParam& param) {
  if (param.key == "arm") return;
  if (param.key == "query") {
    if (param.text != "agnostic" && param.text != "aware") {
      throw UserError(fmt::format("{}: axes: query = {}: expected agnostic or aware", param.where, param.text));
    }
    one.query_aware = param.text == "aware";
  } else if (param.key == "keep") {
    one.keep = number_of<double>(param, 1e-6, 1, "a fraction above 0 and at most 1");
  } else if (param.key == "batch") {
    one.batch = param.text == "max" ? 0 : number_of<int>(param, 1, 1 << 30, "a number of sequences, or max");
  } else {
    int& tokens = param.key == "budget"     ? one.budget
                  : param.key == "interval" ? one.interval
                  : param.key == "context"  ? one.context
                                            : one.new_tokens;
    tokens = number_of<int>(param, 1, 1 << 24, "a number of tokens, at least 1");
  }
}

Case make_case(const Spec& spec, size_t policy, const DataSpec* data, const Columns& columns, const Point& point) {
  Case one{.policy = static_cast<int>(policy),
           .options = spec.policies[policy].options,
           .allocation = spec.policies[policy].allocation};
  const bool evicts = make_case_policy(spec, one).scorer != nullptr;
  for (const GivenParam& param : point) {
    bool applies = true;
    switch (columns.owner(param.key)) {
      case Owner::kProtocol:
        applies = spec.protocol != Protocol::kLatency || !is_cut_axis(param.key) || evicts;
        if (applies) set_protocol_axis(one, param);
        break;
      case Owner::kPolicy:
        applies = columns.applies_to_policy(policy, param.key);
        if (applies) one.options.push_back(param);
        break;
      case Owner::kAllocation:
        applies = evicts;
        check_allocation(param.text, param.where);
        if (applies) one.allocation = {param.text};
        break;
      case Owner::kTokens:
        applies = !data || data->kind != DataKind::kJsonl;
        break;
      case Owner::kTask:
        applies = data && Columns::applies_to_task(*data, param.key);
        break;
    }
    one.axes.push_back(applies ? param.text : "");
  }
  return one;
}

// Where a complaint about what one of these axes sets belongs: there, or where none does to the policy.
std::string where_of(std::initializer_list<std::string_view> axes, const Spec& spec, const Point& point,
                     size_t policy) {
  for (const GivenParam& param : point) {
    if (std::find(axes.begin(), axes.end(), param.key) != axes.end()) return param.where;
  }
  return spec.policies[policy].where;
}

std::string where_of_budget(const Spec& spec, const Point& point, size_t policy) {
  return where_of({"budget", "keep"}, spec, point, policy);
}

std::string where_of_interval(const Spec& spec, const Point& point, size_t policy) {
  return where_of({"interval"}, spec, point, policy);
}

std::string where_of_oracle(const Spec& spec, const Point& point, size_t policy, const Policy& made) {
  if (made.scorer->needs().future) return spec.policies[policy].where;
  return where_of({kAllocationAxis}, spec, point, policy);
}

// What an oracle asks for, and whose wish it is.
std::string future_of(const Policy& made) {
  if (made.scorer->needs().future) return "the future";
  return fmt::format("the future (allocation '{}' divides each input by it)", made.allocation_name);
}

// A prompt that is cut once, or a generation that is pruned as it goes.
void check_latency_case(const Spec& spec, const Case& one, const Policy& made, const Point& point) {
  const Component& component = spec.policies[static_cast<size_t>(one.policy)];
  const auto refuse_at = [&](const std::string& where, std::string_view what) {
    throw UserError(fmt::format("{}: policy '{}' under protocol latency {}", where, component.label, what));
  };
  const auto refuse = [&](std::string_view what) { refuse_at(component.where, what); };
  if (one.context == 0 && one.new_tokens == 0) refuse("needs an axis context or new_tokens");
  if (!made.scorer) return;
  if (made.oracle()) {
    refuse_at(where_of_oracle(spec, point, static_cast<size_t>(one.policy), made),
              fmt::format("needs {}, which nothing computes there", future_of(made)));
  }
  const bool pruned = one.budget > 0 && one.interval > 0 && one.keep == 0;
  const bool cut = one.budget == 0 && one.interval == 0 && one.keep > 0;
  if (!pruned && !cut) refuse("needs either the axes budget and interval or the axis keep");
  if (pruned && one.context > 0) refuse("takes either the axis context, or budget and interval");
  if (cut && one.context == 0) refuse("needs the axis context, of which keep is a fraction");
  const std::string where = where_of_budget(spec, point, static_cast<size_t>(one.policy));
  if (pruned) {
    at(where_of_interval(spec, point, static_cast<size_t>(one.policy)), [&] { check_interval(made, one.interval); });
  }
  if (pruned && at(where, [&] { return check_decode(made, one.budget, one.interval); }) != one.interval) {
    refuse("prunes at an interval of its own; expected one that keeps to the asked interval");
  }
  if (cut) at(where, [&] { made.scorer->check_budget(kept_tokens(one.context, one.keep), 0); });
}

// Nothing is cut: what a scorer would keep is compared with what is asked.
void check_profile_case(const Spec& spec, int model, const Case& one, const Policy& made) {
  const Component& component = spec.policies[static_cast<size_t>(one.policy)];
  const auto refuse = [&](const std::string& where, std::string_view what) {
    throw UserError(fmt::format("{}: {}", where, what));
  };
  const auto refuse_policy = [&](std::string_view what) {
    refuse(component.where, fmt::format("policy '{}' {}", component.label, what));
  };
  if (!made.scorer) refuse_policy("never evicts, so there is nothing to profile");
  if (one.allocation.name != "uniform") refuse_policy("has an allocation of its own, which a profile has no use for");
  if (made.oracle()) refuse_policy("needs the future, which no profile can foresee");
  const ModelChoice& choice = spec.models[static_cast<size_t>(model)];
  if (choice.random) refuse(choice.source.where, "random weights answer nothing, expected a model folder");
  for (const DataSpec& data : spec.data) {
    if (data.kind == DataKind::kTask) continue;
    refuse(data.source.where, fmt::format("data: '{}' asks nothing; protocol profile expects a task", data.name));
  }
}

std::vector<InputFile> check_files_of(const Spec& spec, const ModelIdentity& identity, const Case& one,
                                      const Policy& made) {
  return at(spec.policies[static_cast<size_t>(one.policy)].where, [&] {
    if (spec.protocol != Protocol::kLatency) require_meaning(*made.allocation, one.allocation.name);
    return made.check(identity);
  });
}

void check_case(const Spec& spec, int model, const Case& one, const Policy& made, const Point& point) {
  const size_t policy = static_cast<size_t>(one.policy);
  if (spec.protocol == Protocol::kLatency) return check_latency_case(spec, one, made, point);
  if (spec.protocol == Protocol::kProfile) return check_profile_case(spec, model, one, made);
  if (!made.scorer) return;
  const std::string where = where_of_budget(spec, point, policy);
  if (spec.protocol == Protocol::kDecode) {
    if (one.budget == 0 || one.interval == 0) {
      throw UserError(fmt::format("{}: policy '{}' under protocol decode needs the axes budget and interval",
                                  spec.policies[policy].where, one.policy >= 0 ? spec.policies[policy].label : ""));
    }
    at(where_of_interval(spec, point, policy), [&] { check_interval(made, one.interval); });
    at(where, [&] { return check_decode(made, one.budget, one.interval); });
  } else if (one.keep == 0) {
    throw UserError(fmt::format("{}: policy '{}' under protocol {} needs the axis keep", spec.policies[policy].where,
                                spec.policies[policy].label,
                                spec.protocol == Protocol::kAnswer ? "answer" : "one-shot"));
  } else if (spec.protocol == Protocol::kAnswer && made.oracle()) {
    throw UserError(fmt::format("{}: policy '{}' needs {}, which protocol answer has yet to write",
                                where_of_oracle(spec, point, policy, made), spec.policies[policy].label,
                                future_of(made)));
  }
}

// Blocks must begin where events may fall: at B + kL.
void add_needs(const Case& one, const Policy& policy, BaselineNeeds& needs) {
  BaselineNeeds own;
  if (one.budget > 0 && one.interval > 0) own.statistics_block = std::gcd(one.budget, one.interval);
  own.merge(policy.future_needs());
  needs.merge(own);
}

void check_only(const Component& policy, const std::vector<std::string>& axes) {
  for (const auto& [column, values] : policy.only) {
    if (std::find(axes.begin(), axes.end(), column) != axes.end()) continue;
    throw UserError(fmt::format("{}: policy '{}': only: '{}' is no axis (expected one of: {})", policy.where,
                                policy.label, column, fmt::join(axes, ", ")));
  }
}

// Whether the policy is to run at this point of the axes.
bool wanted(const Component& policy, const Point& point) {
  return std::all_of(point.begin(), point.end(), [&](const GivenParam& param) {
    const auto found = policy.only.find(param.key);
    return found == policy.only.end() ||
           std::find(found->second.begin(), found->second.end(), param.text) != found->second.end();
  });
}

void check_names(const Spec& spec) {
  for (const Component& policy : spec.policies) {
    check_name(policy, "policy", names_of(policies()));
    check_allocation(policy.allocation.name, policy.where);
    check_only(policy, spec.axis_columns());
  }
  for (const Component& metric : spec.metrics) check_name(metric, "metric", names_of(metrics()));
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kTask) continue;
    at(data.source.where, [&] { refuse_data_set_task(data.source.text); });
    check_name({.name = data.source.text, .where = data.source.where}, "task", names_of(all_tasks()));
  }
}

}  // namespace

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

Policy make_case_policy(const Spec& spec, const Case& one) {
  const Component& component = spec.policies[static_cast<size_t>(one.policy)];
  SlotChoice allocation = one.allocation;
  for (const DeclaredParam& declared : describe_allocation(allocation.name)) {
    if (declared.type != "file") continue;
    for (GivenParam& option : allocation.options) {
      if (option.key == declared.key) option.text = resolve_path(spec, {option.text, option.where}).string();
    }
  }
  return at(component.where, [&] { return make_policy(component.name, one.options, std::move(allocation)); });
}

Policy load_case_policy(const Spec& spec, const Case& one) {
  Policy policy = make_case_policy(spec, one);
  policy.load(one.files);
  return policy;
}

std::vector<std::unique_ptr<Metric>> make_case_metrics(const Spec& spec) {
  std::vector<std::unique_ptr<Metric>> all;
  for (const Component& component : spec.metrics) {
    all.push_back(at(component.where, [&] { return make_metric(component.name, component.options); }));
  }
  return all;
}

// Tasks that the full cache fails are left out of averages, so its score must be among the rows.
void check_answers(const Spec& spec) {
  if (spec.protocol != Protocol::kAnswer) return;
  parse_sampling(spec);
  for (const DataSpec& data : spec.data) {
    if (data.kind == DataKind::kText || data.kind == DataKind::kIds) {
      throw UserError(fmt::format("{}: data: '{}' asks nothing; protocol answer expects a task or jsonl",
                                  data.source.where, data.name));
    }
    if (!data.metric.empty()) at(data.source.where, [&] { return find_answer_metric(data.metric); });
  }
  const bool has_full = std::any_of(spec.policies.begin(), spec.policies.end(),
                                    [](const Component& policy) { return policy.name == "full"; });
  if (!has_full) throw UserError(fmt::format("{}: protocol answer needs the policy full among others", spec.file));
}

Grid make_grid(const Spec& spec) {
  check_names(spec);
  check_answers(spec);
  const Columns columns(spec);
  Grid grid;
  for (const auto& metric : make_case_metrics(spec)) grid.needs.merge(metric->observer_needs().baseline);
  const std::vector<Point> points = product(spec.axes);
  const int models = spec.traces.empty() ? static_cast<int>(spec.models.size()) : 1;
  const int entries = static_cast<int>(spec.data.size());
  for (int model = 0; model < models; ++model) {
    grid.models.push_back(identity_of(spec, model));
    for (int data = spec.data.empty() ? -1 : 0; data < entries; ++data) {
      const DataSpec* entry = data < 0 ? nullptr : &spec.data[static_cast<size_t>(data)];
      std::map<std::vector<std::string>, size_t> known;  // data part of a point -> workload
      for (const Point& point : points) {
        Point data_part;
        for (const GivenParam& param : point) {
          if (is_data(columns.owner(param.key))) data_part.push_back(param);
        }
        std::vector<std::string> key;
        Workload workload = make_workload(spec, model, data, columns, data_part, key);
        const auto [found, fresh] = known.emplace(key, grid.workloads.size());
        if (fresh) grid.workloads.push_back(std::move(workload));
        std::vector<Case>& cases = grid.workloads[found->second].cases;
        for (size_t policy = 0; policy < spec.policies.size(); ++policy) {
          if (!wanted(spec.policies[policy], point)) continue;
          Case one = make_case(spec, policy, entry, columns, point);
          // An axis that does not apply to a policy would only repeat it.
          const bool repeated = std::any_of(cases.begin(), cases.end(), [&](const Case& other) {
            return other.policy == one.policy && other.axes == one.axes;
          });
          if (repeated) continue;
          const Policy made = make_case_policy(spec, one);
          one.files = check_files_of(spec, grid.models.back(), one, made);
          check_case(spec, model, one, made, point);
          add_needs(one, made, grid.needs);
          cases.push_back(std::move(one));
        }
      }
    }
  }
  if ((grid.needs.block_sums || grid.needs.block_max) && grid.needs.statistics_block == 0) {
    grid.needs.statistics_block = kStatisticsBlock;
  }
  return grid;
}

}  // namespace kv
