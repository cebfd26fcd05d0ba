#include "tests/ref/naive_policies.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "tests/ref/expected_attention.h"
#include "tests/ref/lag_relative.h"
#include "tests/ref/softmax.h"

namespace kv::ref {

namespace {

using Row = std::vector<double>;

// Keys or values of one KV head at `positions`, [positions, dim].
std::vector<float> gather(const NaiveLayer& layer, const std::vector<float>& all, int head,
                          const std::vector<int32_t>& positions) {
  std::vector<float> out;
  for (const int32_t p : positions) {
    const auto first = all.begin() + (p * layer.kv_heads + head) * layer.dim;
    out.insert(out.end(), first, first + layer.dim);
  }
  return out;
}

Row pool(const Row& values, int kernel, NaivePool kind) {
  const int n = static_cast<int>(values.size());
  Row out(values.size(), kind == NaivePool::kMax ? -INFINITY : 0.0);
  for (int j = 0; j < n; ++j) {
    for (int u = std::max(0, j - kernel / 2); u <= std::min(n - 1, j + kernel / 2); ++u) {
      out[j] = kind == NaivePool::kMax ? std::max(out[j], values[u]) : out[j] + values[u] / kernel;
    }
  }
  return out;
}

// a_j of SnapKV's decode mode for the entries older than the window.
Row group_max_attention(const NaiveState& state, int window) {
  const NaiveLayer& layer = state.layer;
  const size_t older = state.resident.size() - static_cast<size_t>(window);
  Row mean(older, 0.0);
  for (int query = state.seen - window; query < state.seen; ++query) {
    Row p(older, -INFINITY);
    for (size_t j = 0; j < older; ++j) {
      for (int g = 0; g < layer.group(); ++g) {
        p[j] = std::max(p[j], layer.logit(query, state.head * layer.group() + g, state.resident[j]));
      }
    }
    softmax(p);
    for (size_t j = 0; j < older; ++j) mean[j] += p[j] / window;
  }
  return mean;
}

// a_j of SnapKV's mode wg-kv for the entries older than the window.
Row group_max_probability(const NaiveState& state, int window) {
  const int group = state.layer.group();
  const std::vector<int32_t> older(state.resident.begin(), state.resident.end() - window);
  Row mean(older.size(), 0.0);
  for (int query = state.seen - window; query < state.seen; ++query) {
    Row most(older.size(), 0.0);
    for (int g = 0; g < group; ++g) {
      const Row p = state.layer.attention(query, state.head * group + g, older);
      for (size_t j = 0; j < p.size(); ++j) most[j] = std::max(most[j], p[j]);
    }
    for (size_t j = 0; j < most.size(); ++j) mean[j] += most[j] / window;
  }
  return mean;
}

// Attention of the window's queries by one query head, mean over the window, all resident entries.
Row window_attention(const NaiveState& state, int window, int q_head) {
  Row mean(state.resident.size(), 0.0);
  for (int query = state.seen - window; query < state.seen; ++query) {
    std::vector<int32_t> visible;
    for (const int32_t p : state.resident) {
      if (p <= query) visible.push_back(p);
    }
    const Row p = state.layer.attention(query, q_head, visible);
    for (size_t j = 0; j < p.size(); ++j) mean[j] += p[j] / window;
  }
  return mean;
}

Row padded(Row values, size_t size) {
  values.resize(size, 0.0);
  return values;
}

// raw_of(state, window) is that of the entries older than the window.
NaivePolicy naive_pooled(Row (*raw_of)(const NaiveState&, int), int window, int kernel, NaivePool kind) {
  return {.score =
              [=](const NaiveState& state) {
                const Row raw = raw_of(state, window);
                return NaiveScores{padded(pool(raw, kernel, kind), state.resident.size()),
                                   padded(raw, state.resident.size())};
              },
          .sinks = 0,
          .recent = window};
}

double dot(const float* a, const float* b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += double(a[d]) * b[d];
  return sum;
}

// ρ of R-KV, step by step with the whole matrix.
Row redundancy(const NaiveState& state, double threshold, int kth) {
  const int n = static_cast<int>(state.resident.size());
  const int dim = state.layer.dim;
  const std::vector<float> keys = gather(state.layer, state.layer.keys, state.head, state.resident);
  const auto key = [&](int j) { return keys.data() + j * dim; };
  std::vector<Row> similarity(static_cast<size_t>(n), Row(static_cast<size_t>(n), 0.0));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const double norms = (std::sqrt(dot(key(i), key(i), dim)) + 1e-8) * (std::sqrt(dot(key(j), key(j), dim)) + 1e-8);
      if (i != j) similarity[i][j] = dot(key(i), key(j), dim) / norms;
    }
  }
  Row mean(static_cast<size_t>(n), 0.0);
  for (int i = 0; i < n; ++i) {
    std::vector<int> masked;  // newest first
    for (int j = n - 1; j >= 0; --j) {
      if (similarity[i][j] > threshold) masked.push_back(j);
    }
    const size_t rank = std::min(masked.size(), static_cast<size_t>(kth));
    similarity[i][masked.empty() ? 0 : masked[rank - 1]] = 0;
    for (int j = 0; j < n; ++j) mean[j] += similarity[i][j] / n;
  }
  softmax(mean);
  return mean;
}

