#include "sim/replay/cut.h"

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/select_top.h"
#include "sim/policy/capacity.h"
#include "sim/policy/layer_view.h"
#include "sim/replay/accounts.h"
#include "sim/replay/score_check.h"
#include "sim/replay/stopwatch.h"

namespace kv {

namespace {

// Sequences that keep equally many entries a head, and so protect the same.
struct Group {
  int kept = 0;  // entries a head, on average, rounded down
  Protection protection;
  std::vector<uint8_t> sequences_due;
  Tensor rows_due;
};

void check_counts(const Allocation& allocation, const AllocateArgs& args, std::span<const int32_t> counts) {
  for (int s = 0; s < args.sequences; ++s) {
    if (!args.is_due(s)) continue;
    int64_t total = 0;
    for (size_t layer = 0; layer < args.layers.size(); ++layer) {
      for (int head = 0; head < args.kv_heads; ++head) {
        const auto row = static_cast<size_t>(s * args.kv_heads + head);
        const int32_t count = counts[layer * static_cast<size_t>(args.rows()) + row];
        KV_CHECK(count >= 0 && count <= args.layers[layer].lengths[row]);
        total += count;
      }
    }
    KV_CHECK(allocation.keeps_total() ? total == args.total(s) : total <= args.total(s));
  }
}

class Event {
 public:
  // The watch runs.
  Event(const CutArgs& args, Stopwatch& watch, double& seconds)
      : args_(args), watch_(watch), seconds_(seconds), groups_(groups_of(args)) {
    const bool decided = args.policy.allocation->decides_entries();
    masks_.resize(decided ? static_cast<size_t>(args.info.layers) : 1);
    for (int layer = 0; layer < args.info.layers; ++layer) {
      const LayerView view = layer_view(args.backend, args.info, args.cache, layer);
      layers_.push_back(args.ranker.scored(view));
      if (decided) keep_.push_back(mask_of(view));
    }
  }

  void go() {
    for (const Group& group : groups_) check(group, args_.policy.scorer_name, group.protection, layers_, 0);
    allocate();
    for (int layer = 0; layer < args_.info.layers; ++layer) cut_layer(layer);
    args_.cache.settle();
    for (int layer = 0; layer < args_.info.layers; ++layer) check_kept(layer);
  }

 private:
  // Protection depends on what is kept, so in a ragged batch each count gets its own selection.
  static std::vector<Group> groups_of(const CutArgs& args) {
    const auto due = args.due.sequences();
    const int64_t heads = int64_t{args.info.layers} * args.info.kv_heads;
    std::map<int32_t, std::vector<uint8_t>> by_kept;
    for (size_t s = 0; s < due.size(); ++s) {
      const auto kept = static_cast<int32_t>(args.totals[s] / heads);
      if (due[s]) by_kept.try_emplace(kept, due.size(), uint8_t{0}).first->second[s] = 1;
    }
    std::vector<Group> groups;
    for (auto& [kept, sequences_due] : by_kept) {
      std::vector<uint8_t> rows;
      for (const uint8_t due_flag : sequences_due) {
        rows.insert(rows.end(), static_cast<size_t>(args.info.kv_heads), due_flag);
      }
      Group group{kept, protection_of(args, kept), std::move(sequences_due),
                  Tensor(args.backend, DType::kU8, args.cache.rows())};
      group.rows_due.upload(rows.data(), rows.size());
      groups.push_back(std::move(group));
    }
    return groups;
  }

  static Protection protection_of(const CutArgs& args, int kept) {
    Protection protection = args.policy.scorer->protects(kept, args.interval);
    if (args.capacity) protection.recent = std::max(protection.recent, args.capacity->window);
    return protection;
  }

  // `layers` are those from `first` on.
  void check(const Group& group, std::string_view whose, const Protection& protection,
             std::span<const ScoredLayer> layers, int first) const {
    check_scores({.backend = args_.backend,
                  .policy = whose,
                  .layers = layers,
                  .layer_numbers = std::span(args_.info.layer_numbers).subspan(static_cast<size_t>(first)),
                  .kv_heads = args_.info.kv_heads,
                  .protection = protection,
                  .rows_due = group.rows_due.ref().as<uint8_t>()});
  }

