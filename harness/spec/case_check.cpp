#include "harness/spec/case_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/protocols/protocol.h"
#include "harness/spec/places.h"
#include "kernels/error.h"

namespace kv {

std::string CaseCheck::where_of(std::initializer_list<std::string_view> axes) const {
  for (const GivenParam& param : point) {
    if (std::find(axes.begin(), axes.end(), param.key) != axes.end()) return param.where;
  }
  return component().where;
}

std::string CaseCheck::where_of_oracle() const {
  return scorer_needs(policy).future ? component().where : where_of({kAllocationAxis});
}

std::string CaseCheck::wish_of_oracle() const {
  if (scorer_needs(policy).future) return "the future";
  return fmt::format("the future (allocation '{}' divides each input by it)", policy.allocation_name);
}

void CaseCheck::refuse(std::string_view what, const std::string& where) const {
  throw UserError(fmt::format("{}: policy '{}' under protocol {} {}", where.empty() ? component().where : where,
                              component().label, spec.protocol->name, what));
}

int CaseCheck::check_pruning(int budget, int interval) const {
  at(where_of({"interval"}), [&] { check_interval(policy, interval); });
  return at(where_of({"budget", "keep"}), [&] { return check_decode(policy, budget, interval); });
}

}  // namespace kv
