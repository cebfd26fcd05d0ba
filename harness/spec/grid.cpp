#include "harness/spec/grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "harness/protocols/protocol.h"
#include "harness/spec/axis_owners.h"
#include "harness/spec/case_check.h"
#include "harness/spec/case_policy.h"
#include "harness/spec/component_check.h"
#include "harness/spec/model_choice.h"
#include "harness/spec/names.h"
#include "harness/spec/own_options.h"
#include "harness/spec/places.h"
#include "harness/spec/task_options.h"
#include "kernels/error.h"
#include "sim/tasks/draw_task.h"

namespace kv {
namespace {

// Query block of the full pass's statistics where no budget or interval asks for another.
constexpr int kStatisticsBlock = 64;

using Point = std::vector<GivenParam>;  // one a column

// Drawn tasks, and the one whose texts a model wrote.
std::vector<std::string> task_names() {
  std::vector<std::string> names = names_of(all_tasks());
  names.emplace_back(kOwnTask);
  return names;
}

void check_only(const Component& policy, const std::vector<std::string>& axes) {
  for (const auto& [column, values] : policy.only) {
    if (std::find(axes.begin(), axes.end(), column) != axes.end()) continue;
    throw UserError(fmt::format("{}: policy '{}': only: '{}' is no axis (expected one of: {})", policy.where,
                                policy.label, column, fmt::join(axes, ", ")));
  }
}

void check_names(const Spec& spec) {
  for (const Component& policy : spec.policies) {
    check_policy_names(policy);
    check_only(policy, spec.axis_columns());
  }
  check_labels(spec.policies, "policy");
  for (const Component& metric : spec.metrics) check_metric_names(metric);
  for (const DataSpec& data : spec.data) {
    if (data.kind != DataKind::kTask) continue;
    at(data.source.where, [&] { refuse_data_set_task(data.source.text); });
    check_name(data.source, "task", task_names());
  }
}

// Beyond any study, and still checked in seconds.
constexpr int64_t kMostCases = 20000;

void check_number(const Spec& spec) {
  auto cases = static_cast<int64_t>(spec.policies.size());
  for (const Axis& axis : spec.axes) {
    cases *= std::ssize(axis.points);
    if (cases <= kMostCases) continue;
    throw UserError(
        fmt::format("{}: axes: the product of the axes makes more than {} cases, expected at most that many",
                    axis.where, kMostCases));
  }
}

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

bool brings_lengths(const DataSpec* data) { return data && data->kind == DataKind::kJsonl; }

void check_task_tokens(const DataSpec& data, int tokens) {
  if (tokens == 0) {
    throw UserError(
        fmt::format("{}: data: '{}' lacks the key 'tokens' (a sample's length)", data.source.where, data.name));
  }
  if (tokens < 2 || tokens > kMostTaskTokens) {
    throw UserError(fmt::format("{}: data: '{}': tokens = {}: expected 2 to {}", data.source.where, data.name, tokens,
                                kMostTaskTokens));
  }
}

// Whether the policy is to run at this point of the axes.
bool is_wanted(const Component& policy, const Point& point) {
  return std::all_of(point.begin(), point.end(), [&](const GivenParam& param) {
    const auto found = policy.only.find(param.key);
    return found == policy.only.end() ||
           std::find(found->second.begin(), found->second.end(), param.text) != found->second.end();
  });
}

// A slot by which queries may not see all that is there; without it they do.
struct Veil {
  std::string_view kind, axis;
  const std::string& name;
  std::string_view without;
  bool ObserverNeeds::*taken;  // by metrics that know of it
};

void check_veil(const CaseCheck& check, const Veil& veil) {
  const auto& [kind, axis, name, without, taken] = veil;
  if (!check.spec.protocol->takes_every_slot) {
    check.refuse(fmt::format("takes no {} yet, expected {} in place of '{}'", kind, without, name),
                 check.where_of({axis}));
  }
  for (const Component& metric : check.spec.metrics) {
    if (make_metric(metric.name, metric.options)->observer_needs().*taken) continue;
    throw UserError(
        fmt::format("{}: metric '{}' does not know of entries that nobody sees yet, expected no {} beside it",
                    metric.where, metric.name, kind));
  }
}

std::vector<InputFile> check_files_of(const CaseCheck& check, const ModelIdentity& identity) {
  return at(check.component().where, [&] {
    const Policy& policy = check.policy;
    if (check.spec.protocol->judges_answers) require_meaning(*policy.allocation, check.candidate.slots.allocation.name);
    return check.spec.protocol->learns ? std::vector<InputFile>{} : policy.check(identity);
  });
}

// Blocks must begin where events may fall.
BaselineNeeds needs_of(const Spec& spec, const Case& unit_case, const Policy& policy) {
  BaselineNeeds needs;
  if (spec.protocol->needs) needs = spec.protocol->needs(unit_case);
  needs.merge(policy.future_needs());
  return needs;
}

class GridMaker {
 public:
  GridMaker(const Spec& spec, Learned learned)
      : spec_(spec), learned_(learned), owners_(spec), points_(product(spec.axes)) {
    for (const auto& metric : make_case_metrics(spec)) grid_.needs.merge(metric->observer_needs().baseline);
    metric_needs_ = grid_.needs;
  }

