#include "tests/ref/vocabulary_loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kv::ref {

namespace {

std::vector<double> log_probabilities(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  std::vector<double> result;
  for (const double logit : logits) result.push_back(logit - top - std::log(sum));
  return result;
}

}  // namespace

VocabularyLoss vocabulary_loss(const std::vector<double>& student, const std::vector<double>& teacher, int32_t target) {
  const std::vector<double> log_q = log_probabilities(student);
  VocabularyLoss loss;
  if (target >= 0) loss.next_token = -log_q[static_cast<size_t>(target)];
  if (teacher.empty()) return loss;
  const std::vector<double> log_p = log_probabilities(teacher);
  for (size_t v = 0; v < log_q.size(); ++v) loss.divergence += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
  return loss;
}

VocabularySlopes vocabulary_slopes(const std::vector<double>& student, const std::vector<double>& teacher,
                                   int32_t target, double next_token_weight, double divergence_weight) {
  VocabularySlopes slopes{.values = std::vector<double>(student.size(), 0.0),
                          .magnitudes = std::vector<double>(student.size(), 0.0)};
  const auto add = [&](size_t v, double term) {
    slopes.values[v] += term;
    slopes.magnitudes[v] += std::abs(term);
  };
  const std::vector<double> log_q = log_probabilities(student);
  for (size_t v = 0; target >= 0 && v < student.size(); ++v) {
    add(v, next_token_weight * std::exp(log_q[v]));
    if (v == static_cast<size_t>(target)) add(v, -next_token_weight);
  }
  if (teacher.empty()) return slopes;
  const std::vector<double> log_p = log_probabilities(teacher);
  for (size_t v = 0; v < student.size(); ++v) {
    add(v, divergence_weight * std::exp(log_q[v]));
    add(v, -divergence_weight * std::exp(log_p[v]));
  }
  return slopes;
}

}  // namespace kv::ref
