#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "harness/failure.h"
#include "harness/ranks/ranks.h"

namespace kv {

// Collective: does what may throw on some ranks alone. Where it did, the first rank says the first message, with the
// rank where not all failed, and all throw SaidElsewhere: one line, whoever found the mistake, and the exit code that
// one by itself would have, who throws what was thrown.
void agree(Ranks& ranks, const std::function<void()>& work);
// Does what others wait for: where it fails on this rank alone, it says so and ends all.
void end_all_where_it_fails(Ranks& ranks, const std::function<void()>& work);
// UserError, as agree() has it, where a launcher has started several: `command` is none that they share.
void require_alone(const std::string& command);
// Collective: UserError, as agree() has it, where ranks differ in it: "<what> differ: ...".
void require_same(Ranks& ranks, const std::string& what, const std::string& mine);
// Collective: UserError where a rank does not see what the first one writes to that folder, which is there for it.
void require_shared(Ranks& ranks, const std::filesystem::path& folder);

}  // namespace kv
