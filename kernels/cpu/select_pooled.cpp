#include "kernels/select_pooled.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/score_order.h"
#include "kernels/select_top.h"

namespace kv::cpu {

namespace {

using Layer = SelectPooledArgs::Layer;

// An entry that no row keeps as its own.
struct Candidate {
  uint64_t key;  // score and tie
  int32_t position;
  int32_t head;
  int32_t layer;
  int64_t slot;

  bool operator<(const Candidate& other) const {  // the better first
    return std::tie(other.key, other.position, head, layer) < std::tie(key, position, other.head, other.layer);
  }
};

bool is_due(const SelectPooledArgs& args, int64_t row) { return !args.rows_due || args.rows_due[row]; }

// What each row keeps as its own is a selection by itself.
void select_sure(const SelectPooledArgs& args, const Layer& layer) {
  const PagedView& cache = layer.cache;
  for (int64_t row = 0; row < cache.rows; ++row) {
    if (!is_due(args, row)) continue;
    const int64_t length = cache.lengths[row], sinks = leading_sinks(cache, row, args.sinks);
    const int64_t spared = sinks + std::min<int64_t>(args.recent, length - sinks);
    layer.kept[row] =
        static_cast<int32_t>(std::min<int64_t>(length, std::max<int64_t>(spared, layer.least ? layer.least[row] : 0)));
  }
  select_top({.cache = cache,
              .scores = layer.scores,
              .ties = layer.ties,
              .counts = layer.kept,
              .sinks = args.sinks,
              .recent = args.recent,
              .rows_due = args.rows_due,
              .keep = layer.keep});
}

std::vector<Candidate> candidates_of(const SelectPooledArgs& args, int64_t sequence) {
  std::vector<Candidate> candidates;
  for (int64_t l = 0; l < args.layer_count; ++l) {
    const Layer& layer = args.layers[l];
    for (int head = 0; head < layer.cache.kv_heads; ++head) {
      const int64_t row = sequence * layer.cache.kv_heads + head;
      const uint8_t* keep = layer.keep.row(row);
      const float* scores = layer.scores.row(row);
      const float* ties = layer.ties ? layer.ties.row(row) : nullptr;
      for (int64_t slot = 0; slot < layer.cache.lengths[row]; ++slot) {
        if (keep[slot]) continue;
        candidates.push_back({.key = ordered(scores, ties, slot),
                              .position = layer.cache.positions[pool_index(layer.cache, row, slot)],
                              .head = head,
                              .layer = static_cast<int32_t>(l),
                              .slot = slot});
      }
    }
  }
  return candidates;
}

void select_sequence(const SelectPooledArgs& args, int64_t sequence) {
  const int kv_heads = args.layers[0].cache.kv_heads;
  if (!is_due(args, sequence * kv_heads)) return;
  int64_t missing = args.counts[sequence];
  for (int64_t l = 0; l < args.layer_count; ++l) {
    for (int head = 0; head < kv_heads; ++head) missing -= args.layers[l].kept[sequence * kv_heads + head];
  }
  KV_CHECK(missing >= 0);
  std::vector<Candidate> candidates = candidates_of(args, sequence);
  const auto stay = candidates.begin() + std::min<int64_t>(missing, static_cast<int64_t>(candidates.size()));
  if (stay != candidates.end()) std::nth_element(candidates.begin(), stay, candidates.end());
  for (auto candidate = candidates.begin(); candidate != stay; ++candidate) {
    const Layer& layer = args.layers[candidate->layer];
    const int64_t row = sequence * kv_heads + candidate->head;
    layer.keep.row(row)[candidate->slot] = 1;
    ++layer.kept[row];
  }
}

}  // namespace

void select_pooled(const SelectPooledArgs& args) {
  if (args.layer_count == 0) return;
  const PagedView& cache = args.layers[0].cache;
  for (int64_t l = 0; l < args.layer_count; ++l) {
    KV_CHECK(args.layers[l].cache.rows == cache.rows && args.layers[l].cache.kv_heads == cache.kv_heads);
    KV_CHECK(!args.layers[l].ties == !args.layers[0].ties);
    select_sure(args, args.layers[l]);
  }
  parallel_for(cache.rows / cache.kv_heads, [&](int64_t sequence) { select_sequence(args, sequence); });
}

}  // namespace kv::cpu
