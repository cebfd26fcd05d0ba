#include "sim/model/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kv {
namespace {

struct Range {
  size_t begin;
  size_t end;
  bool delimiter;
};

// The whole text as alternating gaps and matches; gaps are never empty.
std::vector<Range> find_ranges(Matcher& matcher, std::string_view text, MatchRole role) {
  const bool match_delimits = role == MatchRole::kDelimiter;
  std::vector<Range> ranges;
  size_t last = 0;
  matcher.find_all(text, [&](size_t begin, size_t end) {
    if (begin > last) ranges.push_back({last, begin, !match_delimits});
    ranges.push_back({begin, end, match_delimits});
    last = end;
  });
  if (last < text.size()) ranges.push_back({last, text.size(), !match_delimits});
  return ranges;
}

// Joins a range to the one before it wherever joins(before, range) holds for their original kinds.
template <typename Joins>
std::vector<Range> joined(const std::vector<Range>& ranges, Joins joins) {
  std::vector<Range> result;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && joins(ranges[i - 1], ranges[i])) {
      result.back().end = ranges[i].end;
    } else {
      result.push_back(ranges[i]);
    }
  }
  return result;
}

std::vector<Range> behave(std::vector<Range> ranges, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return ranges;
    case SplitBehavior::kRemoved:
      std::erase_if(ranges, [](const Range& range) { return range.delimiter; });
      return ranges;
    case SplitBehavior::kContiguous:
      return joined(ranges, [](const Range& a, const Range& b) { return a.delimiter == b.delimiter; });
    case SplitBehavior::kMergedWithPrevious:
      return joined(ranges, [](const Range& a, const Range& b) { return b.delimiter && !a.delimiter; });
    case SplitBehavior::kMergedWithNext:
      return joined(ranges, [](const Range& a, const Range& b) { return a.delimiter && !b.delimiter; });
  }
  return ranges;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<SplitDefinition>& splits, std::string_view owner) {
  for (const SplitDefinition& split : splits)
    steps_.push_back({Regex(split.pattern, split.kind, fmt::format("tokenizer {}: pre-tokenizer", owner)), split});
}

PreTokenizer::Scratch::Scratch(const PreTokenizer& splitter) {
  for (const Step& step : splitter.steps_) matchers_.emplace_back(step.regex);
}

std::vector<std::string> PreTokenizer::pieces(std::string_view text, Scratch& scratch) const {
  std::vector<std::string> current;
  if (!text.empty()) current.emplace_back(text);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SplitDefinition& split = steps_[i].split;
    std::vector<std::string> next;
    next.reserve(text.size() / 4);
    for (std::string& piece : current) {
      if (split.prefix == PrefixSpace::kAdded && piece.front() != ' ') piece.insert(piece.begin(), ' ');
      if (split.pattern.empty()) {
        next.push_back(std::move(piece));
        continue;
      }
      for (const Range& range : behave(find_ranges(scratch.matchers_[i], piece, split.role), split.behavior))
        if (range.end > range.begin) next.push_back(piece.substr(range.begin, range.end - range.begin));
    }
    current = std::move(next);
  }
  return current;
}

}  // namespace kv
