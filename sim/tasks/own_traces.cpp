#include "sim/tasks/own_traces.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/io/json_members.h"
#include "sim/io/strict_json.h"

namespace kv {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "kvlab-own-traces";
constexpr int kVersion = 1;
constexpr int kMostTokens = 1 << 20;  // of a trace
constexpr size_t kLongestReason = 200;

std::string json_text(std::string_view text) { return Json(text).dump(); }

OwnRecipe parse_recipe(JsonMembers members) {
  OwnRecipe recipe;
  JsonMembers model = members.object("model");
  recipe.model = model.text("name");
  recipe.model_sha256 = model.text("sha256");
  model.finish();
  JsonMembers vocabulary = members.object("vocabulary");
  recipe.vocabulary = vocabulary.count("tokens", 1, 1 << 24);
  recipe.vocabulary_sha256 = vocabulary.text("sha256");
  vocabulary.finish();
  JsonMembers prompts = members.object("prompts");
  recipe.prompts = prompts.text("file");
  recipe.prompts_sha256 = prompts.text("sha256");
  prompts.finish();
  recipe.wording = members.text("wording");
  recipe.temperature = members.number("temperature", 0);
  recipe.top_p = members.number("top_p", 0);
  recipe.seed = members.count("seed", 0, INT32_MAX);
  recipe.tokens = members.count("tokens", 2, kMostTokens);
  recipe.turns = members.count("turns", 1, kMostTokens);
  recipe.repetition = members.number("repetition", 0);
  recipe.device = members.text("device");
  members.finish();
  return recipe;
}

// Reads the attempts of one recipe; every error begins with file and line.
class AttemptReader {
 public:
  AttemptReader(const OwnRecipe& recipe, const Json& json, const std::string& where)
      : recipe_(recipe), members_(json, where, ""), where_(where) {}

  OwnAttempt read(size_t number) {
    if (const auto stated = members_.count<int64_t>("attempt", 0, INT32_MAX); stated != static_cast<int64_t>(number)) {
      throw UserError(fmt::format("{}: attempt is {}, expected {}", where_, stated, number));
    }
    OwnAttempt attempt;
    attempt.repetition = members_.number("repetition", 0);
    attempt.written = members_.count("written", 0, recipe_.tokens);
    const Json refused = members_.take("refused");
    if (!refused.is_string()) members_.refuse("refused", refused, "a text");
    attempt.refused = refused.get<std::string>();
    const bool bears_printing = attempt.refused.size() <= kLongestReason &&
                                std::none_of(attempt.refused.begin(), attempt.refused.end(),
                                             [](char c) { return static_cast<unsigned char>(c) < ' '; });
    if (!bears_printing) members_.refuse("refused", refused, fmt::format("one line of {} bytes", kLongestReason));
    if (attempt.refused.empty()) read_trace(attempt);
    members_.finish();
    return attempt;
  }

 private:
  void read_trace(OwnAttempt& attempt) {
    const Json turns = members_.take("turns");
    if (!turns.is_array()) members_.refuse("turns", turns, "a list of pairs");
    for (const Json& turn : turns) attempt.turns.push_back(turn_of(turn));
    const Json ids = members_.take("ids");
    if (!ids.is_array()) members_.refuse("ids", ids, "a list of token ids");
    for (const Json& id : ids) attempt.ids.push_back(id_of(id, attempt.ids.size()));
    check_counts(attempt);
  }

  OwnTurn turn_of(const Json& turn) const {
    const auto is_count = [&](size_t i, int least) {
      return turn[i].is_number_integer() && turn[i] >= least && turn[i] <= recipe_.tokens;
    };
    if (!turn.is_array() || turn.size() != 2 || !is_count(0, 1) || !is_count(1, 0)) {
      members_.refuse("turns", turn, "two counts, the tokens of a prompt and of what follows it");
    }
    return {turn[0].get<int32_t>(), turn[1].get<int32_t>()};
  }

  int32_t id_of(const Json& id, size_t at) const {
    if (!id.is_number_integer() || id < 0 || id >= recipe_.vocabulary) {
      members_.refuse(fmt::format("ids[{}]", at), id, fmt::format("a token id below {}", recipe_.vocabulary));
    }
    return id.get<int32_t>();
  }

  void check_counts(const OwnAttempt& attempt) const {
    int64_t prompts = 0, written = 0;
    for (const OwnTurn& turn : attempt.turns) {
      prompts += turn.prompt;
      written += turn.written;
    }
    const auto ids = static_cast<int64_t>(attempt.ids.size());
    if (ids != recipe_.tokens || prompts + written != ids || written != attempt.written) {
      throw UserError(fmt::format("{}: {} ids, turns of {} and {} tokens, {} written; expected {} tokens in all",
                                  where_, ids, prompts, written, attempt.written, recipe_.tokens));
    }
    if (std::ssize(attempt.turns) > recipe_.turns) {
      throw UserError(fmt::format("{}: {} turns, expected at most {}", where_, attempt.turns.size(), recipe_.turns));
    }
  }

