#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The formats of a GGUF file's tensors that are read. A row is cut into blocks of equally many values; a block of a
// quantised format holds small integers q, and a scale d (mostly with an offset m or minimum) in f16. The layouts are
// those that ggml defines (docs/gguf.md of its repository, and the block structures of its ggml-common.h).

namespace kv {

enum class BlockFormat { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

std::string_view block_format_name(BlockFormat format);  // as GGUF tools spell it: "Q4_K"
std::optional<BlockFormat> block_format_from_number(uint32_t number);
// "F32 (0), F16 (1), …", for messages.
std::string block_format_names();
int64_t block_values(BlockFormat format);  // 1, 32 or 256
std::size_t block_bytes(BlockFormat format);

// Unpacks whole blocks: out.size() is a multiple of block_values(format), and `blocks` holds exactly their bytes, at
// any alignment. Exact: every product of a scale and an integer fits a float, so the only rounding is that of adding an
// offset. A scale that is not finite gives values that are not.
void unpack_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace kv
