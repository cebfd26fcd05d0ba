#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "sim/budget/profile.h"

namespace kv {

// JSON, the same bytes for the same profile; ratios and losses have five decimals.
std::string format_profile(const BudgetProfile& profile);

// Throws UserError "<owner>: …" for whatever is not as format_profile writes it: syntax, a key that is missing, unknown
// or doubled, another format or version, numbers out of range, tables of another size. What "made" holds is nobody's
// business here.
BudgetProfile parse_profile(std::string_view text, std::string_view owner);

// <model folder>/profiles/<name>.json, of the scorer's name with its options as Policy::scorer_name has them, or
// kOracleOrder; another file for each: "snapkv {kernel: 7, mode: kvpress}" is snapkv_kernel=7_mode=kvpress, "oracle
// order" is oracle+order. Other characters than letters, digits, '-' and '.' are %XX.
std::filesystem::path default_profile_file(const std::filesystem::path& model_folder, std::string_view scorer);

}  // namespace kv