  Grid make() {
    const int models = spec_.traces.empty() ? static_cast<int>(spec_.models.size()) : 1;
    const int entries = static_cast<int>(spec_.data.size());
    for (int model = 0; model < models; ++model) {
      grid_.models.push_back(identity_of(spec_, model));
      for (int data = spec_.data.empty() ? -1 : 0; data < entries; ++data) add_workloads(model, data);
    }
    if ((grid_.needs.block_sums || grid_.needs.block_max) && grid_.needs.statistics_block == 0) {
      grid_.needs.statistics_block = kStatisticsBlock;
    }
    return std::move(grid_);
  }

 private:
  // The workloads of one model and data entry: one a point of the axes that change the data.
  void add_workloads(int model, int data) {
    std::map<std::vector<std::string>, size_t> known;  // what the point says of the data -> workload
    for (const Point& point : points_) {
      std::vector<std::string> key;
      Workload workload = make_workload(model, data, point, key);
      const auto [found, fresh] = known.emplace(key, grid_.workloads.size());
      if (fresh) grid_.workloads.push_back(std::move(workload));
      for (size_t policy = 0; policy < spec_.policies.size(); ++policy) {
        if (is_wanted(spec_.policies[policy], point)) add_case(grid_.workloads[found->second], policy, point);
      }
    }
  }

  void add_case(Workload& workload, size_t policy_index, const Point& point) {
    const DataSpec* data = workload.data < 0 ? nullptr : &spec_.data[static_cast<size_t>(workload.data)];
    Case candidate = make_case(policy_index, data, point);
    // An axis that does not apply to a policy would only repeat it.
    const bool repeated = std::any_of(workload.cases.begin(), workload.cases.end(), [&](const Case& other) {
      return other.policy == candidate.policy && other.axes == candidate.axes;
    });
    if (repeated) return;
    const Policy policy = make_case_policy(spec_, candidate);
    const CaseCheck check{
        .spec = spec_, .model = workload.model, .candidate = candidate, .policy = policy, .point = point};
    if (policy.admission->window() > 0) {
      check_veil(check, {"admission", kAdmissionAxis, policy.admission_name, "none", &ObserverNeeds::takes_unseen});
    }
    if (policy.selection->selects()) {
      check_veil(check, {"selection", kSelectionAxis, policy.selection_name, "all", &ObserverNeeds::takes_unread});
    }
    const bool reads = learned_ == Learned::kRead;
    if (reads) candidate.files = check_files_of(check, grid_.models.back());
    if (spec_.protocol->check_case) spec_.protocol->check_case(check);
    if (reads && spec_.protocol->files) candidate.files = spec_.protocol->files(check, grid_.models.back());
    candidate.needs = needs_of(spec_, candidate, policy);
    candidate.needs.merge(metric_needs_);
    grid_.needs.merge(candidate.needs);
    workload.cases.push_back(std::move(candidate));
  }

