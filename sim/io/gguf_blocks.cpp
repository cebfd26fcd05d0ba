#include "sim/io/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/check.h"
#include "kernels/half.h"

namespace kv {
namespace {

constexpr int kGroup = 32;   // values of a small block; those of a large one that share a scale in Q4_K and Q5_K
constexpr int kLarge = 256;  // values of a large block

struct FormatRow {
  BlockFormat format;
  uint32_t number;  // in the file
  std::string_view name;
  int64_t values;
  std::size_t bytes;
};

constexpr std::array<FormatRow, 11> kFormats = {{{BlockFormat::kF32, 0, "F32", 1, 4},
                                                 {BlockFormat::kF16, 1, "F16", 1, 2},
                                                 {BlockFormat::kBF16, 30, "BF16", 1, 2},
                                                 {BlockFormat::kQ4_0, 2, "Q4_0", kGroup, 18},
                                                 {BlockFormat::kQ4_1, 3, "Q4_1", kGroup, 20},
                                                 {BlockFormat::kQ5_0, 6, "Q5_0", kGroup, 22},
                                                 {BlockFormat::kQ5_1, 7, "Q5_1", kGroup, 24},
                                                 {BlockFormat::kQ8_0, 8, "Q8_0", kGroup, 34},
                                                 {BlockFormat::kQ4_K, 12, "Q4_K", kLarge, 144},
                                                 {BlockFormat::kQ5_K, 13, "Q5_K", kLarge, 176},
                                                 {BlockFormat::kQ6_K, 14, "Q6_K", kLarge, 210}}};

const FormatRow& row(BlockFormat format) { return kFormats[static_cast<std::size_t>(format)]; }

template <class Value>
Value load(const uint8_t* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float load_f16(const uint8_t* from) { return f16_to_f32(load<uint16_t>(from)); }

// Two 4-bit integers a byte: value i of the first half of `count` in the low bits of byte i, value count / 2 + i in its
// high bits.
int low_bits(uint8_t byte) { return byte & 0x0f; }
int high_bits(uint8_t byte) { return byte >> 4; }

// f16 d; 16 bytes of q. Values d (q - 8).
void unpack_q4_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const uint8_t* q = block + 2;
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = d * static_cast<float>(low_bits(q[i]) - 8);
    out[i + kGroup / 2] = d * static_cast<float>(high_bits(q[i]) - 8);
  }
}

// f16 d, m; 16 bytes of q. Values d q + m.
void unpack_q4_1(const uint8_t* block, float* out) {
  const float d = load_f16(block), m = load_f16(block + 2);
  const uint8_t* q = block + 4;
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = d * static_cast<float>(low_bits(q[i])) + m;
    out[i + kGroup / 2] = d * static_cast<float>(high_bits(q[i])) + m;
  }
}

// The fifth bits of 32 integers are the bits of one word, value i in bit i.
int fifth_bit(uint32_t fifths, int i) { return static_cast<int>((fifths >> i & 1u) << 4); }

// f16 d; 32 fifth bits; 16 bytes of the lower four. Values d (q - 16).
void unpack_q5_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  const auto fifths = load<uint32_t>(block + 2);
  const uint8_t* q = block + 6;
  for (int i = 0; i < kGroup / 2; ++i) {
    const int j = i + kGroup / 2;
    out[i] = d * static_cast<float>((low_bits(q[i]) | fifth_bit(fifths, i)) - 16);
    out[j] = d * static_cast<float>((high_bits(q[i]) | fifth_bit(fifths, j)) - 16);
  }
}

// f16 d, m; 32 fifth bits; 16 bytes of the lower four. Values d q + m.
void unpack_q5_1(const uint8_t* block, float* out) {
  const float d = load_f16(block), m = load_f16(block + 2);
  const auto fifths = load<uint32_t>(block + 4);
  const uint8_t* q = block + 8;
  for (int i = 0; i < kGroup / 2; ++i) {
    const int j = i + kGroup / 2;
    out[i] = d * static_cast<float>(low_bits(q[i]) | fifth_bit(fifths, i)) + m;
    out[j] = d * static_cast<float>(high_bits(q[i]) | fifth_bit(fifths, j)) + m;
  }
}

