#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/policy/baseline.h"
#include "sim/policy/policy.h"
#include "sim/tasks/task.h"

namespace kv {

// One policy at one point of the axes.
struct Case {
  int policy = 0;                     // index into Spec::policies
  std::vector<GivenParam> options{};  // of the policy, those that axes set included
  SlotChoices slots{};
  std::vector<InputFile> files{};      // that it was found to read when the grid was made (Protocol::files)
  std::vector<std::string> axes{};     // one a Spec::axis_columns(); empty where the axis does not apply
  std::vector<GivenParam> settings{};  // what the protocol's own axes set, where they apply
  BaselineNeeds needs{};               // what the full-cache pass must keep for it: policy, protocol and metrics

  // Settings by name: 0 or an empty text where no axis sets it.
  int count(std::string_view axis) const;
  double fraction(std::string_view axis) const;
  std::string_view word(std::string_view axis) const;
};

// What shares full-cache passes: one model, one data entry, one point of the axes that change the data.
struct Workload {
  int model = 0;   // index into Spec::models; 0 for traces
  int data = -1;   // index into Spec::data; −1 where the spec has none
  int tokens = 0;  // 0: the whole file
  int samples = 1;
  TaskOptions options{};
  std::vector<Case> cases{};
};

}  // namespace kv
