#include "sim/tasks/draw_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "sim/model/tokenizer/tokenizer.h"

namespace kv {
namespace {

// Where each token's bytes begin in the text, and its end.
std::vector<size_t> token_offsets(const std::vector<int32_t>& ids, std::string_view text, const Tokenizer& tokenizer) {
  std::vector<size_t> offsets = {0};
  for (const int32_t id : ids) {
    const std::string_view bytes = tokenizer.decode_token(id);
    if (text.substr(offsets.back(), bytes.size()) != bytes)
      throw UserError(
          fmt::format("the tokenizer rewrites the text at byte {}, so its labels cannot be placed", offsets.back()));
    offsets.push_back(offsets.back() + bytes.size());
  }
  if (offsets.back() != text.size())
    throw UserError(fmt::format("the tokenizer keeps {} of {} bytes of the text, so its labels cannot be placed",
                                offsets.back(), text.size()));
  return offsets;
}

// Tokens of the sample that overlap bytes [begin, end); the first token of the sample stands before the text.
std::pair<int32_t, int32_t> tokens_of(const std::vector<size_t>& offsets, size_t begin, size_t end) {
  const auto first = std::upper_bound(offsets.begin(), offsets.end(), begin) - 1;
  const auto last = std::lower_bound(first, offsets.end(), end);
  return {1 + static_cast<int32_t>(first - offsets.begin()), 1 + static_cast<int32_t>(last - offsets.begin())};
}

std::vector<Label> labels_of(const std::vector<Span>& spans, const std::vector<size_t>& offsets) {
  std::vector<Label> labels(offsets.size(), Label::kContext);
  for (const Span& span : spans) {
    const auto [begin, end] = tokens_of(offsets, span.begin, span.end);
    for (int32_t t = begin; t < end; ++t) {
      Label& label = labels[static_cast<size_t>(t)];
      label = std::max(label, span.label);
    }
  }
  return labels;
}

std::vector<Link> links_of(const std::vector<UsefulLink>& links, const std::vector<size_t>& offsets) {
  std::vector<Link> result;
  for (const UsefulLink& link : links) {
    const auto [begin, end] = tokens_of(offsets, link.query_begin, link.query_end);
    // The token at position t is predicted, and its sources are needed, while the one before it is read.
    Link tokens{begin - 1, end - 1, {}};
    for (const auto& [source_begin, source_end] : link.sources)
      tokens.sources.push_back(tokens_of(offsets, source_begin, source_end));
    result.push_back(std::move(tokens));
  }
  return result;
}

int32_t count_context(const std::vector<Label>& labels) {
  return static_cast<int32_t>(std::find(labels.begin(), labels.end(), Label::kQuestion) - labels.begin());
}

void cut(Sample& sample, int tokens) {
  sample.ids.resize(static_cast<size_t>(tokens));
  sample.labels.resize(static_cast<size_t>(tokens));
  std::erase_if(sample.links, [&](const Link& link) { return link.query_begin >= tokens; });
  for (Link& link : sample.links) link.query_end = std::min(link.query_end, tokens);
  sample.context_tokens = std::min(sample.context_tokens, tokens);
}

void check_options(const Task& task, const TaskOptions& options) {
  const auto check = [&](std::string_view name, bool given) {
    if (!given || std::count(task.options.begin(), task.options.end(), name)) return;
    throw UserError(
        fmt::format("task {} has no option {}, expected {}", task.name, name,
                    task.options.empty() ? "none" : fmt::format("one of {}", fmt::join(task.options, ", "))));
  };
  check("needles", options.needles.has_value());
  check("values", options.values.has_value());
  check("questions", options.questions.has_value());
  check("distractors", options.distractors.has_value());
  check("depth", options.depth.has_value());
  check("chains", options.chains.has_value());
  check("hops", options.hops.has_value());
  check("hay", options.hay.has_value());
  check("wording", options.wording.has_value());
  check("definitions", options.definitions.has_value());
}

// One request, drawn as often as it takes. Every attempt is a function of the seed, the index and its number alone.
class Attempts {
 public:
  Attempts(const Task& task, const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data)
      : task_(task),
        request_(request),
        tokenizer_(tokenizer),
        data_(data),
        first_token_(first_token_of(request.first_token, tokenizer)) {}

  // Longer and longer until there is enough to cut. The same numbers are drawn each time: to draw others until one is
  // long enough would favour text of short tokens.
  DrawnTask exact() const {
    constexpr int kMost = 30;
    double chars = request_.tokens * task_.chars_per_token;
    int longest = 0;
    for (int attempt = 0; attempt < kMost; ++attempt, chars *= 1.05) {
      DrawnTask drawn = draw(chars, 0);
      longest = std::max(longest, length(drawn));
      if (length(drawn) < request_.tokens) continue;
      cut(drawn.sample, request_.tokens);
      return drawn;
    }
    throw UserError(fmt::format("{} tokens are asked for, but its text gives at most {}", request_.tokens, longest));
  }

