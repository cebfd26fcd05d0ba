#include "kernels/random_normal.h"

#include <cmath>

#include "tests/support/close.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

KV_OVER_BACKENDS(Ops, RandomNormal);

// SplitMix64's output number `index` as its authors write it: the state moves on, one output a call.
uint64_t splitmix64(uint64_t seed, int64_t index) {
  uint64_t z = 0;
  for (int64_t i = 0; i <= index; ++i) {
    seed += 0x9e3779b97f4a7c15u;
    z = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z = z ^ (z >> 31);
  }
  return z;
}

double normal(uint64_t seed, int64_t index) {
  int sum = 0;
  for (uint64_t bits = splitmix64(seed, index); bits > 0; bits >>= 8) sum += static_cast<int>(bits & 0xff);
  return (sum - 8 * 127.5) / std::sqrt(8 * (256.0 * 256 - 1) / 12);
}

std::vector<float> drawn(Backend& backend, const RandomNormalArgs& args) {
  Tensor values(backend, backend.activation_type(), args.count);
  RandomNormalArgs drawn_args = args;
  drawn_args.output = values.ref();
  backend.random_normal(drawn_args);
  return ref::download_activations(values);
}

TEST_P(RandomNormal, MatchesTheReference) {
  KV_BACKEND_OR_SKIP(backend);
  EXPECT_EQ(splitmix64(0, 0), 0xe220a8397b1dcdafu);  // the published first output of seed 0
  for (const int64_t count : {0, 1, 255, 256, 257, 2047, 2048, 2049}) {
    const std::vector<float> got = drawn(*backend, {.count = count, .seed = 7, .first = 3, .sigma = 0.02f});
    ASSERT_EQ(std::ssize(got), count);
    for (int64_t i = 0; i < count; ++i) {
      // The constant, the quotient sigma / deviation, the product.
      const double want = 0.02 * normal(7, 3 + i);
      ASSERT_TRUE(ref::is_close(got[static_cast<size_t>(i)], want,
                                {.roundings = 4 + ref::storage_roundings(*backend), .magnitude = std::abs(want)}))
          << "element " << i;
    }
  }
}

TEST_P(RandomNormal, PiecesMakeTheSameWhole) {
  KV_BACKEND_OR_SKIP(backend);
  const std::vector<float> whole = drawn(*backend, {.count = 100000, .seed = 1});
  const std::vector<float> tail = drawn(*backend, {.count = 100000 - 65537, .seed = 1, .first = 65537});
  EXPECT_EQ(std::vector<float>(whole.begin() + 65537, whole.end()), tail);
  EXPECT_NE(whole, drawn(*backend, {.count = 100000, .seed = 2}));
}

TEST_P(RandomNormal, HasTheMomentsOfANormal) {
  KV_BACKEND_OR_SKIP(backend);
  constexpr int64_t kCount = 1 << 20;
  double sum = 0, squares = 0, fourth = 0;
  for (const float x : drawn(*backend, {.count = kCount, .seed = 5, .sigma = 3})) {
    sum += x;
    squares += double{x} * x;
    fourth += std::pow(double{x}, 4);
  }
  // Five standard errors of each moment over 2^20 draws; bf16 widens the spread by less than that.
  EXPECT_NEAR(sum / kCount / 3, 0, 5.0 / 1024);
  EXPECT_NEAR(squares / kCount / 9, 1, 5 * 1.42 / 1024);
  EXPECT_NEAR(fourth / kCount / 81, 3 - 0.15, 5 * 9.8 / 1024);
}

TEST(RandomNormalBits, AreTheSameOnEveryBackend) {
  std::vector<std::vector<float>> all;
  for (const std::string& name : ref::backend_names()) {
    const auto backend = ref::try_backend(name);
    if (!backend) continue;
    Tensor values(*backend, DType::kF32, 5000);
    backend->random_normal({.output = values.ref(), .count = 5000, .seed = 11, .sigma = 0.02f});
    all.push_back(ref::download_array<float>(values));
  }
  if (all.size() < 2) GTEST_SKIP() << "one backend only";
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace kv
