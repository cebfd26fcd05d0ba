#include "sim/io/hash.h"

#include <algorithm>
#include <cstring>

namespace kv {
namespace {

void take_blocks(Sha256State& state, const std::byte* bytes, size_t blocks) {
  static const Sha256Blocks fast = sha256_instructions();
  (fast ? fast : sha256_blocks)(state, bytes, blocks);
}

}  // namespace

void Sha256::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t filled = length_ % 64;
    if (filled == 0 && bytes.size() >= 64) {
      const std::size_t whole = bytes.size() / 64;
      take_blocks(state_, bytes.data(), whole);
      length_ += 64 * whole;
      bytes = bytes.subspan(64 * whole);
      continue;
    }
    const std::size_t taken = std::min(bytes.size(), 64 - filled);
    std::memcpy(pending_.data() + filled, bytes.data(), taken);
    length_ += taken;
    bytes = bytes.subspan(taken);
    if (filled + taken == 64) take_blocks(state_, pending_.data(), 1);
  }
}

void Sha256::pad() {
  const uint64_t bits = length_ * 8;
  const std::size_t filled = length_ % 64;
  std::array<std::byte, 128> tail{};
  tail[0] = std::byte{0x80};
  const std::size_t zeros_end = filled < 56 ? 56 - filled : 120 - filled;
  for (int i = 0; i < 8; ++i) tail[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span<const std::byte>(tail).first(zeros_end + 8));
}

std::string Sha256::hex() const {
  Sha256 finished = *this;
  finished.pad();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint32_t word : finished.state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

}  // namespace kv