  // The first draw is redone with more or less hay until it nearly fills the length; where even no hay leaves no room
  // for what is asked, something else is drawn.
  DrawnTask at_most() const {
    constexpr int kMost = 16;
    int shortest = 0;
    for (int attempt = 0; attempt < kMost; ++attempt) {
      DrawnTask best = nearly_full(attempt);
      if (length(best) <= request_.tokens) return best;
      shortest = attempt == 0 ? length(best) : std::min(shortest, length(best));
    }
    throw UserError(fmt::format("{} tokens are asked for, expected at least {}", request_.tokens, shortest));
  }

 private:
  static int length(const DrawnTask& drawn) { return static_cast<int>(drawn.sample.ids.size()); }

  DrawnTask draw(double chars, int attempt) const {
    Random random(request_.seed, request_.index << 8 | static_cast<uint64_t>(attempt));
    TaskText text = task_.draw({.chars = static_cast<size_t>(std::max(0.0, chars)),
                                .random = random,
                                .options = request_.options,
                                .data = data_});
    Sample sample = tokenize_task(text, first_token_, tokenizer_);
    return {std::move(text), std::move(sample)};
  }

  struct Point {
    double chars;
    int tokens;
  };

  bool fits(int tokens) const { return tokens <= request_.tokens; }

  // The longest that fits is best, or the shortest where none does.
  bool is_better(int tokens, int best) const {
    return fits(tokens) ? !fits(best) || tokens > best : !fits(best) && tokens < best;
  }

  // Searches the amount of hay between what fits and what exceeds: by their tokens, but halfway where that came no
  // nearer. Hay comes in pieces, and a larger one may replace a smaller, so tokens jump, and not always upwards: what
  // is drawn narrows the search even if it is no better, or the next draw would be the same again.
  DrawnTask nearly_full(int attempt) const {
    constexpr int kSteps = 10;
    const double goal = 0.985 * request_.tokens;
    std::optional<Point> fitting;
    std::optional<Point> exceeding;
    DrawnTask best;
    double chars = 0.9 * request_.tokens * task_.chars_per_token;
    for (int step = 0; step < kSteps; ++step) {
      DrawnTask drawn = draw(chars, attempt);
      const Point point{chars, length(drawn)};
      auto& bound = fits(point.tokens) ? fitting : exceeding;
      const bool nearer = !bound || std::abs(point.tokens - goal) < std::abs(bound->tokens - goal);
      if (nearer || (fitting && exceeding)) bound = point;
      if (step == 0 || is_better(point.tokens, length(best))) best = std::move(drawn);
      if (length(best) >= 0.97 * request_.tokens && fits(length(best))) break;
      if (!fits(point.tokens) && chars <= 0) break;
      if (!fitting || !exceeding) {
        chars = std::max(0.0, chars + (goal - point.tokens) * task_.chars_per_token);
        continue;
      }
      const double share =
          nearer ? (goal - fitting->tokens) / static_cast<double>(exceeding->tokens - fitting->tokens) : 0.5;
      chars = fitting->chars + share * (exceeding->chars - fitting->chars);
    }
    return best;
  }

  const Task& task_;
  const TaskRequest& request_;
  const Tokenizer& tokenizer_;
  const TextData& data_;
  int32_t first_token_;
};

}  // namespace

Sample tokenize_task(const TaskText& text, int32_t first_token, const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode(text.text);
  const auto offsets = token_offsets(ids, text.text, tokenizer);
  Sample sample;
  sample.ids.push_back(first_token);
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  sample.labels = labels_of(text.spans, offsets);
  sample.links = links_of(text.links, offsets);
  sample.context_tokens = count_context(sample.labels);
  sample.document = text.document;
  return sample;
}

int32_t first_token_of(std::optional<int32_t> given, const Tokenizer& tokenizer) {
  if (given) return *given;
  if (const auto id = tokenizer.token_id("<|endoftext|>")) return *id;
  throw UserError("the tokenizer has no <|endoftext|>, expected the id of the first token");
}

DrawnTask draw_task(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data) {
  const Task& task = find_task(request.task);
  check_options(task, request.options);
  const Length length = request.length.value_or(task.fit == Fit::kCut ? Length::kExact : Length::kAtMost);
  if (length == Length::kExact && task.fit != Fit::kCut)
    throw UserError(fmt::format("task {} cannot be cut to an exact length, expected at_most", task.name));
  if (request.tokens < 2 || request.tokens > kMostTaskTokens)
    throw UserError(fmt::format("task {}: tokens is {}, expected 2 to {}", task.name, request.tokens, kMostTaskTokens));
  try {
    const Attempts attempts(task, request, tokenizer, data);
    DrawnTask drawn = length == Length::kExact ? attempts.exact() : attempts.at_most();
    drawn.sample.name = fmt::format("{}-{}", task.name, request.index);
    return drawn;
  } catch (const UserError& error) {
    throw UserError(fmt::format("task {}: {}", task.name, error.what()));
  }
}

Sample make_sample(const TaskRequest& request, const Tokenizer& tokenizer, const TextData& data) {
  return draw_task(request, tokenizer, data).sample;
}

}  // namespace kv
