#include "harness/ranks/finished_pieces.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

TEST(FinishedPieces, AreThoseOfAllWhoSaidSo) {
  const FinishedPiece piece{.prompts = {"a", "b"}, .keys = {"c"}}, other{.prompts = {}, .keys = {"d", "e"}};
  FinishedPieces ours, theirs;
  ours.add(0, 16, piece);
  theirs.add(0, 0, other);
  theirs.add(3, 16, piece);
  ours.merge(theirs.text());
  ours.merge(FinishedPieces().text());
  ASSERT_NE(ours.find(0, 16), nullptr);
  ASSERT_NE(ours.find(0, 0), nullptr);
  ASSERT_NE(ours.find(3, 16), nullptr);
  EXPECT_EQ(*ours.find(0, 16), piece);
  EXPECT_EQ(*ours.find(0, 0), other);
  EXPECT_EQ(*ours.find(3, 16), piece);
  EXPECT_EQ(ours.find(1, 16), nullptr);
  EXPECT_EQ(ours.find(3, 0), nullptr);
}

}  // namespace
}  // namespace kv
