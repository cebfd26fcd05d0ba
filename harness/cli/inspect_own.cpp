#include "harness/cli/inspect_own.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/notice.h"
#include "sim/io/regular_file.h"
#include "sim/io/strict_json.h"
#include "sim/io/xz.h"
#include "sim/tasks/own_traces.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// The file may call things what it likes; a terminal gets no control characters.
void print_line(std::string_view label, const std::string& text) { fmt::print("{:<11} {}\n", label, one_line(text)); }

// "3", or "3 to 5"; `values` is not empty.
template <class Number>
std::string range_text(const std::vector<Number>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low == *high ? fmt::format("{}", *low) : fmt::format("{} to {}", *low, *high);
}

void print_traces(const OwnTraces& own) {
  std::vector<int> written;
  std::vector<size_t> turns;
  std::vector<double> repetition;
  for (const OwnAttempt* trace : own.traces()) {
    written.push_back(trace->written);
    turns.push_back(trace->turns.size());
    repetition.push_back(std::round(trace->repetition * 1e3) / 1e3);
  }
  print_line("traces", fmt::format("{} of {} attempts", written.size(), own.attempts.size()));
  print_line("lengths", fmt::format("{} tokens, {} of them written", own.recipe.tokens, range_text(written)));
  print_line("turns", fmt::format("{}, at most {}", range_text(turns), own.recipe.turns));
  print_line("repetition", fmt::format("{}, at most {}", range_text(repetition), own.recipe.repetition));
}

// How many attempts are no traces, by the reason without its numbers.
void print_refused(const OwnTraces& own) {
  std::map<std::string, int> counts;
  for (const OwnAttempt& attempt : own.attempts) {
    if (!attempt.refused.empty()) ++counts[attempt.refused.substr(0, attempt.refused.find(':'))];
  }
  for (const auto& [reason, count] : counts) print_line("no trace", fmt::format("{}: {}", count, reason));
}

// Of the JSON object that says what wrote the traces.
std::string fact(const nlohmann::json& origin, const char* key) {
  const auto found = origin.find(key);
  return found == origin.end() ? "unknown" : found->is_string() ? found->get<std::string>() : shown_json(*found);
}

}  // namespace

bool is_own_traces(const fs::path& path) { return path.extension() == ".xz" && path.stem().extension() == ".jsonl"; }

void inspect_own_traces(const fs::path& file) {
  const OwnTraces own = parse_own_traces(unxz(RegularFile(file).read(), file.string()), file.string());
  const OwnRecipe& recipe = own.recipe;
  const auto origin = nlohmann::json::parse(own.origin);
  print_traces(own);
  print_refused(own);
  print_line("model",
             fmt::format("{}, SHA-256 {}, vocabulary {}", recipe.model, recipe.model_sha256, recipe.vocabulary));
  print_line("prompts",
             fmt::format("{}, SHA-256 {}, wording {}", recipe.prompts, recipe.prompts_sha256, recipe.wording));
  print_line("drawn", fmt::format("temperature {}, top_p {}, seed {}, on {}", recipe.temperature, recipe.top_p,
                                  recipe.seed, recipe.device));
  print_line("commit",
             fmt::format("{}, changes {}, {}", fact(origin, "commit"), fact(origin, "changes"), fact(origin, "date")));
}

}  // namespace kv
