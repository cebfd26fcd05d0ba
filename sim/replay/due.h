#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace kv {

// The sequences that an event scores and cuts, for the host and the backend.
class Due {
 public:
  Due(Backend& backend, int kv_heads) : backend_(backend), kv_heads_(kv_heads) {}

  // sequences: 1 = due; tokens_seen: of every sequence so far. Both [sequences].
  void set(std::span<const uint8_t> sequences, std::span<const int32_t> tokens_seen);
  void set_none() { sequences_.clear(); }

  bool any() const { return !sequences_.empty(); }
  std::span<const uint8_t> sequences() const { return sequences_; }
  std::span<const uint8_t> rows() const { return rows_; }
  std::span<const int32_t> tokens_seen() const { return tokens_seen_; }
  const uint8_t* device_rows() const { return device_rows_.ref().as<uint8_t>(); }
  const int32_t* device_tokens_seen() const { return device_tokens_seen_.ref().as<int32_t>(); }

 private:
  Backend& backend_;
  int kv_heads_;
  std::vector<uint8_t> sequences_;  // empty where none is due
  std::vector<uint8_t> rows_;
  std::vector<int32_t> tokens_seen_;
  Tensor device_rows_, device_tokens_seen_;
};

}  // namespace kv
