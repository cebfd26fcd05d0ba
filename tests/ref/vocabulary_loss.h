#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct VocabularyLoss {
  double next_token = 0;
  double divergence = 0;
};

// One token's, of its logits; target −1: no next token; without a teacher's logits no divergence.
VocabularyLoss vocabulary_loss(const std::vector<double>& student, const std::vector<double>& teacher, int32_t target);

// ∂/∂student logits of next_token_weight · next_token + divergence_weight · divergence, beside the sum of its terms'
// absolute values.
struct VocabularySlopes {
  std::vector<double> values;
  std::vector<double> magnitudes;
};
VocabularySlopes vocabulary_slopes(const std::vector<double>& student, const std::vector<double>& teacher,
                                   int32_t target, double next_token_weight, double divergence_weight);

}  // namespace kv::ref
