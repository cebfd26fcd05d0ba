#include "sim/gzip.h"

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "sim/random.h"

namespace kv {
namespace {

std::string error_of(const std::string& packed, std::size_t limit = kGzipLimit) {
  try {
    gunzip(packed, "f.gz", limit);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string noise(int size) {
  Random random(7);
  std::string out;
  for (int i = 0; i < size; ++i) out += static_cast<char>(random.below(256));
  return out;
}

TEST(Gzip, RoundTripsFromNothingToManyBuffers) {
  for (const std::string& content :
       {std::string(), std::string("a"), std::string(1 << 16, 'z'), std::string((1 << 16) + 1, '\0'), noise(300000)}) {
    EXPECT_EQ(gunzip(gzip(content, "f"), "f.gz"), content) << content.size();
  }
}

TEST(Gzip, ReadsWhatGzipWrote) {
  // printf 'kv\n' | gzip -9n: header, one fixed Huffman block, CRC-32, size.
  const unsigned char file[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xcb, 0x2e,
                                0xe3, 0x02, 0x00, 0xbd, 0xca, 0x73, 0x22, 0x03, 0x00, 0x00, 0x00};
  const std::string packed(reinterpret_cast<const char*>(file), sizeof(file));
  EXPECT_EQ(gunzip(packed, "f.gz"), "kv\n");
}

TEST(Gzip, HeaderHoldsNoTimeAndNoName) {
  const std::string packed = gzip("rows", "f");
  EXPECT_EQ(packed.substr(0, 3), "\x1f\x8b\x08");
  EXPECT_EQ(packed.substr(3, 6), std::string("\0\0\0\0\0\2", 6));  // flags, four bytes of time, level 9
  EXPECT_EQ(gzip("rows", "other"), packed);
}

TEST(Gzip, EveryTruncationIsAnError) {
  const std::string packed = gzip("a,b\n1,2\n1,2\n1,2\n", "f");
  for (std::size_t size = 0; size < packed.size(); ++size)
    EXPECT_EQ(error_of(packed.substr(0, size)), "f.gz: truncated gzip, expected more bytes") << size;
}

TEST(Gzip, EveryBrokenByteOfContentAndChecksumIsAnError) {
  constexpr std::size_t kHeader = 10;  // its time and flags may differ without harm
  const std::string packed = gzip("a,b\n1,2\n1,2\n1,2\n", "f");
  for (std::size_t at = kHeader; at < packed.size(); ++at) {
    std::string broken = packed;
    broken[at] = static_cast<char>(broken[at] ^ 0x10);
    const std::string error = error_of(broken);
    EXPECT_TRUE(error.starts_with("f.gz: broken gzip: ") || error.starts_with("f.gz: truncated gzip")) << at << error;
  }
  EXPECT_EQ(error_of("a,b\n1,2\n"), "f.gz: broken gzip: incorrect header check");
  EXPECT_EQ(error_of(packed + "x"), "f.gz: broken gzip: bytes after its end, expected one member");
}

TEST(Gzip, UnpacksNoMoreThanItsLimit) {
  const std::string packed = gzip(std::string(1 << 20, 'z'), "f");
  EXPECT_LT(packed.size(), 2000u);
  EXPECT_EQ(gunzip(packed, "f.gz", 1 << 20).size(), std::size_t{1} << 20);
  EXPECT_EQ(error_of(packed, (1 << 20) - 1), "f.gz: unpacks to more than 1048575 bytes");
}

}  // namespace
}  // namespace kv
