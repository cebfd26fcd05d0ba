#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/progress.h"
#include "harness/protocols/saved_profile.h"
#include "harness/spec/spec.h"

namespace kv {

// The protocol's name.
inline constexpr std::string_view kProfileProtocol = "profile";

struct ProfileOptions {
  std::filesystem::path out;  // folder; empty: the model's own, profiles/
  Verbosity verbosity = Verbosity::kNormal;
};

// Protocol profile: makes the budget profiles of every policy of a spec, and the one in the oracle's order, which comes
// last (002 Sec. 4.3 and App. E; sim/budget/profile.h,
// sim/budget/calibration.h). Of each sample one pass reads the context while every scorer ranks it. Each question then
// goes on by itself from a copy of the full cache, with the answer that is expected of it. The importance of a context
// entry is the largest attention that the queries which predict the answer's tokens pay to it, times ‖v W_O‖
// (sim/budget/oracle_importance.h: mean over the query heads of a KV head; a layer's total is 1). The answer's prefix
// and all of its tokens but the last are those queries; the question's own are not. Files are the same bytes for the
// same spec and model, whatever the thread count, but for what they say of the code, machine and time that made them.
// Throws UserError: another protocol, a context too long for the model or the device, --out with several models.
std::vector<SavedProfile> make_profiles(const Spec& spec, const ProfileOptions& options);

// Markdown: mean eviction loss of the calibration's questions at 50 % and 80 % under each division, and how well one
// half of them serves the other.
std::string profile_table(std::span<const SavedProfile> profiles);

}  // namespace kv
