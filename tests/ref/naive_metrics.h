#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

// Full-cache probabilities of one query head: [query][key], rows of query + 1 values.
using Probabilities = std::vector<std::vector<double>>;

// Query head `head` of queries [tokens, q_heads, dim] over keys [tokens, kv_heads, dim].
Probabilities probabilities(const std::vector<float>& queries, const std::vector<float>& keys, int tokens, int q_heads,
                            int kv_heads, int dim, int head);

// max over the queries from `first_query` on (the first `queries` of them; 0: all), for keys [0, first_query).
std::vector<double> future_max(const Probabilities& a, int first_query, int queries = 0);

// Share of Σ importance over `candidates` that the `kept` of them (indices) hold, and that the best set of their size
// would.
struct Shares {
  double total = 0;
  double kept = 0;
  double best = 0;
  double hits = 0;             // of the kept ones
  double missed = 0;           // Σ over those of the best set that are not kept
  double false_positives = 0;  // Σ over the kept that are not in it
};
Shares shares(const std::vector<double>& importance, const std::vector<int32_t>& candidates,
              const std::vector<int32_t>& kept);

// S(delta) of 003 Fig. 2 with top_k (> 0) or mass; equal probabilities to the newer key.
double survival(const Probabilities& a, int top_k, double mass, int delta);

}  // namespace kv::ref
