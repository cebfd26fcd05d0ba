#include "harness/ranks/rank_parts.h"

#include "harness/ranks/agreement.h"

namespace kv {

void RankParts::add_up(std::span<double> values) {
  agree(ranks_, [] {});
  ranks_.add_up(values);
}

int64_t first_text_of_rank(int64_t texts, const Ranks& ranks) { return texts * ranks.rank() / ranks.size(); }

std::vector<int> texts_of_rank(const std::vector<int>& texts, const Ranks& ranks) {
  const auto all = static_cast<int64_t>(texts.size());
  return {texts.begin() + all * ranks.rank() / ranks.size(), texts.begin() + all * (ranks.rank() + 1) / ranks.size()};
}

}  // namespace kv
