#include "sim/replay/due.h"

#include <algorithm>

namespace kv {

void Due::set(std::span<const uint8_t> sequences, std::span<const int32_t> tokens_seen) {
  set_none();
  if (std::find(sequences.begin(), sequences.end(), 1) == sequences.end()) return;
  sequences_.assign(sequences.begin(), sequences.end());
  tokens_seen_.assign(tokens_seen.begin(), tokens_seen.end());
  rows_.clear();
  for (const uint8_t due : sequences_) rows_.insert(rows_.end(), static_cast<size_t>(kv_heads_), due);
  device_rows_.reserve(backend_, DType::kU8, std::ssize(rows_));
  device_rows_.upload(rows_.data(), rows_.size());
  device_tokens_seen_.reserve(backend_, DType::kI32, std::ssize(tokens_seen_));
  device_tokens_seen_.upload(tokens_seen_.data(), tokens_seen_.size() * sizeof(int32_t));
}

}  // namespace kv