// ã_j,t of the full-cache pass for every block t and position j.
std::vector<Row> golden_blocks(const NaiveState& state, int interval, NaivePool queries, NaivePool heads) {
  const NaiveLayer& layer = state.layer;
  const int tokens = layer.tokens();
  std::vector<int32_t> visible;
  std::vector<std::vector<Row>> blocks(static_cast<size_t>((tokens + interval - 1) / interval),
                                       std::vector<Row>(layer.group(), Row(tokens, 0.0)));
  for (int query = 0; query < tokens; ++query) {
    visible.push_back(query);
    for (int g = 0; g < layer.group(); ++g) {
      const Row p = layer.attention(query, state.head * layer.group() + g, visible);
      Row& block = blocks[static_cast<size_t>(query / interval)][static_cast<size_t>(g)];
      for (int j = 0; j <= query; ++j) {
        block[j] = queries == NaivePool::kMax ? std::max(block[j], p[j]) : block[j] + p[j] / interval;
      }
    }
  }
  std::vector<Row> pooled;
  for (const auto& block : blocks) {
    Row all(tokens, 0.0);
    for (const Row& head : block) {
      for (int j = 0; j < tokens; ++j) {
        all[j] = heads == NaivePool::kMax ? std::max(all[j], head[j]) : all[j] + head[j] / layer.group();
      }
    }
    pooled.push_back(std::move(all));
  }
  return pooled;
}

void attend(NaiveState& state, int query, const std::vector<int32_t>& visible) {
  for (int g = 0; g < state.layer.group(); ++g) {
    const Row p = state.layer.attention(query, state.head * state.layer.group() + g, visible);
    for (size_t j = 0; j < p.size(); ++j) state.attention[g][visible[j]] += p[j];
    Row& given = state.given.emplace_back(static_cast<size_t>(state.layer.tokens()), 0.0);
    for (size_t j = 0; j < p.size(); ++j) given[static_cast<size_t>(visible[j])] = p[j];
  }
}

NaiveEvent cut(NaiveState& state, const NaivePolicy& policy, int keep) {
  const NaiveScores ranking = policy.score(state);
  const int n = static_cast<int>(state.resident.size());
  NaiveEvent event{
      .seen = state.seen, .resident = state.resident, .is_protected = {}, .scores = ranking.scores, .kept = {}};
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (int slot = 0; slot < n; ++slot) {
    event.is_protected.push_back(state.resident[slot] < policy.sinks || slot >= n - policy.recent);
  }
  // Compared as floats: equal scores of the definition must not be told apart by the last bits of a double.
  const auto rank = [&](int slot) {
    const float tie = ranking.ties.empty() ? 0 : static_cast<float>(ranking.ties[slot]);
    return event.is_protected[slot] ? std::tuple(0, 0.0f, 0.0f, 0)
                                    : std::tuple(1, -static_cast<float>(ranking.scores[slot]), -tie, -slot);
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) < rank(b); });
  for (int i = 0; i < std::min(n, keep); ++i) event.kept.push_back(state.resident[order[i]]);
  std::sort(event.kept.begin(), event.kept.end());
  state.resident = event.kept;
  return event;
}

}  // namespace

