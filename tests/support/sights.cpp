#include "tests/support/sights.h"

namespace kv::ref {

namespace {

class Watcher final : public Observer {
 public:
  void attended(const LayerView& view, ConstRef) override {
    const PagedView& cache = view.cache;
    for (const Segment& segment : view.segments) {
      for (int head = 0; head < view.kv_heads && segment.count > 0; ++head) {
        const int64_t row = int64_t{segment.sequence} * view.kv_heads + head;
        std::set<int32_t>& seen = seen_[{segment.sequence, view.layer, head}][segment.first_position];
        for (int32_t slot = 0; slot < view.lengths[static_cast<size_t>(row)]; ++slot) {
          const int64_t place =
              int64_t{cache.page_table[row * cache.max_pages + slot / kPageTokens]} * kPageTokens + slot % kPageTokens;
          if (!cache.expires || cache.expires[place] > segment.first_position) seen.insert(cache.positions[place]);
        }
      }
    }
  }
  Sights seen_;
};

}  // namespace

Sights sights(Source& source, Backend& backend, const SlotChoice& admission, const std::vector<int32_t>& lengths) {
  const SlotChoices slots{.admission = admission};
  Policy policy = make_policy("full", {}, slots);
  prepare(policy, source.info(), {}, slots);
  std::vector<std::vector<int32_t>> ids;
  for (int32_t sample = 0; sample < std::ssize(lengths); ++sample) {
    ids.emplace_back(static_cast<size_t>(lengths[static_cast<size_t>(sample)]), sample);
  }
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  replay({.backend = backend,
          .source = source,
          .policy = policy,
          .sequences = std::vector<std::span<const int32_t>>(ids.begin(), ids.end()),
          .schedule = full_schedule(lengths, 1),
          .seed = RunArgs{}.seed,
          .observers = observers});
  return watcher.seen_;
}

}  // namespace kv::ref