  const OwnRecipe& recipe_;
  JsonMembers members_;
  const std::string& where_;
};

void parse_head(const Json& json, const std::string& where, OwnTraces& traces) {
  JsonMembers members(json, where, "");
  if (const std::string format = members.text("format"); format != kFormat) {
    members.refuse("format", format, fmt::format("\"{}\"", kFormat));
  }
  members.count("version", kVersion, kVersion);
  traces.recipe = parse_recipe(members.object("recipe"));
  const Json origin = members.take("made");
  if (!origin.is_object()) members.refuse("made", origin, "an object");
  traces.origin = origin.dump();
  members.finish();
}

void check_end(const Json& json, const std::string& where, const OwnTraces& traces) {
  JsonMembers members(json, where, "");
  JsonMembers end = members.object("end");
  const auto attempts = end.count<int64_t>("attempts", 0, INT32_MAX);
  const auto kept = end.count<int64_t>("traces", 1, INT32_MAX);
  end.finish();
  members.finish();
  if (attempts != std::ssize(traces.attempts) || kept != std::ssize(traces.traces())) {
    throw UserError(fmt::format("{}: the end counts {} attempts and {} traces, the file holds {} and {}", where,
                                attempts, kept, traces.attempts.size(), traces.traces().size()));
  }
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == text.npos) break;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

std::vector<const OwnAttempt*> OwnTraces::traces() const {
  std::vector<const OwnAttempt*> out;
  for (const OwnAttempt& attempt : attempts) {
    if (attempt.refused.empty()) out.push_back(&attempt);
  }
  return out;
}

std::string own_head(const OwnTraces& traces) {
  const OwnRecipe& recipe = traces.recipe;
  return fmt::format(
      "{{\"format\":{},\"version\":{},\"recipe\":{{\"model\":{{\"name\":{},\"sha256\":{}}},"
      "\"vocabulary\":{{\"tokens\":{},\"sha256\":{}}},\"prompts\":{{\"file\":{},\"sha256\":{}}},\"wording\":{},"
      "\"temperature\":{},\"top_p\":{},\"seed\":{},\"tokens\":{},\"turns\":{},\"repetition\":{},\"device\":{}}},"
      "\"made\":{}}}\n",
      json_text(kFormat), kVersion, json_text(recipe.model), json_text(recipe.model_sha256), recipe.vocabulary,
      json_text(recipe.vocabulary_sha256), json_text(recipe.prompts), json_text(recipe.prompts_sha256),
      json_text(recipe.wording), recipe.temperature, recipe.top_p, recipe.seed, recipe.tokens, recipe.turns,
      recipe.repetition, json_text(recipe.device), traces.origin);
}

std::string own_line(size_t number, const OwnAttempt& attempt) {
  std::string line = fmt::format("{{\"attempt\":{},\"refused\":{},\"repetition\":{},\"written\":{}", number,
                                 json_text(attempt.refused), attempt.repetition, attempt.written);
  if (attempt.refused.empty()) {
    std::vector<std::string> turns;
    for (const OwnTurn& turn : attempt.turns) turns.push_back(fmt::format("[{},{}]", turn.prompt, turn.written));
    line += fmt::format(",\"turns\":[{}],\"ids\":[{}]", fmt::join(turns, ","), fmt::join(attempt.ids, ","));
  }
  return line + "}\n";
}

std::string format_own_traces(const OwnTraces& traces) {
  std::string text = own_head(traces);
  for (size_t number = 0; number < traces.attempts.size(); ++number) text += own_line(number, traces.attempts[number]);
  return text +
         fmt::format("{{\"end\":{{\"attempts\":{},\"traces\":{}}}}}\n", traces.attempts.size(), traces.traces().size());
}

OwnTraces parse_own_traces(std::string_view text, const std::string& owner, OwnFile file) {
  const std::vector<std::string_view> lines = lines_of(text);
  if (lines.empty()) throw UserError(fmt::format("{}: is empty, expected the head of own traces", owner));
  const bool whole = file == OwnFile::kWhole;
  if (whole && (lines.size() < 2 || text.back() != '\n')) {
    throw UserError(fmt::format("{}: ends before its last line, which counts the traces", owner));
  }
  OwnTraces traces;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}:{}", owner, i + 1);
    const Json json = parse_strict_json(lines[i], where);
    if (i == 0) {
      parse_head(json, where, traces);
    } else if (whole && i + 1 == lines.size()) {
      check_end(json, where, traces);
    } else {
      traces.attempts.push_back(AttemptReader(traces.recipe, json, where).read(i - 1));
    }
  }
  return traces;
}

Sample sample_of(const OwnAttempt& trace, int tokens) {
  KV_CHECK(trace.refused.empty() && tokens >= 2 && tokens <= std::ssize(trace.ids));
  Sample sample;
  sample.ids.assign(trace.ids.begin(), trace.ids.begin() + tokens);
  for (const OwnTurn& turn : trace.turns) {
    sample.labels.insert(sample.labels.end(), static_cast<size_t>(turn.prompt), Label::kQuestion);
    sample.labels.insert(sample.labels.end(), static_cast<size_t>(turn.written), Label::kAnswer);
  }
  sample.labels.resize(static_cast<size_t>(tokens));
  sample.context_tokens = std::min(trace.turns.front().prompt, tokens);
  return sample;
}

}  // namespace kv