double NaiveLayer::logit(int query, int q_head, int key) const {
  const float* q = queries.data() + (query * q_heads + q_head) * dim;
  const float* k = keys.data() + (key * kv_heads + q_head / group()) * dim;
  return dot(q, k, dim) / std::sqrt(double(dim));
}

std::vector<double> NaiveLayer::attention(int query, int q_head, const std::vector<int32_t>& visible) const {
  Row p;
  for (const int32_t key : visible) p.push_back(logit(query, q_head, key));
  softmax(p);
  return p;
}

std::vector<NaiveEvent> naive_replay(const NaiveLayer& layer, int head, const NaivePolicy& policy,
                                     const std::vector<NaiveStep>& steps) {
  NaiveState state{.layer = layer,
                   .head = head,
                   .seen = 0,
                   .resident = {},
                   .attention = std::vector<Row>(layer.group(), Row(layer.tokens(), 0.0)),
                   .given = {}};
  std::vector<NaiveEvent> events;
  for (const NaiveStep& step : steps) {
    for (int i = 0; i < step.count; ++i) {
      state.resident.push_back(state.seen);
      attend(state, state.seen, state.resident);
      ++state.seen;
    }
    if (step.keep >= 0 && static_cast<int>(state.resident.size()) > step.keep) {
      events.push_back(cut(state, policy, step.keep));
    }
  }
  return events;
}

NaivePolicy naive_streaming(int sinks, int kept) {
  return {.score =
              [](const NaiveState& state) {
                return NaiveScores{Row(state.resident.size(), 0.0), {}};
              },
          .sinks = sinks,
          .recent = kept - sinks};
}

NaivePolicy naive_accumulated(bool divide_by_age, int recent) {
  return {.score =
              [=](const NaiveState& state) {
                NaiveScores ranking;
                for (const int32_t p : state.resident) {
                  double sum = 0;
                  for (const Row& head : state.attention) sum += head[p];
                  ranking.scores.push_back(sum / state.layer.group() / (divide_by_age ? state.seen - p : 1));
                }
                return ranking;
              },
          .sinks = 0,
          .recent = recent};
}

NaivePolicy naive_cached_queries(int budget, int interval, int queries) {
  // The event that first finds query i there comes after this many tokens.
  const auto event_of = [=](int i) { return budget + std::max(1, (i - budget) / interval + 1) * interval; };
  return {.score =
              [=](const NaiveState& state) {
                NaiveScores ranking;
                for (const int32_t p : state.resident) {
                  double sum = 0;
                  for (int i = 0; i < state.seen; ++i) {
                    if (event_of(i) - i > queries) continue;
                    for (int g = 0; g < state.layer.group(); ++g) sum += state.given[i * state.layer.group() + g][p];
                  }
                  ranking.scores.push_back(sum / state.layer.group());
                }
                return ranking;
              },
          .sinks = 0,
          .recent = interval};
}

NaivePolicy naive_snapkv_decode(int window, int kernel, NaivePool kind) {
  return naive_pooled(group_max_attention, window, kernel, kind);
}

NaivePolicy naive_snapkv_wg_kv(int window, int kernel, NaivePool kind) {
  return naive_pooled(group_max_probability, window, kernel, kind);
}

NaivePolicy naive_snapkv_per_head(int window, int kernel, NaivePool kind) {
  return {.score =
              [=](const NaiveState& state) {
                const size_t n = state.resident.size();
                NaiveScores ranking{Row(n, 0.0), Row(n, 0.0)};
                const int group = state.layer.group();
                for (int g = 0; g < group; ++g) {
                  Row raw = window_attention(state, window, state.head * group + g);
                  raw.resize(n - static_cast<size_t>(window));
                  const Row smooth = pool(raw, kernel, kind);
                  for (size_t j = 0; j < raw.size(); ++j) {
                    ranking.scores[j] += smooth[j] / group;
                    ranking.ties[j] += raw[j] / group;
                  }
                }
                return ranking;
              },
          .sinks = 0,
          .recent = window};
}

