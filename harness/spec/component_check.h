#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/spec/spec.h"

namespace kv {

// UserError at the name's place, which lists the known ones.
void check_name(const Located& name, std::string_view kind, const std::vector<std::string>& known);

// Whether everything that an entry of a spec's policies or metrics names is there: itself, what fills its slots, and
// the options of all of them. Of these it looks at the names alone, so that the first complaint about a misspelt key is
// about that key. UserError where one is not.
void check_policy_names(const Component& policy);
void check_metric_names(const Component& metric);

// UserError where two have one label, since rows could not tell them apart. A misspelt slot looks like that, too, so
// names are checked before.
void check_labels(const std::vector<Component>& components, std::string_view kind);

}  // namespace kv