  Workload make_workload(int model, int data_index, const Point& point, std::vector<std::string>& key) const {
    Workload workload{.model = model, .data = data_index};
    if (data_index < 0) {
      workload.samples = spec_.traces.empty() ? spec_.samples : static_cast<int>(spec_.traces.size());
      return workload;
    }
    const DataSpec& data = spec_.data[static_cast<size_t>(data_index)];
    workload.samples = data.samples;
    workload.tokens = data.tokens.value_or(0);
    std::vector<GivenParam> options = data.options;
    for (const GivenParam& param : point) {
      if (!owners_.is_of_data(param.key)) continue;
      const bool is_length = owners_.owner(param.key) == AxisOwner::kTokens;
      const bool applies = is_length ? !brings_lengths(&data) : AxisOwners::applies_to_task(data, param.key);
      if (applies && is_length) workload.tokens = number_of_tokens(param);
      if (applies && !is_length) options.push_back(param);
      key.push_back(applies ? param.text : "");
    }
    if (data.kind == DataKind::kTask || data.kind == DataKind::kOwn) check_task_tokens(data, workload.tokens);
    if (data.kind == DataKind::kOwn) parse_own_options(data);
    if (data.kind == DataKind::kTask) workload.options = parse_task_options(find_task(data.source.text), options);
    return workload;
  }

  Case make_case(size_t policy, const DataSpec* data, const Point& point) const {
    Case resolved{.policy = static_cast<int>(policy),
                  .options = spec_.policies[policy].options,
                  .slots = spec_.policies[policy].slots};
    const bool evicts = make_case_policy(spec_, resolved).scorer != nullptr;
    resolved.axes.resize(point.size());
    // Options of what fills a slot come last: another axis may fill it.
    for (const bool of_slots : {false, true}) {
      for (size_t i = 0; i < point.size(); ++i) {
        if ((owners_.owner(point[i].key) == AxisOwner::kSlotOption) != of_slots) continue;
        if (set_axis(resolved, evicts, data, point[i])) resolved.axes[i] = point[i].text;
      }
    }
    return resolved;
  }

  // Whether the axis applies to the case, which then has its value.
  bool set_axis(Case& target, bool evicts, const DataSpec* data, const GivenParam& param) const {
    switch (owners_.owner(param.key)) {
      case AxisOwner::kProtocol: {
        const ProtocolAxis& axis = *spec_.protocol->find_axis(param.key);
        if (axis.cuts && !evicts) return false;
        if (axis.check) axis.check(param);
        target.settings.push_back(param);
        return true;
      }
      case AxisOwner::kProtocolKey:
        target.settings.push_back(param);
        return true;
      case AxisOwner::kPolicy:
        if (!owners_.applies_to_policy(static_cast<size_t>(target.policy), param.key)) return false;
        target.options.push_back(param);
        return true;
      case AxisOwner::kAllocation:
        check_name({param.text, param.where}, kAllocationAxis, names_of(allocations()));
        if (evicts) target.slots.allocation = {.name = param.text, .where = param.where};
        return evicts;
      case AxisOwner::kAdmission:
        check_name({param.text, param.where}, kAdmissionAxis, names_of(admissions()));
        target.slots.admission = {.name = param.text, .where = param.where};
        return true;
      case AxisOwner::kSelection:
        check_name({param.text, param.where}, kSelectionAxis, names_of(selections()));
        target.slots.selection = {.name = param.text, .where = param.where};
        return true;
      case AxisOwner::kSlotOption: {
        const SlotOption axis = slot_option(param.key);
        SlotChoice* const slot = slot_with(target.slots, axis.part);
        if (slot) slot->options.push_back({.key = axis.option, .text = param.text, .where = param.where});
        return slot != nullptr;
      }
      case AxisOwner::kTokens:
        return !brings_lengths(data);
      case AxisOwner::kTask:
        return data && AxisOwners::applies_to_task(*data, param.key);
    }
    return false;
  }

  const Spec& spec_;
  Learned learned_;
  AxisOwners owners_;
  std::vector<Point> points_;
  BaselineNeeds metric_needs_;
  Grid grid_;
};

}  // namespace

Grid make_grid(const Spec& spec, Learned learned) {
  check_names(spec);
  check_number(spec);
  return GridMaker(spec, learned).make();
}

}  // namespace kv