NaivePolicy naive_r_kv(double lambda, int window, int kernel, double threshold, const std::function<int(int)>& kth) {
  return {.score =
              [=](const NaiveState& state) {
                const size_t n = state.resident.size();
                const Row raw = group_max_attention(state, window);
                const Row smooth = pool(raw, kernel, NaivePool::kMax);
                const Row rho = redundancy(state, threshold, kth(static_cast<int>(n)));
                NaiveScores ranking{Row(n, 0.0), padded(raw, n)};
                for (size_t j = 0; j < raw.size(); ++j) ranking.scores[j] = lambda * smooth[j] - (1 - lambda) * rho[j];
                return ranking;
              },
          .sinks = 0,
          .recent = window};
}

NaivePolicy naive_golden(int interval, NaivePool queries, int horizon, NaivePool heads) {
  return {.score =
              [=](const NaiveState& state) {
                const std::vector<Row> blocks = golden_blocks(state, interval, queries, heads);
                const size_t first = static_cast<size_t>(state.seen / interval);
                const size_t end =
                    horizon > 0 ? std::min(blocks.size(), first + static_cast<size_t>(horizon)) : blocks.size();
                NaiveScores ranking;
                for (const int32_t p : state.resident) {
                  double best = 0;
                  for (size_t t = first; t < end; ++t) best = std::max(best, blocks[t][p]);
                  ranking.scores.push_back(best);
                }
                return ranking;
              },
          .sinks = 0,
          .recent = interval};
}

NaivePolicy naive_tova() {
  return {.score =
              [](const NaiveState& state) {
                Row mean(state.resident.size(), 0.0);
                for (int h = 0; h < state.layer.q_heads; ++h) {
                  const Row p = window_attention(state, 1, h);
                  for (size_t j = 0; j < p.size(); ++j) mean[j] += p[j] / state.layer.q_heads;
                }
                return NaiveScores{mean, {}};
              },
          .sinks = 0,
          .recent = 1};
}

NaivePolicy naive_keydiff(int sinks, int recent) {
  return {.score =
              [](const NaiveState& state) {
                const int dim = state.layer.dim;
                const std::vector<float> keys = gather(state.layer, state.layer.keys, state.head, state.resident);
                const int n = static_cast<int>(state.resident.size());
                Row anchor(static_cast<size_t>(dim), 0.0);
                for (int j = 0; j < n; ++j) {
                  const float* k = keys.data() + j * dim;
                  for (int d = 0; d < dim; ++d) anchor[d] += k[d] / std::sqrt(dot(k, k, dim)) / n;
                }
                double length = 0;
                for (const double x : anchor) length += x * x;
                NaiveScores ranking;
                for (int j = 0; j < n; ++j) {
                  const float* k = keys.data() + j * dim;
                  double product = 0;
                  for (int d = 0; d < dim; ++d) product += anchor[d] * k[d];
                  ranking.scores.push_back(-product / std::sqrt(dot(k, k, dim) * length));
                }
                return ranking;
              },
          .sinks = sinks,
          .recent = recent};
}

NaivePolicy naive_knorm(int sinks, int recent) {
  return {.score =
              [](const NaiveState& state) {
                const int dim = state.layer.dim;
                const std::vector<float> keys = gather(state.layer, state.layer.keys, state.head, state.resident);
                NaiveScores ranking;
                for (size_t j = 0; j < state.resident.size(); ++j) {
                  const float* k = keys.data() + j * static_cast<size_t>(dim);
                  ranking.scores.push_back(-std::sqrt(dot(k, k, dim)));
                }
                return ranking;
              },
          .sinks = sinks,
          .recent = recent};
}

NaivePolicy naive_lagkv(int sinks, int lag, bool ranked) {
  return {.score = [=](const NaiveState& state) {
    const std::vector<float> keys = gather(state.layer, state.layer.keys, state.head, state.resident);
    const std::vector<float> values = gather(state.layer, state.layer.values, state.head, state.resident);
    const auto scores = ranked ? lag_ranks : lag_shares;
    return NaiveScores{scores(keys, values, state.layer.dim, sinks, lag), {}};
  }};
}

