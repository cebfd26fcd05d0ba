#include "sim/replay/compress.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/error.h"
#include "sim/replay/replay.h"

namespace kv {

namespace {

// Copies scores and the keep mask of the one event; one sequence, so row = KV head and slot = position.
class ScoreKeeper final : public Observer {
 public:
  explicit ScoreKeeper(CompressResult& result) : result_(result) {}

  void evicting(const EvictionView& view) override {
    const auto size = static_cast<size_t>(view.scores.elements());
    KV_CHECK(view.keep.pitch == view.scores.pitch);
    std::vector<float> scores(size);
    std::vector<uint8_t> keep(size);
    view.layer.backend.download(scores.data(), view.scores.data, size * sizeof(float));
    view.layer.backend.download(keep.data(), view.keep.data, size);
    for (int head = 0; head < result_.kv_heads; ++head) {
      const int64_t from = head * view.keep.pitch;
      const int64_t to = (view.layer.layer * result_.kv_heads + head) * result_.tokens;
      std::copy_n(keep.begin() + from, result_.tokens, result_.keep.begin() + to);
      std::copy_n(scores.begin() + from, result_.tokens, result_.score.begin() + to);
    }
    lift_protected(view.layer.layer, view.protection);
  }

 private:
  // As kvpress: one value for all heads of the layer.
  void lift_protected(int layer, const Protection& protection) {
    const size_t tokens = static_cast<size_t>(result_.tokens);
    const size_t heads = static_cast<size_t>(result_.kv_heads);
    const size_t sinks = std::min(tokens, static_cast<size_t>(protection.sinks));
    const size_t recent = std::min(tokens - sinks, static_cast<size_t>(protection.recent));
    const auto scores = std::span(result_.score).subspan(static_cast<size_t>(layer) * heads * tokens, heads * tokens);
    float top = -std::numeric_limits<float>::infinity();
    for (size_t head = 0; head < heads; ++head) {
      const auto candidates = scores.subspan(head * tokens + sinks, tokens - sinks - recent);
      for (const float score : candidates) top = std::max(top, score);
    }
    if (sinks + recent == tokens) top = 0;
    for (size_t head = 0; head < heads; ++head) {
      const auto row = scores.subspan(head * tokens, tokens);
      std::fill_n(row.begin(), sinks, top + 1);
      std::fill_n(row.end() - static_cast<int64_t>(recent), recent, top + 1);
    }
  }

  CompressResult& result_;
};

}  // namespace

CompressResult compress(Backend& backend, Source& source, Policy& policy, std::span<const int32_t> ids,
                        double keep_fraction, uint64_t seed) {
  if (!(keep_fraction > 0 && keep_fraction <= 1)) {
    throw UserError(fmt::format("compress: keep = {}: expected a fraction above 0 and at most 1", keep_fraction));
  }
  if (!policy.scorer) throw UserError(fmt::format("compress: {} never evicts, so it has no scores", policy.name));
  const SourceInfo& info = source.info();
  const int32_t tokens = static_cast<int32_t>(ids.size());
  const int32_t kept = kept_tokens(tokens, keep_fraction);
  CompressResult result{.layers = info.layers, .kv_heads = info.kv_heads, .tokens = tokens, .score = {}, .keep = {}};
  const size_t size = static_cast<size_t>(info.layers) * static_cast<size_t>(info.kv_heads * tokens);
  result.score.assign(size, 0.0f);
  result.keep.assign(size, 1);
  policy.scorer->check_budget(kept, 0);
  const std::span<const int32_t> sequences[] = {ids};
  const Schedule schedule = one_shot_schedule(std::span(&tokens, 1), std::span(&tokens, 1), std::span(&kept, 1));
  ScoreKeeper keeper(result);
  Observer* const observers[] = {&keeper};
  replay({.backend = backend,
          .source = source,
          .policy = policy,
          .sequences = sequences,
          .schedule = schedule,
          .seed = seed,
          .observers = observers});
  return result;
}

}  // namespace kv
