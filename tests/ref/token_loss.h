#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct Loss {
  double nll = 0;
  double entropy = 0;
  int32_t argmax = 0;
};

// The loss of one row of logits; target −1: no next token.
Loss token_loss(const std::vector<double>& logits, int32_t target);

}  // namespace kv::ref
