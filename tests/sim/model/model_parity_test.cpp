#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/policy/baseline.h"
#include "sim/replay/baseline_pass.h"
#include "sim/source/model_source.h"
#include "sim/tasks/random.h"
#include "tests/ref/naive_model.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_model.h"
#include "tests/support/largest.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

// Whole forward passes against other implementations (tests/data/README.md), on every backend. One that computes in f32
// has a tolerance of its own. One that stores bf16 must lie as near to the f32 result as another bf16 run does: its
// mean error is at most 1.25 times that one's. 400 errors of normal distribution have a mean magnitude that is right
// within 4 %, so the ratio of two such runs that are equally good is 1 ± 0.05.
namespace kv {
namespace {

constexpr double kBf16Ratio = 1.25;

const std::filesystem::path kData = ref::source_path("tests/data");

// What the full pass gives.
struct Scored {
  std::vector<float> nll, entropy, logits;  // [T], [T], [tail, vocab]
};

Scored full_pass(Backend& backend, const Weights& weights, const std::vector<int32_t>& ids, int logits_tail) {
  ModelSource source(backend, weights);
  source.keep_logits_tail(logits_tail);
  const std::span<const int32_t> sequences[] = {ids};
  const Baseline baseline = compute_baseline(backend, source, sequences, {});
  return {baseline.nll[0], baseline.entropy[0], source.logits_tail(0)};
}

std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// Errors of the first values of `got`, as many as are wanted. Keeps NaN.
template <class Value>
std::vector<double> errors(const std::vector<Value>& got, const std::vector<double>& want) {
  EXPECT_GE(got.size(), want.size());
  std::vector<double> all(want.size());
  for (size_t i = 0; i < want.size(); ++i) all[i] = std::abs(static_cast<double>(got.at(i)) - want[i]);
  return all;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// A backend by name, and what runs on it.
class OnBackend : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = ref::try_backend(std::get<0>(GetParam()));
    if (!backend_) GTEST_SKIP() << std::get<0>(GetParam()) << " is not here";
  }
  const std::string& what() const { return std::get<1>(GetParam()); }
  bool stores_bf16() const { return backend_->activation_type() == DType::kBF16; }

  std::unique_ptr<Backend> backend_;
};

auto on_every_backend(std::initializer_list<const char*> what) {
  const std::vector<std::string> names(what.begin(), what.end());
  return ::testing::Combine(::testing::ValuesIn(ref::backend_names()), ::testing::ValuesIn(names));
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
}

// A tiny model with random weights of one family, and its f32 result on 400 random tokens.
struct Known {
  std::unique_ptr<Weights> weights;
  std::vector<int32_t> ids;
  std::vector<double> nll, logits;  // [T − 1], [kTail, vocab]
};

constexpr int kTail = 16;

// The result of transformers.
Known stored_result(const std::string& family) {
  const auto expected = SafetensorsFile::open(kData / family / "expected.safetensors");
  return {.weights = std::make_unique<ModelFiles>(kData / family),
          .ids = expected.read_i32(expected.require("input_ids")),
          .nll = doubles(expected.read_f32(expected.require("nll"))),
          .logits = doubles(expected.read_f32(expected.require("logits_tail")))};
}

// Families of which no result of others is stored: biases on q, k and v, and one matrix for both embeddings; heads that
// are wider than the model, under a sliding window that is not reached.
const std::map<std::string, std::string>& configs() {
  static const std::string shape = R"("hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 8,
      "num_key_value_heads": 2, "intermediate_size": 320, "vocab_size": 512, "max_position_embeddings": 4096)";
  static const std::map<std::string, std::string> all = {
      {"qwen2", R"({"model_type": "qwen2", "rope_theta": 1000000, "tie_word_embeddings": true, )" + shape + "}"},
      {"mistral", R"({"model_type": "mistral", "head_dim": 32, "sliding_window": 512, )" + shape + "}"}};
  return all;
}

// The result of the naive model.
Known naive_result(const std::string& family) {
  Known known{.weights = std::make_unique<RandomWeights>(parse_model_config(configs().at(family), family), 1)};
  Random random(7);
  for (int i = 0; i < 400; ++i) known.ids.push_back(static_cast<int32_t>(random.below(512)));
  ref::NaiveScores scores = ref::naive_scores(*known.weights, known.ids, kTail, ref::Stored::kExact);
  known.nll = std::move(scores.nll);
  known.logits = std::move(scores.logits_tail);
  return known;
}

Known known_result(const std::string& family) {
  return configs().contains(family) ? naive_result(family) : stored_result(family);
}

