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
    {AnswerMetric::exact_match, "exact_match"},
    {AnswerMetric::substring_match, "substring_match"},
    {AnswerMetric::substring_match_any, "substring_match_any"},
    {AnswerMetric::token_f1, "token_f1"},
    {AnswerMetric::rouge_l, "rouge_l"},
    {AnswerMetric::edit_similarity, "edit_similarity"},
}};

double grade_one(AnswerMetric metric, std::string_view prediction, std::string_view answer) {
  switch (metric) {
    case AnswerMetric::exact_match:
      return exact_match(prediction, answer);
    case AnswerMetric::substring_match:
    case AnswerMetric::substring_match_any:
      return contains_answer(prediction, answer);
    case AnswerMetric::token_f1:
      return token_f1(prediction, answer);
    case AnswerMetric::rouge_l:
      return rouge_l(prediction, answer);
    case AnswerMetric::edit_similarity:
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
  for (const auto& [metric, each] : kNames) {
    if (each == name) return metric;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each);
  }
  throw UserError(fmt::format("answer metric {} is unknown, expected one of {}", name, known));
}

double grade(AnswerMetric metric, std::string_view prediction, std::span<const std::string> answers) {
  KV_CHECK(!answers.empty());
  double sum = 0;
  double best = 0;
  for (const std::string& answer : answers) {
    const double one = grade_one(metric, prediction, answer);
    sum += one;
    best = std::max(best, one);
  }
  return metric == AnswerMetric::substring_match ? sum / static_cast<double>(answers.size()) : best;
}

}  // namespace kv