// f16 d; 32 signed bytes q. Values d q.
void unpack_q8_0(const uint8_t* block, float* out) {
  const float d = load_f16(block);
  for (int i = 0; i < kGroup; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

struct ScaleAndMinimum {
  int scale, minimum;  // of 6 bits
};

// Eight groups' pairs in 12 bytes. Groups 0 to 3 have their scales in the low bits of bytes 0 to 3, their minima in
// those of bytes 4 to 7; groups 4 to 7 have four bits of each in bytes 8 to 11 and the other two above those of group
// - 4.
ScaleAndMinimum group_scale(const uint8_t* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {low_bits(packed[group + 4]) | (packed[group - 4] >> 6 << 4),
          high_bits(packed[group + 4]) | (packed[group] >> 6 << 4)};
}

// f16 d, dmin; 12 bytes of scales and minima; 128 bytes of q, in which 32 bytes serve two groups of 32: the low bits
// the first, the high bits the second. Values d scale q - dmin minimum.
void unpack_q4_k(const uint8_t* block, float* out) {
  const float d = load_f16(block), dmin = load_f16(block + 2);
  for (int group = 0; group < kLarge / kGroup; ++group) {
    const auto [scale, minimum] = group_scale(block + 4, group);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(minimum);
    const uint8_t* q = block + 16 + group / 2 * kGroup;
    const int shift = group % 2 * 4;
    for (int i = 0; i < kGroup; ++i) *out++ = step * static_cast<float>(q[i] >> shift & 15) - offset;
  }
}

// The same with 32 bytes of fifth bits before those of q: group g's are bit g of each.
void unpack_q5_k(const uint8_t* block, float* out) {
  const float d = load_f16(block), dmin = load_f16(block + 2);
  const uint8_t* fifths = block + 16;
  for (int group = 0; group < kLarge / kGroup; ++group) {
    const auto [scale, minimum] = group_scale(block + 4, group);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(minimum);
    const uint8_t* q = block + 48 + group / 2 * kGroup;
    const int shift = group % 2 * 4;
    for (int i = 0; i < kGroup; ++i) {
      *out++ = step * static_cast<float>((q[i] >> shift & 15) | (fifths[i] >> group & 1) << 4) - offset;
    }
  }
}

// 128 bytes of the lower four bits, 64 of the upper two, 16 signed scales of 16 values each, f16 d. Each half of the
// values has half of the bytes; within it group g of four has the low (g < 2) or high bits of bytes 32 (g % 2) on, and
// bits 2 g and 2 g + 1 of the half's upper bytes. Values d scale (q - 32).
void unpack_q6_k(const uint8_t* block, float* out) {
  const float d = load_f16(block + 208);
  for (int group = 0; group < kLarge / kGroup; ++group) {
    const int half = group / 4, quarter = group % 4;
    const uint8_t* lower = block + half * 64 + quarter % 2 * kGroup;
    const uint8_t* upper = block + 128 + half * kGroup;
    const int shift = quarter / 2 * 4;
    for (int i = 0; i < kGroup; ++i) {
      const auto scale = static_cast<int8_t>(block[192 + group * 2 + i / 16]);
      const int q = (lower[i] >> shift & 15) | (upper[i] >> 2 * quarter & 3) << 4;
      *out++ = d * static_cast<float>(scale) * static_cast<float>(q - 32);
    }
  }
}

void unpack_f32(const uint8_t* block, float* out) { *out = load<float>(block); }
void unpack_f16(const uint8_t* block, float* out) { *out = load_f16(block); }
void unpack_bf16(const uint8_t* block, float* out) { *out = bf16_to_f32(load<uint16_t>(block)); }

template <void (*kUnpack)(const uint8_t*, float*)>
void unpack_each(const FormatRow& layout, const uint8_t* block, std::span<float> out) {
  for (std::size_t first = 0; first < out.size(); first += static_cast<std::size_t>(layout.values)) {
    kUnpack(block, &out[first]);
    block += layout.bytes;
  }
}

using Unpacker = void (*)(const FormatRow& layout, const uint8_t* block, std::span<float> out);

// In the order of BlockFormat.
constexpr std::array<Unpacker, kFormats.size()> kUnpackers = {
    unpack_each<unpack_f32>,  unpack_each<unpack_f16>,  unpack_each<unpack_bf16>, unpack_each<unpack_q4_0>,
    unpack_each<unpack_q4_1>, unpack_each<unpack_q5_0>, unpack_each<unpack_q5_1>, unpack_each<unpack_q8_0>,
    unpack_each<unpack_q4_k>, unpack_each<unpack_q5_k>, unpack_each<unpack_q6_k>};

}  // namespace

std::string_view block_format_name(BlockFormat format) { return row(format).name; }

std::optional<BlockFormat> block_format_from_number(uint32_t number) {
  const auto found = std::find_if(kFormats.begin(), kFormats.end(),
                                  [number](const FormatRow& format) { return format.number == number; });
  return found == kFormats.end() ? std::nullopt : std::optional(found->format);
}

std::string block_format_names() {
  std::string names;
  for (const FormatRow& format : kFormats) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : ", ", format.name, format.number);
  }
  return names;
}

int64_t block_values(BlockFormat format) { return row(format).values; }

std::size_t block_bytes(BlockFormat format) { return row(format).bytes; }

void unpack_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<float> out) {
  const FormatRow& layout = row(format);
  const auto values = static_cast<std::size_t>(layout.values);
  KV_CHECK(out.size() % values == 0 && blocks.size() == out.size() / values * layout.bytes);
  kUnpackers[static_cast<std::size_t>(format)](layout, reinterpret_cast<const uint8_t*>(blocks.data()), out);
}

}  // namespace kv
