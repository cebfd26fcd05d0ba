#include "harness/ranks/rank_parts.h"

#include "harness/ranks/agreement.h"

namespace kv {

void RankParts::add_up(std::span<double> values) {
  agree(ranks_, [] {});
  ranks_.add_up(values);
}

TextRange texts_of_rank(int64_t texts, const Ranks& ranks) {
  return {.first = texts * ranks.rank() / ranks.size(), .end = texts * (ranks.rank() + 1) / ranks.size()};
}

std::vector<int> texts_of_rank(const std::vector<int>& texts, const Ranks& ranks) {
  const TextRange range = texts_of_rank(std::ssize(texts), ranks);
  return {texts.begin() + range.first, texts.begin() + range.end};
}

}  // namespace kv
