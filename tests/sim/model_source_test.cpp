#include "sim/model_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "kernels/error.h"
#include "sim/baseline.h"
#include "sim/replay.h"
#include "sim/safetensors.h"
#include "tests/ref/paths.h"

namespace kv {
namespace {

const std::filesystem::path kData = ref::source_path("tests/data");
const std::filesystem::path kReference = ref::source_path("experiments/models/reference");

struct Scored {
  std::vector<float> nll, entropy, logits;
};

Scored full_pass(const std::filesystem::path& model, const std::vector<int32_t>& ids, int logits_tail) {
  const auto backend = make_backend("cpu");
  const ModelFiles weights = load_model(model);
  ModelSource source(*backend, weights);
  source.keep_logits_tail(logits_tail);
  const std::span<const int32_t> sequences[] = {ids};
  const Baseline baseline = compute_baseline(*backend, source, sequences, {});
  return {baseline.nll[0], baseline.entropy[0], source.logits_tail(0)};
}

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

double largest_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_GE(got.size(), want.size());
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(error <= most)) most = error;  // keeps NaN
  }
  return most;
}

// Against transformers in f32 (tests/data/README.md): logits within 1e-4 relative, nll within 1e-4.
class Parity : public ::testing::TestWithParam<const char*> {};

TEST_P(Parity, LogitsAndLossesAgreeWithTransformers) {
  const auto folder = kData / GetParam();
  const auto expected = SafetensorsFile::open(folder / "expected.safetensors");
  const auto ids = expected.read_i32(expected.require("input_ids"));
  const auto logits = expected.read_f32(expected.require("logits_tail"));
  const Scored scored = full_pass(folder, ids, 16);
  ASSERT_EQ(scored.logits.size(), logits.size());
  EXPECT_LE(largest_error(scored.logits, logits), 1e-4 * largest(logits));
  EXPECT_LE(largest_error(scored.nll, expected.read_f32(expected.require("nll"))), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, ::testing::Values("llama", "qwen3"));

// The reference model on 4096 tokens of a book and of code.
class SlowReferenceParity : public ::testing::TestWithParam<const char*> {};

TEST_P(SlowReferenceParity, LossesAndEntropiesAgreeWithTransformers) {
  const auto expected = SafetensorsFile::open(kData / "reference/expected.safetensors");
  const auto tensor = [&](const char* what) { return expected.require(std::string(GetParam()) + what); };
  const auto ids = expected.read_i32(tensor(".input_ids"));
  const auto nll = expected.read_f32(tensor(".nll"));
  const Scored scored = full_pass(kReference, ids, 4);
  EXPECT_LE(largest_error(scored.nll, nll), 1e-3);
  EXPECT_LE(largest_error(scored.entropy, expected.read_f32(tensor(".entropy"))), 1e-3);
  const double mean = std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(nll.size());
  const double got = std::accumulate(scored.nll.begin(), scored.nll.begin() + static_cast<int64_t>(nll.size()), 0.0) /
                     static_cast<double>(nll.size());
  EXPECT_LE(std::abs(got - mean), 1e-5);
  const auto logits = expected.read_f32(tensor(".logits_tail"));
  EXPECT_LE(largest_error(scored.logits, logits), 1e-4 * largest(logits));
}

INSTANTIATE_TEST_SUITE_P(Texts, SlowReferenceParity, ::testing::Values("book0", "code0"));

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
  const Baseline one = compute_baseline(*backend, source, alone, {});
  const Baseline two = compute_baseline(*backend, source, together, {.statistics_block = 16, .block_sums = true});
  ASSERT_EQ(two.nll[1].size(), one.nll[0].size());
  EXPECT_LE(largest_error(two.nll[1], one.nll[0]), 1e-5);
  EXPECT_EQ(two.nll[0].size(), 77u);
  EXPECT_EQ(two.nll[0].back(), 0.0f) << "the last token predicts nothing that is known";
  const std::vector<float> prefix(one.nll[0].begin(), one.nll[0].begin() + 76);
  EXPECT_LE(largest_error(two.nll[0], prefix), 1e-5);
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
