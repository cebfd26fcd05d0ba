#include "sim/policy/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "kernels/error.h"

namespace kv {

namespace {

// "snapkv {window: 32}": the values that differ from their defaults, by key, so that neither the order of the options
// nor how a number is written matters.
std::string quoted(const std::string& name, std::vector<DeclaredParam> options) {
  std::erase_if(options, [](const DeclaredParam& option) { return option.value == option.fallback; });
  if (options.empty()) return name;
  std::sort(options.begin(), options.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  std::string list;
  for (const DeclaredParam& option : options) {
    list += fmt::format("{}{}: {}", list.empty() ? "" : ", ", option.key, option.value);
  }
  return fmt::format("{} {{{}}}", name, list);
}

}  // namespace

std::vector<PolicySlot> Policy::slots() const {
  std::vector<PolicySlot> filled;
  if (scorer) filled.push_back({"scorer", name, *scorer});
  filled.push_back({"allocation", allocation_name, *allocation});
  filled.push_back({"admission", admission_name, *admission});
  filled.push_back({"selection", selection_name, *selection});
  return filled;
}

bool Policy::oracle() const {
  const auto filled = slots();
  return std::any_of(filled.begin(), filled.end(), [](const PolicySlot& place) { return place.slot.needs().future; });
}

const std::string& Policy::oracle_name() const {
  for (const PolicySlot& place : slots()) {
    if (place.slot.needs().future) return place.name;
  }
  return name;
}

BaselineNeeds Policy::future_needs() const {
  BaselineNeeds all;
  for (const PolicySlot& place : slots()) {
    if (const auto future = place.slot.needs().future) all.merge(*future);
  }
  return all;
}

size_t Policy::learned_bytes(const SourceInfo& info, DType activations) const {
  size_t bytes = 0;
  for (const PolicySlot& place : slots()) bytes += place.slot.learned_bytes(info, activations);
  return bytes;
}

std::vector<InputFile> Policy::check(const ModelIdentity& model) const {
  std::vector<InputFile> files;
  for (const PolicySlot& place : slots()) {
    for (InputFile& file : place.slot.check(model, scorer_name)) {
      file.slot = place.kind;
      files.push_back(std::move(file));
    }
  }
  return files;
}

void Policy::load(std::span<const InputFile> files) {
  for (const PolicySlot& place : slots()) {
    std::vector<InputFile> read;
    std::copy_if(files.begin(), files.end(), std::back_inserter(read),
                 [&](const InputFile& file) { return file.slot == place.kind; });
    if (!read.empty()) place.slot.load(read);
  }
}

Needs scorer_needs(const Policy& policy) { return policy.scorer ? policy.scorer->needs() : Needs{}; }

std::vector<const AdmissionEntry*> admissions() { return registry_of<Admission>().all(); }

std::vector<DeclaredParam> describe_admission(std::string_view name) { return describe_part<Admission>(name); }

std::vector<const SelectionEntry*> selections() { return registry_of<Selection>().all(); }

std::vector<DeclaredParam> describe_selection(std::string_view name) { return describe_part<Selection>(name); }

std::vector<const PolicyEntry*> policies() { return registry_of<Scorer>().all(); }

Policy policy_of(const std::string& name, std::unique_ptr<Scorer> scorer) {
  Policy policy;
  policy.name = name;
  policy.scorer_name = name;
  policy.scorer = std::move(scorer);
  policy.allocation = make_allocation(policy.allocation_name, {});
  policy.admission = make_part<Admission>(policy.admission_name, {});
  policy.selection = make_part<Selection>(policy.selection_name, {});
  return policy;
}

Policy make_policy(std::string_view name, std::vector<GivenParam> options, SlotChoices others) {
  std::vector<DeclaredParam> declared;
  std::unique_ptr<Scorer> scorer = make_part<Scorer>(name, std::move(options), &declared);
  Policy policy = policy_of(std::string(name), std::move(scorer));
  policy.scorer_name = quoted(policy.name, std::move(declared));
  policy.allocation_name = others.allocation.name;
  policy.allocation = make_allocation(others.allocation.name, std::move(others.allocation.options));
  policy.admission_name = others.admission.name;
  policy.admission = make_part<Admission>(others.admission.name, std::move(others.admission.options));
  policy.selection_name = others.selection.name;
  policy.selection = make_part<Selection>(others.selection.name, std::move(others.selection.options));
  if (!policy.scorer && policy.allocation_name != "uniform") {
    throw UserError(fmt::format("{}: never evicts, so there is nothing to allocate (allocation: {})", policy.name,
                                policy.allocation_name));
  }
  return policy;
}

void check_admission(const Policy& policy, int interval) {
  const int window = policy.admission->window(), queries = scorer_needs(policy).window(interval);
  if (window == 0 || queries <= window) return;
  // What the newest token did not see any more has left before a scorer looks.
  throw UserError(
      fmt::format("{}: judges by the newest {} queries, expected no more than the {} tokens for which admission {} "
                  "lets all see an entry",
                  policy.name, queries, window, policy.admission_name));
}

void check_interval(const Policy& policy, int wanted) {
  // Until the next event a head gets `interval` entries, and it may hold no others.
  const int interval = policy.scorer->interval(wanted), window = policy.scorer->least_entries();
  if (interval >= window || policy.allocation->keeps_protected()) return;
  throw UserError(fmt::format(
      "{}: interval {} must be at least the window {} with allocation {}, which may leave a head fewer entries",
      policy.name, interval, window, policy.allocation_name));
}

int check_decode(const Policy& policy, int budget, int wanted) {
  KV_CHECK(policy.scorer);
  const int interval = policy.scorer->interval(wanted);
  if (budget <= interval) {
    throw UserError(fmt::format("{}: budget {} must exceed the interval {}", policy.name, budget, interval));
  }
  policy.scorer->check_budget(budget, interval);
  check_interval(policy, wanted);
  check_admission(policy, interval);
  return interval;
}

std::vector<DeclaredParam> describe_policy(std::string_view name) { return describe_part<Scorer>(name); }

}  // namespace kv
