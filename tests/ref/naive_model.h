#pragma once

#include <cstdint>
#include <vector>

#include "sim/model/weights.h"

namespace kv::ref {

// What a run keeps in memory between its operations: exact numbers, or bf16 as a GPU's run does (weights, each result
// of a norm, product, rotation or activation, the residual, the attention weights that multiply the values).
enum class Stored : uint8_t { kExact, kBf16 };

struct NaiveScores {
  std::vector<double> nll;          // [T − 1] of the next token, nats
  std::vector<double> logits_tail;  // [tail, vocab] after the last `tail` tokens
};

// A decoder from the definitions of its parts, in double, whole tensors at a time: no cache, no blocks, and of the
// project's code only what reads config, weights and frequencies. Slow: for tiny models.
NaiveScores naive_scores(const Weights& weights, const std::vector<int32_t>& ids, int tail, Stored stored);

}  // namespace kv::ref
