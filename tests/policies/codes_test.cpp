// What released codes (kvpress, R-KV) make of the cache of the tiny Llama: tests/data/codes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/replay/compress.h"
#include "sim/source/model_source.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

constexpr size_t kTokens = 400;
// Keys, values and queries are f32 results of another implementation's layers before.
constexpr float kTolerance = 1e-5F;

SafetensorsFile expected_file() { return ref::open_packed("tests/data/codes/tiny.safetensors"); }

std::vector<float> expected_scores(const std::string& code) {
  const SafetensorsFile file = expected_file();
  return file.read_f32(file.require(code + ".score"));
}

// Compressed to half of the tokens.
CompressResult compressed(const std::string& policy_name, const std::vector<GivenParam>& options) {
  const auto backend = make_backend("cpu");
  ModelSource source(*backend, load_model(ref::source_path("tests/data/llama")));
  const auto inputs = SafetensorsFile::open(ref::source_path("tests/data/llama/expected.safetensors"));
  Policy policy = make_policy(policy_name, options);
  return compress(*backend, source, policy, inputs.read_i32(inputs.require("input_ids")), 0.5);
}

float largest_of(const std::vector<float>& scores) {
  float largest = 0;
  for (const float score : scores) largest = std::max(largest, std::abs(score));
  return largest;
}

// Of the first entries of each head, as many as the code scores.
void expect_same(const CompressResult& result, const std::vector<float>& want) {
  const size_t rows = result.score.size() / kTokens, scored = want.size() / rows;
  const float tolerance = kTolerance * largest_of(want);
  for (size_t i = 0; i < want.size(); ++i) {
    const float got = result.score[i / scored * kTokens + i % scored];
    ASSERT_TRUE(std::abs(got - want[i]) <= tolerance)
        << "head " << i / scored << ", token " << i % scored << ": got " << got << ", want " << want[i];
  }
}

TEST(KvpressCode, KnormScoresAgree) { expect_same(compressed("knorm", {}), expected_scores("knorm")); }

TEST(KvpressCode, LagKvSharesAgree) {
  expect_same(compressed("lagkv", {{"lag", "64", ""}, {"cross", "yes", ""}}), expected_scores("lagkv_l64_cross"));
}

TEST(KvpressCode, LagKvOfAShortContextAgrees) {
  expect_same(compressed("lagkv", {{"lag", "256", ""}}), expected_scores("lagkv_l256"));
}

// Two entries whose shares lie closer than the layers before compute alike may change places: a rank apart.
TEST(KvpressCode, LagKvRanksAgree) {
  const CompressResult result = compressed("lagkv", {{"lag", "64", ""}});
  const std::vector<float> want = expected_scores("lagkv_l64");
  int64_t moved = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const float apart = std::abs(result.score[i] - want[i]);
    ASSERT_LE(apart, 1.0F / 64) << i;
    moved += apart > 0 ? 1 : 0;
  }
  EXPECT_LE(moved, std::ssize(want) / 100);
}

// The code keeps what torch.topk returns, whose choice among equal scores is not stated: the sets are the same but for
// tokens that score as the last one kept does. Returns how many differ.
int64_t expect_same_sets(const CompressResult& result, const std::string& code) {
  const SafetensorsFile file = expected_file();
  const auto want_keep = file.bytes(file.require(code + ".keep"));
  const std::vector<float> want = expected_scores(code);
  const size_t rows = result.keep.size() / kTokens, scored = want.size() / rows;
  int64_t different = 0;
  for (size_t row = 0; row < rows; ++row) {
    float cut = INFINITY;
    for (size_t j = 0; j < scored; ++j) {
      if (want_keep[row * kTokens + j] != std::byte{0}) cut = std::min(cut, want[row * scored + j]);
    }
    for (size_t j = 0; j < kTokens; ++j) {
      if (result.keep[row * kTokens + j] == static_cast<uint8_t>(want_keep[row * kTokens + j])) continue;
      ++different;
      EXPECT_TRUE(j < scored && std::abs(want[row * scored + j] - cut) <= kTolerance * largest_of(want))
          << "head " << row << ", token " << j;
    }
  }
  return different;
}

TEST(RKvCode, ScoresAndSetsAgree) {
  for (const char* lambda : {"0.1", "0.07"}) {
    SCOPED_TRACE(lambda);
    const CompressResult result = compressed("r-kv", {{"lambda", lambda, ""}});
    expect_same(result, expected_scores(std::string("r_kv_") + lambda));
    EXPECT_EQ(expect_same_sets(result, std::string("r_kv_") + lambda), 0);
  }
}

// Max-pooling makes plateaus, and one of them lies at the cut: there the two codes may choose otherwise.
TEST(RKvCode, SnapKvScoresAgreeAndSetsUpToTies) {
  const CompressResult result = compressed("snapkv", {});
  expect_same(result, expected_scores("r_kv_1"));
  expect_same_sets(result, "r_kv_1");
}

}  // namespace
}  // namespace kv
