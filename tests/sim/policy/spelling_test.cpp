#include "sim/policy/spelling.h"

#include <gtest/gtest.h>

#include <vector>

namespace kv {
namespace {

TEST(Spelling, CountsSwappedNeighboursOnceAndLeavesStrangersAlone) {
  const std::vector<std::string> words = {"run", "report", "record"};
  EXPECT_EQ(nearest("rnu", words), "run");
  EXPECT_EQ(nearest("reprot", words), "report");
  EXPECT_EQ(nearest("inspect", words), "");
  EXPECT_EQ(nearest("", words), "");
}

TEST(Spelling, AHintIsPartOfALineOrNothing) {
  const std::vector<std::string> words = {"budget", "interval"};
  EXPECT_EQ(did_you_mean("bugdet", words), ", did you mean 'budget'?");
  EXPECT_EQ(did_you_mean("tokens", words), "");
}

TEST(Spelling, WhatAnErrorShowsIsOneLineOfBoundedLength) {
  EXPECT_EQ(shown("a\nb\x7f"), "a?b?");
  EXPECT_EQ(shown(std::string(61, 'x')), std::string(60, 'x') + "...");
}

}  // namespace
}  // namespace kv
