#include "sim/source/model_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "kernels/error.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "tests/support/largest.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

const std::filesystem::path kData = ref::source_path("tests/data");

double largest_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_GE(got.size(), want.size());
  std::vector<double> errors(want.size());
  for (size_t i = 0; i < want.size(); ++i) errors[i] = static_cast<double>(got.at(i)) - static_cast<double>(want[i]);
  return ref::largest(errors);
}

std::vector<int32_t> llama_ids(size_t count) {
  const auto expected = SafetensorsFile::open(kData / "llama/expected.safetensors");
  auto ids = expected.read_i32(expected.require("input_ids"));
  ids.resize(count);
  return ids;
}

// Chunks and batches are only ways of computing the same thing.
TEST(ModelSource, BlocksAndBatchesDoNotChangeLosses) {
  const auto backend = make_backend("cpu");
  const ModelFiles weights = load_model(kData / "llama");
  ModelSource source(*backend, weights);
  const auto longer = llama_ids(200);
  const auto shorter = llama_ids(77);
  const std::span<const int32_t> alone[] = {longer};
  const std::span<const int32_t> together[] = {shorter, longer};
  const Baseline first = compute_baseline(*backend, source, alone, {});
  const Baseline second = compute_baseline(*backend, source, together, {.statistics_block = 16, .block_sums = true});
  ASSERT_EQ(second.nll[1].size(), first.nll[0].size());
  EXPECT_LE(largest_error(second.nll[1], first.nll[0]), 1e-5);
  EXPECT_EQ(second.nll[0].size(), 77u);
  EXPECT_EQ(second.nll[0].back(), 0.0f) << "the last token predicts nothing that is known";
  const std::vector<float> prefix(first.nll[0].begin(), first.nll[0].begin() + 76);
  EXPECT_LE(largest_error(second.nll[0], prefix), 1e-5);
}

TEST(ModelSource, RefusesIdsOutsideTheVocabulary) {
  const auto backend = make_backend("cpu");
  const ModelFiles weights = load_model(kData / "llama");
  ModelSource source(*backend, weights);
  const std::vector<int32_t> ids = {1, 2, 1024};
  const std::span<const int32_t> sequences[] = {ids};
  try {
    source.begin(sequences);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "llama model: token id 1024 at position 2 is outside the vocabulary of 1024");
  }
}

}  // namespace
}  // namespace kv
