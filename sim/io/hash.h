#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/io/sha256_blocks.h"

namespace kv {

// SHA-256 (FIPS 180-4), fed in pieces of any size; the digest depends on the concatenated bytes only.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }

  // 64 lower-case hexadecimal digits of what was fed so far; more may follow.
  std::string hex() const;

 private:
  void pad();

  Sha256State state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  uint64_t length_ = 0;  // bytes fed; length_ % 64 of them wait in pending_
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace kv