class Families : public OnBackend {};

TEST_P(Families, LossesAndLogitsAgree) {
  const Known known = known_result(what());
  const Scored scored = full_pass(*backend_, *known.weights, known.ids, kTail);
  ASSERT_EQ(scored.logits.size(), known.logits.size());
  const auto nll = errors(scored.nll, known.nll), logits = errors(scored.logits, known.logits);
  if (!stores_bf16()) {
    EXPECT_LE(ref::largest(nll), 1e-4);
    EXPECT_LE(ref::largest(logits), 1e-4 * ref::largest(known.logits));
    return;
  }
  const ref::NaiveScores bf16 = ref::naive_scores(*known.weights, known.ids, kTail, ref::Stored::kBf16);
  EXPECT_LE(mean(nll), kBf16Ratio * mean(errors(bf16.nll, known.nll)));
  EXPECT_LE(mean(logits), kBf16Ratio * mean(errors(bf16.logits_tail, known.logits)));
}

INSTANTIATE_TEST_SUITE_P(Runs, Families, on_every_backend({"llama", "qwen3", "qwen2", "mistral"}), name_of);

// The same model as a GGUF file in F32: the same weights, and so the same numbers, which are near those of others.
class GgufFamilies : public OnBackend {};

TEST_P(GgufFamilies, LossesAndLogitsAreThoseOfTheFolder) {
  const Known known = known_result(what());
  const test::TempFolder folder;
  test::write_file(folder / "model.gguf", ref::gguf_of(*known.weights).bytes());
  const Scored scored = full_pass(*backend_, load_model(folder / "model.gguf"), known.ids, kTail);
  const Scored of_folder = full_pass(*backend_, *known.weights, known.ids, kTail);
  EXPECT_EQ(scored.nll, of_folder.nll);
  EXPECT_EQ(scored.logits, of_folder.logits);
  if (stores_bf16()) return;
  EXPECT_LE(ref::largest(errors(scored.nll, known.nll)), 1e-4);
  EXPECT_LE(ref::largest(errors(scored.logits, known.logits)), 1e-4 * ref::largest(known.logits));
}

INSTANTIATE_TEST_SUITE_P(Runs, GgufFamilies, on_every_backend({"llama", "qwen3", "qwen2", "mistral"}), name_of);

// What the families without a stored result are compared with.
TEST(NaiveModel, AgreesWithTransformers) {
  for (const char* family : {"llama", "qwen3"}) {
    const Known known = stored_result(family);
    const ref::NaiveScores scores = ref::naive_scores(*known.weights, known.ids, kTail, ref::Stored::kExact);
    EXPECT_LE(ref::largest(errors(scores.nll, known.nll)), 1e-4) << family;
    EXPECT_LE(ref::largest(errors(scores.logits_tail, known.logits)), 1e-4 * ref::largest(known.logits)) << family;
  }
}

// The reference model on 4096 tokens of a book and of code.
class SlowReferenceParity : public OnBackend {};

TEST_P(SlowReferenceParity, LossesAndEntropiesAgreeWithTransformers) {
  const auto expected = ref::open_packed("tests/data/reference/expected.safetensors");
  const auto tensor = [&](const char* name) { return doubles(expected.read_f32(expected.require(what() + name))); };
  const std::vector<double> nll = tensor(".nll"), logits = tensor(".logits_tail");
  const ModelFiles weights = load_model(ref::source_path("experiments/models/reference"));
  const Scored scored = full_pass(*backend_, weights, expected.read_i32(expected.require(what() + ".input_ids")), 4);
  if (stores_bf16()) {
    const auto bf16 = errors(tensor(".nll_bf16"), nll), device = errors(scored.nll, nll);
    EXPECT_LE(mean(device), kBf16Ratio * mean(bf16));
    RecordProperty("ratio", std::to_string(mean(device) / mean(bf16)));
    return;
  }
  EXPECT_LE(ref::largest(errors(scored.nll, nll)), 1e-4);
  EXPECT_LE(ref::largest(errors(scored.entropy, tensor(".entropy"))), 1e-4);
  const std::vector<double> predicted(scored.nll.begin(), scored.nll.begin() + std::ssize(nll));
  EXPECT_LE(std::abs(mean(predicted) - mean(nll)), 1e-5);
  EXPECT_LE(ref::largest(errors(scored.logits, logits)), 1e-4 * ref::largest(logits));
}

INSTANTIATE_TEST_SUITE_P(Runs, SlowReferenceParity, on_every_backend({"book0", "code0"}), name_of);

}  // namespace
}  // namespace kv
