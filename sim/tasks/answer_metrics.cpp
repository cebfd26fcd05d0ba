#include "sim/tasks/answer_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/check.h"
#include "kernels/error.h"
#include "sim/tasks/text_match.h"

namespace kv {
namespace {

constexpr std::array<std::pair<AnswerMetric, std::string_view>, 6> kNames = {{
    {AnswerMetric::kExactMatch, "exact_match"},
    {AnswerMetric::kSubstringMatch, "substring_match"},
    {AnswerMetric::kSubstringMatchAny, "substring_match_any"},
    {AnswerMetric::kTokenF1, "token_f1"},
    {AnswerMetric::kRougeL, "rouge_l"},
    {AnswerMetric::kEditSimilarity, "edit_similarity"},
}};

double grade_answer(AnswerMetric metric, std::string_view prediction, std::string_view answer) {
  switch (metric) {
    case AnswerMetric::kExactMatch:
      return exact_match(prediction, answer);
    case AnswerMetric::kSubstringMatch:
    case AnswerMetric::kSubstringMatchAny:
      return contains_answer(prediction, answer);
    case AnswerMetric::kTokenF1:
      return token_f1(prediction, answer);
    case AnswerMetric::kRougeL:
      return rouge_l(prediction, answer);
    case AnswerMetric::kEditSimilarity:
      return edit_similarity(answer.find('\n') == answer.npos ? first_code_line(prediction) : prediction, answer);
  }
  KV_CHECK(false);
  return 0;
}

}  // namespace

std::string_view metric_name(AnswerMetric metric) {
  const auto* const found =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == metric; });
  KV_CHECK(found != kNames.end());
  return found->second;
}

AnswerMetric find_answer_metric(std::string_view name) {
  std::string known;
  for (const auto& [metric, spelling] : kNames) {
    if (spelling == name) return metric;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", spelling);
  }
  throw UserError(fmt::format("answer metric {} is unknown, expected one of {}", name, known));
}

double grade(AnswerMetric metric, std::string_view prediction, std::span<const std::string> answers) {
  KV_CHECK(!answers.empty());
  double sum = 0;
  double best = 0;
  for (const std::string& answer : answers) {
    const double share = grade_answer(metric, prediction, answer);
    sum += share;
    best = std::max(best, share);
  }
  return metric == AnswerMetric::kSubstringMatch ? sum / static_cast<double>(answers.size()) : best;
}

}  // namespace kv
