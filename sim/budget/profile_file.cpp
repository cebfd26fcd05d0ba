#include "sim/budget/profile_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/io/json_members.h"
#include "sim/io/strict_json.h"
#include "sim/policy/largest_count.h"

namespace kv {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "kvlab-budget-profile";
constexpr int kVersion = 1;
constexpr int64_t kMostHeads = 1 << 16;

std::string json_text(std::string_view text) { return Json(text).dump(); }

std::string list_of(std::span<const double> numbers) { return fmt::format("[{:.5f}]", fmt::join(numbers, ", ")); }

Calibration parse_calibration(JsonMembers members) {
  Calibration out;
  const Json data = members.take("data");
  const bool texts =
      data.is_array() && std::all_of(data.begin(), data.end(), [](const Json& d) { return d.is_string(); });
  if (!texts || data.empty()) members.refuse(members.path("data"), data, "a list of texts");
  out.data = data.get<std::vector<std::string>>();
  out.samples = members.count("samples", 1, 1 << 20);
  out.questions = members.count("questions", 1, kLargestCount);
  out.tokens = members.count<int64_t>("tokens", 1, int64_t{1} << 32);
  out.seed = members.count<uint64_t>("seed", 0, UINT64_MAX);
  members.finish();
  return out;
}

ProfileLosses parse_losses(JsonMembers members) {
  ProfileLosses out{.uniform = members.numbers("uniform", kProfileRatios),
                    .profile = members.numbers("profile", kProfileRatios),
                    .greedy = members.numbers("greedy", kProfileRatios),
                    .bound = members.numbers("bound", kProfileRatios)};
  members.finish();
  return out;
}

// One percent's list of all heads.
void parse_row(const JsonMembers& members, const Json& row, const std::string& where, BudgetProfile& profile) {
  if (!row.is_array() || row.size() != profile.heads()) {
    members.refuse(where, row, fmt::format("a list of {} numbers, one a layer and KV head", profile.heads()));
  }
  for (const Json& ratio_json : row) {
    // In floats, too: 0.99999999999 would be 1.
    const double ratio = ratio_json.is_number() ? ratio_json.get<double>() : -1;
    if (!(ratio >= 0 && static_cast<float>(ratio) < 1))
      members.refuse(where, ratio_json, "a number of at least 0 and below 1");
    profile.removed.push_back(static_cast<float>(ratio));
  }
}

void parse_ratios(JsonMembers& members, BudgetProfile& profile) {
  const Json rows = members.take("removed");
  if (!rows.is_array() || rows.size() != kProfileRatios) {
    members.refuse("removed", rows, "a list of 99 lists, one a percent removed");
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    parse_row(members, rows[i], fmt::format("removed[{}]", i), profile);
  }
}

}  // namespace

std::string format_profile(const BudgetProfile& profile) {
  KV_CHECK(profile.removed.size() == kProfileRatios * profile.heads());
  const Calibration& calibration = profile.calibration;
  std::vector<std::string> data;
  for (const std::string& entry : calibration.data) data.push_back(json_text(entry));
  std::string text = fmt::format("{{\n\"format\": {},\n\"version\": {},\n", json_text(kFormat), kVersion);
  text += fmt::format("\"model\": {{\"name\": {}, \"sha256\": {}}},\n", json_text(profile.model),
                      json_text(profile.fingerprint));
  text += fmt::format("\"scorer\": {},\n\"protection\": {{\"sinks\": {}, \"recent\": {}}},\n",
                      json_text(profile.scorer), profile.protection.sinks, profile.protection.recent);
  text += fmt::format(
      "\"calibration\": {{\"data\": [{}], \"samples\": {}, \"questions\": {}, \"tokens\": {}, \"seed\": {}}},\n",
      fmt::join(data, ", "), calibration.samples, calibration.questions, calibration.tokens, calibration.seed);
  if (!profile.origin.empty()) text += fmt::format("\"made\": {},\n", profile.origin);
  text += fmt::format("\"losses\": {{\n\"uniform\": {},\n\"profile\": {},\n\"greedy\": {},\n\"bound\": {}}},\n",
                      list_of(profile.losses.uniform), list_of(profile.losses.profile), list_of(profile.losses.greedy),
                      list_of(profile.losses.bound));
  if (profile.split_half) {
    text += fmt::format("\"split_half\": {{\"0.5\": {:.5f}, \"0.8\": {:.5f}}},\n", profile.split_half->half,
                        profile.split_half->four_fifths);
  }
  text += fmt::format("\"layers\": {},\n\"kv_heads\": {},\n\"removed\": [", profile.layers, profile.kv_heads);
  for (size_t i = 0; i < kProfileRatios; ++i) {
    const auto row = std::span(profile.removed).subspan(i * profile.heads(), profile.heads());
    text += fmt::format("{}\n[{:.5f}]", i == 0 ? "" : ",", fmt::join(row, ", "));
  }
  return text + "\n]\n}\n";
}

BudgetProfile parse_profile(std::string_view text, std::string_view owner) {
  const Json json = parse_strict_json(text, owner);
  JsonMembers members(json, owner, "");
  if (const std::string format = members.text("format"); format != kFormat) {
    members.refuse("format", format, fmt::format("\"{}\"", kFormat));
  }
  members.count("version", kVersion, kVersion);
  BudgetProfile profile;
  JsonMembers model = members.object("model");
  profile.model = model.text("name");
  profile.fingerprint = model.text("sha256");
  model.finish();
  profile.scorer = members.text("scorer");
  JsonMembers protection = members.object("protection");
  profile.protection = {protection.count("sinks", 0, kLargestCount), protection.count("recent", 0, kLargestCount)};
  protection.finish();
  profile.calibration = parse_calibration(members.object("calibration"));
  if (json.contains("made")) {
    const Json origin = members.take("made");
    if (!origin.is_object()) members.refuse("made", origin, "an object");
    profile.origin = origin.dump();
  }
  profile.losses = parse_losses(members.object("losses"));
  if (json.contains("split_half")) {
    JsonMembers halves = members.object("split_half");
    profile.split_half = SplitHalf{.half = halves.number("0.5", 0), .four_fifths = halves.number("0.8", 0)};
    halves.finish();
  }
  profile.layers = members.count("layers", 1, 1 << 12);
  profile.kv_heads = members.count("kv_heads", 1, 1 << 12);
  if (int64_t{profile.layers} * profile.kv_heads > kMostHeads) {
    throw UserError(fmt::format("{}: {} layers of {} KV heads, expected at most {} in all", owner, profile.layers,
                                profile.kv_heads, kMostHeads));
  }
  parse_ratios(members, profile);
  members.finish();
  return profile;
}

std::filesystem::path default_profile_file(const std::filesystem::path& model_folder, std::string_view scorer) {
  // In "snapkv {kernel: 7, mode: kvpress}": what stands between name, keys and values.
  constexpr std::pair<std::string_view, char> kBetween[] = {{" {", '_'}, {", ", '_'}, {": ", '='}};
  std::string name;
  if (scorer.ends_with('}')) scorer.remove_suffix(1);
  while (!scorer.empty()) {
    const auto between = std::find_if(std::begin(kBetween), std::end(kBetween),
                                      [&](const auto& known) { return scorer.starts_with(known.first); });
    if (between != std::end(kBetween)) {
      name += between->second;
      scorer.remove_prefix(between->first.size());
      continue;
    }
    const char c = scorer.front();
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
    name += plain ? std::string(1, c) : c == ' ' ? "+" : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    scorer.remove_prefix(1);
  }
  return model_folder / "profiles" / (name + ".json");
}

}  // namespace kv