NaivePolicy naive_expected_attention(int future, int sinks, double epsilon, bool covariance) {
  return {.score =
              [=](const NaiveState& state) {
                const NaiveLayer& layer = state.layer;
                std::vector<std::vector<float>> queries(static_cast<size_t>(layer.group()));
                for (int g = 0; g < layer.group(); ++g) {
                  for (int i = sinks; i < state.seen; ++i) {
                    const auto first = layer.pre_rope_queries.begin() +
                                       (i * layer.q_heads + state.head * layer.group() + g) * layer.dim;
                    queries[g].insert(queries[g].end(), first, first + layer.dim);
                  }
                }
                const ExpectedAttentionCase c{.dim = layer.dim,
                                              .future = future,
                                              .sinks = sinks,
                                              .epsilon = epsilon,
                                              .next_position = state.seen,
                                              .use_covariance = covariance,
                                              .inv_freq = layer.inv_freq};
                return NaiveScores{
                    expected_attention(c, queries, gather(layer, layer.keys, state.head, state.resident),
                                       gather(layer, layer.values, state.head, state.resident), state.resident),
                    {}};
              },
          .sinks = sinks,
          .recent = 0};
}

namespace {

// What queries [first, last) gave the entry at a position, a number a query head.
Row given_by(const NaiveState& state, int first, int last, int32_t position) {
  const int group = state.layer.group();
  Row sums(static_cast<size_t>(group), 0.0);
  for (int i = first; i < last; ++i) {
    for (int g = 0; g < group; ++g) sums[static_cast<size_t>(g)] += state.given[i * group + g][position];
  }
  return sums;
}

void append(Row& row, const Row& more) { row.insert(row.end(), more.begin(), more.end()); }

// Sums over the newest 8, 16, 32 queries and the interval's, over all, and with 0.9 an interval that has passed.
Row foresight_features(const NaiveState& state, const NaiveForesight& network, int32_t position) {
  const int seen = state.seen, block = seen - network.interval;
  Row features, decayed(static_cast<size_t>(state.layer.group()), 0.0);
  for (const int newest : {8, 16, 32, network.interval}) {
    append(features, given_by(state, seen - std::min(newest, network.interval), seen, position));
  }
  append(features, given_by(state, 0, seen, position));
  for (int first = 0; first <= block; first = first == 0 ? network.budget : first + network.interval) {
    const int last = first == 0 ? network.budget : first + network.interval;
    const Row sums = given_by(state, first, last, position);
    for (size_t g = 0; g < sums.size(); ++g) decayed[g] = 0.9 * decayed[g] + sums[g];
  }
  append(features, decayed);
  return features;
}

double foresight_score(const NaiveForesight& network, const std::vector<float>& weights, const Row& inputs) {
  const auto hidden = static_cast<size_t>(network.hidden), bias = inputs.size() * hidden;
  double score = weights[bias + 2 * hidden];
  for (size_t unit = 0; unit < hidden; ++unit) {
    double sum = weights[bias + unit];
    for (size_t i = 0; i < inputs.size(); ++i) sum += inputs[i] * weights[i * hidden + unit];
    score += weights[bias + hidden + unit] * sum * 0.5 * std::erfc(-sum / std::sqrt(2.0));
  }
  return score;
}

}  // namespace

NaivePolicy naive_foresight(const NaiveForesight& network) {
  return {.score =
              [=](const NaiveState& state) {
                NaiveScores ranking;
                for (const int32_t p : state.resident) {
                  Row inputs;
                  const int64_t vector = (int64_t{p} * state.layer.kv_heads + state.head) * state.layer.dim;
                  for (const std::vector<float>* of : {&state.layer.keys, &state.layer.values}) {
                    if (!network.reads_entry) continue;
                    inputs.insert(inputs.end(), of->begin() + vector, of->begin() + vector + state.layer.dim);
                  }
                  append(inputs, foresight_features(state, network, p));
                  ranking.scores.push_back(
                      foresight_score(network, network.of_heads[static_cast<size_t>(state.head)], inputs));
                }
                return ranking;
              },
          .sinks = 0,
          .recent = network.interval};
}

}  // namespace kv::ref