  void allocate() {
    counts_.assign(layers_.size() * static_cast<size_t>(args_.cache.rows()), 0);
    for (const Group& group : groups_) {
      const AllocateArgs args{.backend = args_.backend,
                              .sequences = args_.cache.shape().sequences,
                              .kv_heads = args_.info.kv_heads,
                              .kept = group.kept,
                              .protection = group.protection,
                              .sequences_due = group.sequences_due,
                              .rows_due = group.rows_due.ref().as<uint8_t>(),
                              .tokens_seen = args_.due.tokens_seen(),
                              .totals = args_.totals,
                              .capacity = args_.capacity,
                              .layers = layers_,
                              .keep = keep_};
      args_.policy.allocation->allocate(args, counts_);
      check_counts(*args_.policy.allocation, args, counts_);
    }
    device_counts_ = Tensor(args_.backend, DType::kI32, std::ssize(counts_));
    device_counts_.upload(counts_.data(), counts_.size() * sizeof(int32_t));
  }

  void cut_layer(int layer) {
    const LayerView view = layer_view(args_.backend, args_.info, args_.cache, layer);
    const Slots<uint8_t> keep = mask_of(view);
    if (keep_.empty()) {
      for (const Group& group : groups_) select(view, group, keep);
    }
    if (!args_.observers.empty()) show(view, keep);
    args_.cache.evict(layer, keep, args_.due.device_rows());
  }

  // The scorer's best of each head.
  void select(const LayerView& view, const Group& group, Slots<uint8_t> keep) {
    const ScoredLayer& scored = layers_[static_cast<size_t>(view.layer)];
    args_.backend.select_top({.cache = view.cache,
                              .scores = scored.scores,
                              .ties = scored.ties,
                              .counts = device_counts_.ref().as<int32_t>() + view.layer * view.rows(),
                              .sinks = group.protection.sinks,
                              .recent = group.protection.recent,
                              .rows_due = group.rows_due.ref().as<uint8_t>(),
                              .keep = keep});
  }

  // What observers take is no part of the event.
  void show(const LayerView& view, Slots<const uint8_t> keep) {
    watch_.stop(seconds_);
    std::vector<ScoredLayer> onlookers;
    for (const Ranker& onlooker : args_.onlookers) {
      onlookers.push_back(onlooker.scored(view));
      for (const Group& group : groups_) {
        check(group, onlooker.name(), onlooker.protects(group.kept, args_.interval), std::span(&onlookers.back(), 1),
              view.layer);
      }
    }
    for (Observer* observer : args_.observers) {
      for (const Group& group : groups_) {
        observer->evicting({.layer = view,
                            .sequences_due = group.sequences_due,
                            .tokens_seen = args_.due.tokens_seen(),
                            .kept = counts_of(view.layer),
                            .keep = keep,
                            .scores = layers_[static_cast<size_t>(view.layer)].scores,
                            .ties = layers_[static_cast<size_t>(view.layer)].ties,
                            .protection = group.protection,
                            .onlookers = onlookers});
      }
    }
    watch_.start();
  }

  // Until the layer is cut it is as it was scored, and so are its pitch and the memory of its mask.
  Slots<uint8_t> mask_of(const LayerView& view) {
    Tensor& memory = masks_[masks_.size() == 1 ? 0 : static_cast<size_t>(view.layer)];
    return memory.reserve_slots<uint8_t>(args_.backend, view.rows(), view.pitch);
  }

  std::span<const int32_t> counts_of(int layer) const {
    const auto rows = static_cast<size_t>(args_.cache.rows());
    return std::span(counts_).subspan(static_cast<size_t>(layer) * rows, rows);
  }

  // Exactly what was asked must stay: silent full attention is a known failure of such tools. The lengths are those
  // that compaction counted.
  void check_kept(int layer) const {
    const auto lengths = args_.cache.lengths(layer), counts = counts_of(layer);
    for (size_t row = 0; row < lengths.size(); ++row) KV_CHECK(!args_.due.rows()[row] || lengths[row] == counts[row]);
  }

  const CutArgs& args_;
  Stopwatch& watch_;
  double& seconds_;
  std::vector<Group> groups_;
  std::vector<ScoredLayer> layers_;
  std::vector<int32_t> counts_;  // [layers, rows]
  Tensor device_counts_;
  std::vector<Tensor> masks_;         // of each layer where the allocation decides, else of the one that is being cut
  std::vector<Slots<uint8_t>> keep_;  // [layers] where the allocation decides, else empty
};

}  // namespace

bool is_due(const Policy& policy, const Cache& cache, int sequence, int64_t total, const Capacity* capacity) {
  if (total < 0) return false;
  return resident_entries(cache, sequence) > total || (!capacity && !policy.allocation->keeps_total());
}

void cut(const CutArgs& args, double& seconds) {
  Stopwatch watch(args.backend);
  watch.start();
  Event(args, watch, seconds).go();
  watch.stop(seconds);
}

}  // namespace kv
