// Scores and kept sets of kvpress on the reference model, recorded in tests/data/kvpress/expected.safetensors.xz as
// book0.<press>@<fraction removed>.{score,keep} [layers, kv_heads, tokens].

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "sim/replay/compress.h"

#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/source/model_source.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

constexpr size_t kTokens = 2048;

struct Press {
  std::string name;
  std::string removed;
  double kept;
  std::string policy;
  std::vector<GivenParam> options;
};

void PrintTo(const Press& press, std::ostream* out) { *out << press.name << "@" << press.removed; }

// The model is loaded once for all presses.
class SlowKvpress : public testing::TestWithParam<Press> {
 protected:
  static void SetUpTestSuite() {
    backend_ = make_backend("cpu").release();
    source_ = new ModelSource(*backend_, load_model(ref::source_path("experiments/models/reference")));
    const auto reference = ref::open_packed("tests/data/reference/expected.safetensors");
    ids_ = reference.read_i32(reference.require("book0.input_ids"));
    ids_.resize(kTokens);
    expected_ = new SafetensorsFile(ref::open_packed("tests/data/kvpress/expected.safetensors"));
  }
  static void TearDownTestSuite() {
    delete expected_;
    delete source_;
    delete backend_;
  }

  static inline Backend* backend_ = nullptr;
  static inline ModelSource* source_ = nullptr;
  static inline SafetensorsFile* expected_ = nullptr;
  static inline std::vector<int32_t> ids_;
};

struct Row {
  std::span<const float> got, want;
  std::span<const uint8_t> got_keep, want_keep;
};

// Scores within 1e-4 of the largest of the candidates (what protected entries get lies above and would loosen it), sets
// the same but for tokens that close to the cut.
void compare(const Row& row, const Protection& protection) {
  const auto is_protected = [&](size_t j) {
    return static_cast<int>(j) < protection.sinks ||
           static_cast<int>(j) >= static_cast<int>(kTokens) - protection.recent;
  };
  double largest = 0, cut = INFINITY;
  for (size_t j = 0; j < kTokens; ++j) {
    if (!is_protected(j)) largest = std::max(largest, std::abs(double{row.want[j]}));
    if (row.want_keep[j]) cut = std::min(cut, double{row.want[j]});
  }
  const double tolerance = 1e-4 * largest;
  for (size_t j = 0; j < kTokens; ++j) {
    const double allowed = is_protected(j) ? 1e-4 * row.want[j] : tolerance;
    ASSERT_TRUE(std::abs(row.got[j] - row.want[j]) <= allowed)
        << "token " << j << ": got " << row.got[j] << ", want " << row.want[j] << ", largest " << largest;
    if (row.got_keep[j] != row.want_keep[j]) {
      ASSERT_LE(std::abs(row.want[j] - cut), tolerance) << "token " << j;
    }
  }
  ASSERT_EQ(std::count(row.got_keep.begin(), row.got_keep.end(), 1),
            std::count(row.want_keep.begin(), row.want_keep.end(), 1));
}

TEST_P(SlowKvpress, ScoresAndKeptSetsAgree) {
  const Press& press = GetParam();
  const SafetensorsFile& expected = *expected_;
  const std::string prefix = "book0." + press.name + "@" + press.removed;
  const TensorInfo& score = expected.require(prefix + ".score");
  const std::vector<float> want = expected.read_f32(score);
  const auto want_keep = expected.bytes(expected.require(prefix + ".keep"));

  Policy policy = make_policy(press.policy, press.options);
  const CompressResult got = compress(*backend_, *source_, policy, ids_, press.kept);
  const Protection protection = policy.scorer->protects(static_cast<int>(kTokens * press.kept), 0);
  ASSERT_EQ(score.shape, (std::vector<int64_t>{got.layers, got.kv_heads, static_cast<int64_t>(kTokens)}));
  for (int row = 0; row < got.layers * got.kv_heads; ++row) {
    SCOPED_TRACE(testing::Message() << "layer " << row / got.kv_heads << ", head " << row % got.kv_heads);
    const auto part = [&](const auto* all) { return std::span(all + static_cast<size_t>(row) * kTokens, kTokens); };
    compare({part(got.score.data()), part(want.data()), part(got.keep.data()),
             part(reinterpret_cast<const uint8_t*>(want_keep.data()))},
            protection);
  }
}

std::vector<Press> presses() {
  const std::vector<GivenParam> snapkv = {{"mode", "kvpress", ""}, {"window", "32", ""}, {"kernel", "7", ""}};
  std::vector<Press> all = {{"observed", "0.5", 0.5, "observed-attention", {}}};
  for (const auto& [removed, kept] : {std::pair("0.5", 0.5), std::pair("0.8", 0.2)}) {
    all.push_back({"snapkv_w32_k7", removed, kept, "snapkv", snapkv});
    all.push_back({"keydiff", removed, kept, "keydiff", {}});
    all.push_back({"tova", removed, kept, "tova", {}});
    all.push_back({"expected", removed, kept, "expected-attention", {}});
    all.push_back({"streaming", removed, kept, "streaming", {}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Recorded, SlowKvpress, testing::ValuesIn(presses()), [](const auto& test) {
  return test.param.name + "_removes_" + (test.param.removed == "0.5" ? "half" : "four_fifths");
});

}  // namespace
}  // namespace kv
