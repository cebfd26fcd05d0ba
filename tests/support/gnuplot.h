#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

// First line of a test or SetUp that draws. The test is skipped where the environment has KV_WITHOUT_GNUPLOT (GPU
// machines, tests/gpu/run_tests.sh); everywhere else a missing gnuplot fails it.
#define KV_NEEDS_GNUPLOT() \
  if (std::getenv("KV_WITHOUT_GNUPLOT")) GTEST_SKIP() << "gnuplot is not here"
