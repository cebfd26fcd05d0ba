#include "sim/io/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kv {
namespace {

// The examples of NIST's FIPS 180 test vectors.
TEST(Sha256, AgreesWithTheNistVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(
      sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                 "mnopqrstnopqrstu"),
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around the 56 bytes that fit one padded block and the 64 of a block; pieces that end anywhere in a block.
TEST(Sha256, DependsOnTheBytesNotOnThePieces) {
  for (const std::size_t length : {1u, 55u, 56u, 57u, 63u, 64u, 65u, 119u, 120u, 128u, 300u}) {
    std::string text(length, '\0');
    for (std::size_t i = 0; i < length; ++i) text[i] = static_cast<char>(i * 7);
    for (const std::size_t piece : {1u, 3u, 64u, 100u}) {
      Sha256 hash;
      for (std::size_t at = 0; at < length; at += piece) hash.update(std::string_view(text).substr(at, piece));
      EXPECT_EQ(hash.hex(), sha256_hex(text)) << length << " bytes in pieces of " << piece;
    }
  }
}

// The code for any processor, and where this one has instructions for it, these.
TEST(Sha256, EveryWayToTakeBlocksGivesTheSame) {
  std::vector<Sha256Blocks> ways = {sha256_blocks};
  if (const Sha256Blocks instructions = sha256_instructions()) ways.push_back(instructions);
  // "abc", padded to a block, and NIST's digest of it.
  std::vector<std::byte> abc(64);
  for (const int i : {0, 1, 2}) abc[static_cast<size_t>(i)] = static_cast<std::byte>('a' + i);
  abc[3] = std::byte{0x80};
  abc[63] = std::byte{24};
  const Sha256State digest{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223,
                           0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
  std::vector<std::byte> bytes(64 * 9);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i * 31 + i / 7);
  for (const Sha256Blocks take : ways) {
    Sha256State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    take(state, abc.data(), 1);
    EXPECT_EQ(state, digest);
    for (const std::size_t blocks : {0u, 1u, 2u, 9u}) {
      Sha256State expected{1, 2, 3, 4, 0xfffffff0u, 6, 7, 8}, other = expected;
      sha256_blocks(expected, bytes.data(), blocks);
      take(other, bytes.data(), blocks);
      EXPECT_EQ(other, expected) << blocks;
    }
  }
}

TEST(Sha256, CanBeReadBeforeTheEnd) {
  Sha256 hash;
  hash.update("ab");
  EXPECT_EQ(hash.hex(), sha256_hex("ab"));
  hash.update("c");
  EXPECT_EQ(hash.hex(), sha256_hex("abc"));
}

}  // namespace
}  // namespace kv
