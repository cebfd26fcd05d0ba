#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/policy/admission.h"
#include "sim/policy/allocation.h"
#include "sim/policy/scorer.h"
#include "sim/policy/selection.h"

namespace kv {

// One of a policy's slots as it is filled.
struct PolicySlot {
  std::string_view kind;  // "scorer", "allocation", "admission", "selection"
  const std::string& name;
  Slot& slot;
};

// A policy is its slots. `full` has no scorer and never evicts; the other slots always hold something.
struct Policy {
  std::string name;
  std::string scorer_name;  // the policy's name with its options that differ from their defaults, as profiles quote it
  std::unique_ptr<Scorer> scorer;
  std::string allocation_name = "uniform";
  std::unique_ptr<Allocation> allocation;
  std::string admission_name = "none";
  std::unique_ptr<Admission> admission;
  std::string selection_name = "all";
  std::unique_ptr<Selection> selection;

  std::vector<PolicySlot> slots() const;  // the scorer, if any, first
  // Whether a slot looks into the future.
  bool oracle() const;
  // Which slot of an oracle needs the future, for complaints; the first of several.
  const std::string& oracle_name() const;
  // What the full-cache pass must keep for all of them.
  BaselineNeeds future_needs() const;
  // Slot::check and Slot::load of every slot.
  std::vector<InputFile> check(const ModelIdentity& model) const;
  void load(std::span<const InputFile> files);
  // Of all slots.
  size_t learned_bytes(const SourceInfo& info, DType activations) const;
};

// What the scorer wants prepared; nothing without one.
Needs scorer_needs(const Policy& policy);

// A slot's filling by name. `where` is that of the name, as an option's (GivenParam).
struct SlotChoice {
  std::string name;
  std::vector<GivenParam> options{};
  std::string where{};
};

// The slots beside the scorer.
struct SlotChoices {
  SlotChoice allocation{"uniform"};
  SlotChoice admission{"none"};
  SlotChoice selection{"all"};

  // Whether every query sees all that the policy has not evicted.
  bool show_all() const { return admission.name == "none" && selection.name == "all"; }
};

// Sorted by name.
std::vector<const PolicyEntry*> policies();

// UserError where its scorer judges by the newest queries of more tokens than the admission's window has: when it
// looks, the window may be all that a head holds.
void check_admission(const Policy& policy, int interval);

// Throws UserError when the policy cannot prune to `budget` every `interval` tokens: B <= L for any policy (the newest
// L are the block itself), what its scorer refuses, or an interval below the scorer's window where the allocation may
// leave a head fewer entries than that. Returns the interval that it really runs at.
int check_decode(const Policy& policy, int budget, int interval);
// The part of it that is about the interval alone.
void check_interval(const Policy& policy, int interval);

// A policy of a scorer made elsewhere (null: never evicts), with the uniform allocation.
Policy policy_of(const std::string& name, std::unique_ptr<Scorer> scorer);

// Throws UserError: unknown name (lists the known ones), unknown or ill-typed option, an allocation other than uniform
// for a policy that never evicts.
Policy make_policy(std::string_view name, std::vector<GivenParam> options, SlotChoices others = {});
std::vector<DeclaredParam> describe_policy(std::string_view name);

}  // namespace kv
