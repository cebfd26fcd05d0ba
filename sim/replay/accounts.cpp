#include "sim/replay/accounts.h"

#include <algorithm>
#include <utility>

namespace kv {

namespace {

template <class Visit>
void for_each_length(const Cache& cache, int sequence, const Visit& visit) {
  const CacheShape& shape = cache.shape();
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      visit(cache.lengths(layer)[static_cast<size_t>(sequence * shape.kv_heads + head)]);
    }
  }
}

}  // namespace

int64_t resident_entries(const Cache& cache, int sequence) {
  int64_t entries = 0;
  for_each_length(cache, sequence, [&](int32_t length) { entries += length; });
  return entries;
}

void Accounts::note_block(const Block& block, const Cache& cache) {
  for (const Segment& segment : block.segments) {
    int64_t& pairs = of(segment.sequence).attended_pairs;
    for_each_length(cache, segment.sequence, [&](int64_t after) {
      const int64_t before = after - segment.count;
      pairs += segment.count * before + static_cast<int64_t>(segment.count) * (segment.count + 1) / 2;
    });
  }
  note_peak(cache);
}

void Accounts::note_peak(const Cache& cache) {
  for (int s = 0; s < std::ssize(sequences_); ++s) {
    of(s).peak_entries = std::max(of(s).peak_entries, resident_entries(cache, s));
  }
}

void Accounts::note_event(int sequence, int32_t tokens_seen, const Cache& cache) {
  if (of(sequence).first_event < 0) of(sequence).first_event = tokens_seen;
  ++of(sequence).events;
  measure_kept(sequence, cache);
}

void Accounts::resume(int sequence, int64_t events, const Cache& cache) {
  of(sequence).events = events;
  if (events > 0) measure_kept(sequence, cache);
}

std::vector<ReplayResult::PerSequence> Accounts::close(const Cache& cache) {
  for (int s = 0; s < std::ssize(sequences_); ++s) {
    of(s).end_entries = resident_entries(cache, s);
    if (of(s).events == 0) measure_kept(s, cache);
  }
  return std::move(sequences_);
}

void Accounts::measure_kept(int sequence, const Cache& cache) {
  ReplayResult::PerSequence& account = of(sequence);
  account.kept_mean = 0;
  account.kept_max = 0;
  for_each_length(cache, sequence, [&](int32_t length) {
    account.kept_mean += length;
    account.kept_max = std::max<int64_t>(account.kept_max, length);
  });
  account.kept_mean /= static_cast<double>(cache.shape().layers * cache.shape().kv_heads);
}

}  // namespace kv
