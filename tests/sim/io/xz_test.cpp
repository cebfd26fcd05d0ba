#include "sim/io/xz.h"

#include <gtest/gtest.h>
#include <lzma.h>

#include "kernels/error.h"
#include "sim/tasks/random.h"
#include "tests/support/address_space.h"

namespace kv {
namespace {

std::string error_of(const std::string& packed, std::size_t limit = kUnpackLimit) {
  try {
    unxz(packed, "f.xz", limit);
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

TEST(Xz, RoundTripsFromNothingToManyBuffers) {
  for (const std::string& content :
       {std::string(), std::string("a"), std::string(1 << 16, 'z'), std::string((1 << 16) + 1, '\0'), noise(300000)}) {
    EXPECT_EQ(unxz(xz(content), "f.xz"), content) << content.size();
  }
}

TEST(Xz, ReadsWhatXzWrote) {
  // printf 'kv\n' | xz --check=crc32
  const unsigned char file[] = {0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00,
                                0x21, 0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00, 0x02, 0x6b,
                                0x76, 0x0a, 0x00, 0x00, 0xbd, 0xca, 0x73, 0x22, 0x00, 0x01, 0x17, 0x03, 0x07, 0x60,
                                0x0c, 0xbc, 0x90, 0x42, 0x99, 0x0d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a};
  EXPECT_EQ(unxz({reinterpret_cast<const char*>(file), sizeof(file)}, "f.xz"), "kv\n");
}

TEST(Xz, DependsOnTheContentAlone) {
  const std::string packed = xz("rows");
  EXPECT_EQ(packed.substr(0, 6), std::string("\xfd"
                                             "7zXZ\0",
                                             6));
  EXPECT_EQ(xz("rows"), packed);
}

TEST(Xz, EveryTruncationIsAnError) {
  const std::string packed = xz("a,b\n1,2\n1,2\n1,2\n");
  for (std::size_t size = 0; size < packed.size(); ++size)
    EXPECT_EQ(error_of(packed.substr(0, size)), "f.xz: truncated xz, expected more bytes") << size;
}

TEST(Xz, EveryBrokenByteIsAnError) {
  const std::string packed = xz("a,b\n1,2\n1,2\n1,2\n");
  for (std::size_t at = 0; at < packed.size(); ++at) {
    std::string broken = packed;
    broken[at] = static_cast<char>(broken[at] ^ 0x10);
    const std::string error = error_of(broken);
    EXPECT_TRUE(error.starts_with("f.xz: broken xz: ") || error.starts_with("f.xz: truncated xz")) << at << error;
  }
  EXPECT_EQ(error_of("a,b\n1,2\n1,2\n"), "f.xz: broken xz: no xz file");
  EXPECT_EQ(error_of(packed + "x"), "f.xz: broken xz: bytes after its end, expected one stream");
}

TEST(Xz, UnpacksNoMoreThanItsLimit) {
  const std::string packed = xz(std::string(1 << 20, 'z'));
  EXPECT_LT(packed.size(), 2000u);
  EXPECT_EQ(unxz(packed, "f.xz", 1 << 20).size(), std::size_t{1} << 20);
  EXPECT_EQ(error_of(packed, (1 << 20) - 1), "f.xz: unpacks to more than 1048575 bytes");
}

// Refused before it takes the memory, not afterwards: eight kilobytes that stand for fifty million bytes.
TEST(Xz, ABombNeverTakesTheMemoryThatItAsksFor) {
  constexpr std::size_t kUnpacked = 50'000'000;
  const std::string zeros(kUnpacked, '\0');
  std::string bomb(20'000, '\0');
  std::size_t size = 0;
  const lzma_ret packed = lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, nullptr,  // preset 0, which is quick
                                                  reinterpret_cast<const uint8_t*>(zeros.data()), zeros.size(),
                                                  reinterpret_cast<uint8_t*>(bomb.data()), &size, bomb.size());
  ASSERT_EQ(packed, LZMA_OK);
  bomb.resize(size);
  EXPECT_LT(size, 10'000u);
  const ref::AddressSpaceLimit limit(16'000'000);
  EXPECT_EQ(error_of(bomb, 1'000'000), "f.xz: unpacks to more than 1000000 bytes");
}

}  // namespace
}  // namespace kv
