#include "sim/replay/resident_bound.h"

#include <algorithm>

#include "kernels/paged.h"
#include "sim/cache/cache.h"
#include "sim/policy/capacity.h"

namespace kv {

namespace {

// Of a sequence.
int64_t longest_block(const Schedule& schedule) {
  int64_t longest = 0;
  for (const Step& step : schedule) {
    for (const int32_t count : step.counts) longest = std::max<int64_t>(longest, count);
  }
  return longest;
}

}  // namespace

ResidentBound::ResidentBound(const SourceInfo& info, const Arrivals& arrivals)
    : layers_(info.layers), kv_heads_(info.kv_heads), arrivals_(arrivals) {}

void ResidentBound::add(int64_t tokens) {
  tokens_ += tokens;
  total_ += tokens * heads();
  head_ += tokens;
  sweep();
  note();
}

void ResidentBound::sweep() {
  if (!is_admitted()) return;
  const bool surely = arrivals_.foreseen == Foreseen::kSurely;
  const SeenEntries seen =
      surely ? arrivals_.admission->least_seen(tokens_, heads()) : arrivals_.admission->most_seen(tokens_, heads());
  const int64_t unswept = Cache::kSweepEvery - 1 + arrivals_.block;
  total_ = std::min(total_, seen.total + unswept * heads());
  head_ = std::min(head_, seen.longest + unswept);
}

void ResidentBound::note() {
  constexpr int64_t kPartial = kPageTokens - 1;
  longest_ = std::max(longest_, head_);
  // No head has more pages than the longest one, and each wastes less than a page of what is there.
  const int64_t alike = heads() * ((head_ + kPartial) / kPageTokens);
  const int64_t uneven = (total_ + heads() * kPartial) / kPageTokens;
  pages_ = std::max(pages_, std::min(alike, uneven));
}

void ResidentBound::cut(int64_t kept, const Allocation& allocation) {
  forget_unsure(allocation);
  if (total_ <= kept * heads()) return;
  total_ = kept * heads();
  // Where others have less, a head may be left what an equal share of theirs would be, and more.
  const int64_t most = is_admitted() ? total_ : allocation.most_kept(kept, layers_, kv_heads_);
  head_ = std::min(head_, most);
}

// Of what an allocation may drop beyond a budget nothing is surely there.
void ResidentBound::forget_unsure(const Allocation& allocation) {
  if (arrivals_.foreseen == Foreseen::kSurely && !allocation.keeps_total()) total_ = head_ = 0;
}

void ResidentBound::fill(int64_t tokens, int64_t most, const Allocation& allocation) {
  const bool are_alike = !is_admitted() && allocation.most_kept(most, layers_, kv_heads_) == most;
  tokens_ = tokens;
  total_ = std::min(tokens, most + 1) * heads();
  head_ = are_alike ? std::min(tokens, most + 1) : tokens;
  forget_unsure(allocation);
  sweep();
  note();
}

std::vector<ResidentBound> resident_bounds(const Schedule& schedule, const Policy& policy, const SourceInfo& info,
                                           const Capacity* capacity, Foreseen foreseen) {
  const size_t sequences = schedule.empty() ? 0 : schedule.front().counts.size();
  const Arrivals arrivals{policy.admission.get(), longest_block(schedule), foreseen};
  std::vector<ResidentBound> bounds(sequences, ResidentBound(info, arrivals));
  if (capacity) {
    for (size_t s = 0; s < sequences; ++s) {
      int64_t tokens = 0;
      for (const Step& step : schedule) tokens += step.counts[s];
      bounds[s].fill(tokens, capacity->window + capacity->entries, *policy.allocation);
    }
    return bounds;
  }
  for (const Step& step : schedule) {
    for (size_t s = 0; s < sequences; ++s) {
      bounds[s].add(step.counts[s]);
      if (step.keep[s] >= 0) bounds[s].cut(step.keep[s], *policy.allocation);
    }
  }
  return bounds;
}

ResidentBound generation_bound(const SourceInfo& info, const Allocation& allocation, const GenerationLength& length,
                               const Arrivals& arrivals) {
  ResidentBound bound(info, arrivals);
  if (length.interval == 0) {
    bound.add(length.prompt);
    bound.cut(length.kept, allocation);
    bound.add(length.more);
    return bound;
  }
  const int64_t all = length.prompt + length.more;
  int64_t longest = -1;  // before the last cut; once that stays, every further interval is like the last one
  for (int64_t done = 0; done < all && longest != bound.longest();) {
    longest = done == 0 ? -1 : bound.longest();
    const int64_t block = std::min(done == 0 ? length.budget + length.interval : length.interval, all - done);
    bound.add(block);
    bound.cut(length.budget, allocation);
    done += block;
  }
  return bound;
}

}  // namespace kv
