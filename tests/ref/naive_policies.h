#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace kv::ref {

// One layer of one sequence, packed as sources pack it: [tokens, heads, dim].
struct NaiveLayer {
  int q_heads = 0;
  int kv_heads = 0;
  int dim = 0;
  std::vector<float> queries;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> pre_rope_queries;
  std::vector<float> inv_freq;

  int group() const { return q_heads / kv_heads; }
  int tokens() const { return static_cast<int>(queries.size()) / (q_heads * dim); }
  double logit(int query, int q_head, int key) const;
  // Attention of one query over the keys at `visible`.
  std::vector<double> attention(int query, int q_head, const std::vector<int32_t>& visible) const;
};

// One KV head at an event. All indices are positions.
struct NaiveState {
  const NaiveLayer& layer;
  int head = 0;
  int seen = 0;                                // tokens processed
  std::vector<int32_t> resident;               // ascending
  std::vector<std::vector<double>> attention;  // [group][position]: received from every query so far
  std::vector<std::vector<double>> given;      // [query · group + g][position]: by each query, when it came
};

// Scores for each of state.resident, higher stays; second keys, or empty.
struct NaiveScores {
  std::vector<double> scores;
  std::vector<double> ties;
};

// The policies of policies/, written from their formulas with loops over scalars in double precision; nothing is shared
// with kernels/ but the definitions.
struct NaivePolicy {
  std::function<NaiveScores(const NaiveState&)> score;
  int sinks = 0;
  int recent = 0;
};

struct NaiveStep {
  int count = 0;
  int keep = -1;  // −1 = no event
};

struct NaiveEvent {
  int seen = 0;
  std::vector<int32_t> resident;
  std::vector<uint8_t> is_protected;  // one for each of `resident`
  std::vector<double> scores;
  std::vector<int32_t> kept;
};

// One KV head through the loop of decode-time pruning (sim/replay/schedule.h).
std::vector<NaiveEvent> naive_replay(const NaiveLayer& layer, int head, const NaivePolicy& policy,
                                     const std::vector<NaiveStep>& steps);

enum class NaivePool { kMax, kAverage };

NaivePolicy naive_streaming(int sinks, int kept);
NaivePolicy naive_accumulated(bool divide_by_age, int recent);
// Counts, of the tokens since the event before, the newest `queries`.
NaivePolicy naive_cached_queries(int budget, int interval, int queries);
NaivePolicy naive_snapkv_decode(int window, int kernel, NaivePool pool);
NaivePolicy naive_snapkv_wg_kv(int window, int kernel, NaivePool pool);
NaivePolicy naive_snapkv_per_head(int window, int kernel, NaivePool pool);
// kth(n) = which near-duplicate of n entries is forgiven, 1 = the newest.
NaivePolicy naive_r_kv(double lambda, int window, int kernel, double threshold, const std::function<int(int)>& kth);
NaivePolicy naive_golden(int interval, NaivePool queries, int horizon, NaivePool heads = NaivePool::kAverage);
NaivePolicy naive_tova();
NaivePolicy naive_keydiff(int sinks, int recent);
NaivePolicy naive_knorm(int sinks, int recent);
NaivePolicy naive_lagkv(int sinks, int lag, bool ranked);
NaivePolicy naive_expected_attention(int future, int sinks, double epsilon, bool covariance);

// ForesightKV's network with `of_heads[head]` = W1 [inputs, hidden], b1, w2, b2; inputs are the entry's key and value,
// if it reads them, then six features a query head.
struct NaiveForesight {
  int budget = 0;
  int interval = 0;
  int hidden = 16;
  bool reads_entry = true;
  std::vector<std::vector<float>> of_heads;
};
NaivePolicy naive_foresight(const NaiveForesight& network);

}  // namespace kv::ref
