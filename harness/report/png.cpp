#include "harness/report/png.h"

#include <lzma.h>

#include <algorithm>

#include "kernels/check.h"

namespace kv {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  return out;
}

std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto crc = lzma_crc32(reinterpret_cast<const std::uint8_t*>(body.data()), body.size(), 0);
  return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(crc);
}

// Deflate (RFC 1951) with the fixed codes. Repetitions are looked for at two distances only, the pixel before and the
// line above, which is where a picture repeats itself.
class Deflater {
 public:
  std::string compress(const std::string& bytes, std::size_t stride) {
    put(1, 1);  // the last block
    put(1, 2);  // fixed codes
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t near = repeated(bytes, at, 1), above = repeated(bytes, at, stride);
      const std::size_t length = std::max(near, above);
      if (length < 4) {
        put_symbol(static_cast<unsigned char>(bytes[at++]));
        continue;
      }
      put_match(static_cast<int>(length), static_cast<int>(near >= above ? 1 : stride));
      at += length;
    }
    put_symbol(256);  // the end
    if (used_ > 0) out_ += static_cast<char>(byte_);
    return out_;
  }

 private:
  static std::size_t repeated(const std::string& bytes, std::size_t at, std::size_t distance) {
    if (at < distance || distance > 32768) return 0;
    std::size_t length = 0;
    while (length < 258 && at + length < bytes.size() && bytes[at + length] == bytes[at + length - distance]) ++length;
    return length;
  }
  void put(unsigned value, int bits) {
    for (int i = 0; i < bits; ++i) {
      byte_ |= (value >> i & 1) << used_;
      if (++used_ < 8) continue;
      out_ += static_cast<char>(byte_);
      byte_ = 0;
      used_ = 0;
    }
  }
  void put_code(unsigned code, int bits) {  // Huffman codes start with their highest bit
    for (int i = bits - 1; i >= 0; --i) put(code >> i & 1, 1);
  }
  void put_symbol(unsigned symbol) {
    if (symbol < 144) return put_code(0x30 + symbol, 8);
    if (symbol < 256) return put_code(0x190 + symbol - 144, 9);
    if (symbol < 280) return put_code(symbol - 256, 7);
    put_code(0xc0 + symbol - 280, 8);
  }
  // The table of RFC 1951, 3.2.5: codes whose number of extra bits grows every `group` codes.
  static std::array<int, 3> code_of(int value, int smallest, int group) {
    int code = 0, start = smallest, bits = 0;
    while (true) {
      bits = std::max(0, code / group - 1);
      if (value < start + (1 << bits)) return {code, value - start, bits};
      start += 1 << bits;
      ++code;
    }
  }
  void put_match(int length, int distance) {
    if (length == 258) {
      put_symbol(285);
    } else {
      const auto [code, offset, bits] = code_of(length, 3, 4);
      put_symbol(static_cast<unsigned>(257 + code));
      put(static_cast<unsigned>(offset), bits);
    }
    const auto [code, offset, bits] = code_of(distance, 1, 2);
    put_code(static_cast<unsigned>(code), 5);
    put(static_cast<unsigned>(offset), bits);
  }

  std::string out_;
  unsigned byte_ = 0;
  int used_ = 0;
};

std::string zlib(const std::string& bytes, std::size_t stride) {
  std::uint32_t a = 1, b = 0;  // Adler-32
  for (const char byte : bytes) {
    a = (a + static_cast<unsigned char>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  return "\x78\x01" + Deflater().compress(bytes, stride) + big_endian(b << 16 | a);
}

}  // namespace

std::string to_png(const Raster& raster) {
  KV_CHECK(raster.columns > 0 && raster.palette.size() < 255);
  std::string palette;
  for (const Color& color : raster.palette) {
    for (const std::uint8_t part : {color.red, color.green, color.blue}) palette += static_cast<char>(part);
  }
  palette += "\xff\xff\xff";  // blank
  const std::size_t blank = raster.palette.size();
  std::string lines;
  for (int row = 0; row < raster.rows(); ++row) {
    lines += '\0';  // no filter
    for (int column = 0; column < raster.columns; ++column) {
      const std::uint8_t cell = raster.cells[static_cast<std::size_t>(row * raster.columns + column)];
      lines += static_cast<char>(cell == Raster::kBlank ? blank : cell);
    }
  }
  const std::string header = big_endian(static_cast<std::uint32_t>(raster.columns)) +
                             big_endian(static_cast<std::uint32_t>(raster.rows())) + std::string("\x08\x03\0\0\0", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("PLTE", palette) +
         chunk("tRNS", std::string(blank, '\xff') + '\0') +
         chunk("IDAT", zlib(lines, static_cast<std::size_t>(raster.columns) + 1)) + chunk("IEND", "");
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

}  // namespace kv
