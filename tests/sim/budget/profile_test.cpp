#include "sim/budget/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "sim/budget/profile_file.h"
#include "sim/io/stored_file.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv::test {
namespace {

// Φ(i + 1 %) of head h is (i + 1) / 100 − h / 1000, in five decimals as the file has them.
BudgetProfile small_profile() {
  ProfileLosses::Curve curve(kProfileRatios, 0.25);
  BudgetProfile profile{.model = "tiny",
                        .fingerprint = std::string(64, 'a'),
                        .scorer = "snapkv {mode: \"x\"}",
                        .protection = {4, 32},
                        .calibration = {{"kv {questions: 30}", "needle"}, 2, 60, 4096, 7},
                        .origin = R"({"commit":"c0ffee","date":"2026-01-02T03:04:05Z"})",
                        .losses = {curve, curve, curve, curve},
                        .split_half = SplitHalf{1.001, 1.0125},
                        .layers = 2,
                        .kv_heads = 2,
                        .removed = {}};
  for (int i = 0; i < kProfileRatios; ++i) {
    for (int h = 0; h < 4; ++h) profile.removed.push_back(static_cast<float>((10 * (i + 1) - h) / 1000.0));
  }
  return profile;
}

TEST(BudgetProfile, IsLookedUpAtTheNearestPercent) {
  EXPECT_EQ(ratio_index(0.0), 0U);
  EXPECT_EQ(ratio_index(0.01), 0U);
  EXPECT_EQ(ratio_index(0.0149), 0U);
  EXPECT_EQ(ratio_index(0.016), 1U);
  EXPECT_EQ(ratio_index(0.5), 49U);
  EXPECT_EQ(ratio_index(0.8), 79U);
  EXPECT_EQ(ratio_index(1 - 0.2), 79U);
  EXPECT_EQ(ratio_index(0.99), 98U);
  EXPECT_EQ(ratio_index(0.999), 98U);
  const BudgetProfile profile = small_profile();
  EXPECT_THAT(profile.at(0.8), testing::ElementsAre(0.8F, 0.799F, 0.798F, 0.797F));
}

TEST(BudgetProfile, SharesAreWhatIsNotRemovedButAtLeastTheMinimum) {
  const std::vector<float> removed = {0.0F, 0.75F, 0.995F};
  EXPECT_THAT(kept_shares(removed, 0.01), testing::ElementsAre(1.0, 0.25, 0.01));
  EXPECT_NEAR(kept_shares(removed, 0)[2], 0.005, 1e-6);
}

// Heads 0, 1 | 2, 3 over three layers of four heads: layers 0, 0, 1, each head twice.
TEST(BudgetProfile, LaidOverAnotherShapeRepeatsItsHeads) {
  const BudgetProfile wide = laid_over(small_profile(), 3, 4);
  EXPECT_EQ(wide.heads(), 12U);
  const float a = 0.8F, b = 0.799F, c = 0.798F, d = 0.797F;
  EXPECT_THAT(wide.at(0.8), testing::ElementsAre(a, a, b, b, a, a, b, b, c, c, d, d));
  EXPECT_THAT(laid_over(small_profile(), 1, 1).at(0.8), testing::ElementsAre(a));
  EXPECT_EQ(laid_over(small_profile(), 2, 2).removed, small_profile().removed);
}

TEST(BudgetProfile, ComesBackFromItsFileAsItWas) {
  const BudgetProfile profile = small_profile();
  const std::string text = format_profile(profile);
  const BudgetProfile back = parse_profile(text, "p.json");
  EXPECT_EQ(back.model, profile.model);
  EXPECT_EQ(back.fingerprint, profile.fingerprint);
  EXPECT_EQ(back.scorer, profile.scorer);
  EXPECT_EQ(back.protection.sinks, 4);
  EXPECT_EQ(back.protection.recent, 32);
  EXPECT_EQ(back.calibration.data, profile.calibration.data);
  EXPECT_EQ(back.calibration.questions, 60);
  EXPECT_EQ(back.calibration.tokens, 4096);
  EXPECT_EQ(back.calibration.seed, 7U);
  EXPECT_EQ(back.origin, profile.origin);
  EXPECT_EQ(back.losses.bound, profile.losses.bound);
  ASSERT_TRUE(back.split_half);
  EXPECT_EQ(back.split_half->four_fifths, 1.0125);
  EXPECT_EQ(back.removed, profile.removed);
  EXPECT_EQ(format_profile(back), text);
  BudgetProfile single = profile;
  single.split_half.reset();
  EXPECT_FALSE(parse_profile(format_profile(single), "p.json").split_half);
}

// Those made before files said by which code.
TEST(BudgetProfile, AnOlderFileDoesNotSayWhoMadeIt) {
  const std::string text = format_profile(small_profile());
  const std::string older = replaced(text, "\"made\": " + small_profile().origin + ",\n", "");
  const BudgetProfile profile = parse_profile(older, "p.json");
  EXPECT_EQ(profile.origin, "");
  EXPECT_EQ(format_profile(profile), older);
}

TEST(BudgetProfile, StandsBesideItsModelUnderTheNameOfItsScorer) {
  EXPECT_EQ(default_profile_file("m", "keydiff").string(), "m/profiles/keydiff.json");
  EXPECT_EQ(default_profile_file("m", "snapKV {kernel: 7, mode: kvpress}").string(),
            "m/profiles/snapKV_kernel=7_mode=kvpress.json");
  EXPECT_EQ(default_profile_file("m", kOracleOrder).string(), "m/profiles/oracle+order.json");
  EXPECT_EQ(default_profile_file("m", "x {file: a_b/c%}").string(), "m/profiles/x_file=a%5Fb%2Fc%25.json");
}

// One would overwrite the other's.
TEST(BudgetProfile, NoTwoScorersShareAFile) {
  std::set<std::string> files;
  const std::vector<std::string> scorers = {
      "a",          "a {b: 1}",     "a {b: -1}",      "a {b: 0.1}",   "a {b: 0-1}",     "a {b: 01}",   "A {b: 1}",
      "a-b {c: 1}", "a {b-c: 1}",   "a {b: c, d: e}", "a {b: c_d}",   "a {b: c=d}",     "a {b: c, d}", "a {b_c: 1}",
      "a {b: %5F}", "oracle order", "oracle-order",   "oracle+order", "oracle {order}", "a {b: 1e-5}", "a {b: 1e5}"};
  for (const std::string& scorer : scorers) files.insert(default_profile_file("m", scorer).string());
  EXPECT_EQ(files.size(), scorers.size());
}

std::string complaint(const std::string& text) {
  try {
    parse_profile(text, "p.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(BudgetProfile, EveryDefectIsOneLineThatNamesTheFile) {
  const std::string good = format_profile(small_profile());
  struct Defect {
    const char* from;
    const char* to;
    const char* message;
  };
  const Defect defects[] = {
      {"\"version\": 1", "\"version\": 2", "p.json: version is 2, expected an integer, 1 to 1"},
      {"\"version\": 1,", "", "p.json: lacks version"},
      {"kvlab-budget-profile", "curves", "p.json: format is \"curves\", expected \"kvlab-budget-profile\""},
      {"\"name\": \"tiny\"", "\"name\": 3", "p.json: model.name is 3, expected a text"},
      {"\"sha256\"", "\"sha1\"", "p.json: lacks model.sha256"},
      {"\"layers\": 2", "\"layers\": 0", "p.json: layers is 0, expected an integer, 1 to 4096"},
      {"\"layers\": 2", "\"layers\": 2.5", "p.json: layers is 2.5, expected an integer, 1 to 4096"},
      {"\"layers\": 2", "\"layers\": 3",
       "p.json: removed[0] is [0.01,0.009,0.008,0.007], expected a list of 6 numbers, one a layer and KV head"},
      {"[0.01000, 0.00900", "[0.01000, 1.00000",
       "p.json: removed[0] is 1.0, expected a number of at least 0 and below 1"},
      {"[0.01000, 0.00900", "[0.01000, -0.1",
       "p.json: removed[0] is -0.1, expected a number of at least 0 and below 1"},
      {"[0.01000, 0.00900", "[0.01000, 0.99999999999",
       "p.json: removed[0] is 0.99999999999, expected a number of at least 0 and below 1"},
      {"\n[0.01000, 0.00900, 0.00800, 0.00700],", "", "p.json: removed is "},
      {"\"recent\": 32", "\"recent\": -1", "p.json: protection.recent is -1, expected an integer, 0 to 16777216"},
      {"\"recent\": 32", "\"recent\": 32, \"middle\": 1", "p.json: unknown key \"protection.middle\""},
      {"\"layers\": 2", "\"layers\": 2, \"layers\": 2", "p.json: key \"layers\" occurs twice"},
      {"\"bound\": [0.25000, ", "\"bound\": [", "p.json: losses.bound is "},
      {"\"bound\": [0.25000", "\"bound\": [\"x\"", "p.json: losses.bound is \"x\", expected a number, at least 0"},
      {"[\"kv {questions: 30}\", \"needle\"]", "[]", "p.json: calibration.data is [], expected a list of texts"},
      {"\"split_half\": {", "\"split_half\": 1, \"x\": {", "p.json: split_half is 1, expected an object"},
      {"\"made\": {", "\"made\": \"me\", \"x\": {", "p.json: made is \"me\", expected an object"},
      {"\n]\n}", "", "p.json: not valid JSON: "},
  };
  for (const Defect& defect : defects) {
    const std::string message = complaint(replaced(good, defect.from, defect.to));
    EXPECT_THAT(message, testing::StartsWith(defect.message)) << defect.to;
    EXPECT_EQ(message.find('\n'), message.npos);
  }
  EXPECT_EQ(complaint("[]"), "p.json: the whole is [], expected an object");
}

// What `kvlab profile` measured of 002-profile.yaml, -learned and -foresight: one half of the questions loses a
// fiftieth more at most under the other half's profile than under its own. Whether that is still so takes the
// calibration again; that the files are of this model and say so does not.
TEST(BudgetProfile, ThoseOfTheReferenceModelServeQuestionsThatTheyHaveNotSeen) {
  const std::filesystem::path model = ref::source_path("experiments/models/reference");
  const ModelConfig config = load_model_config(model);
  const std::string files = fingerprint(model);
  int own_profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(model / "profiles")) {
    SCOPED_TRACE(entry.path().filename().string());
    std::filesystem::path file = entry.path();
    if (file.extension() == ".xz") file.replace_extension();
    const BudgetProfile profile = parse_profile(read_stored(file), file.string());
    // The model's own, or one of another calibration or importance, which its name says.
    const std::string own = default_profile_file(model, profile.scorer).stem().string();
    const std::string name = file.stem().string();
    EXPECT_TRUE(name == own || name.starts_with(own + "+")) << own;
    own_profiles += name == own ? 1 : 0;
    EXPECT_EQ(profile.fingerprint, files);
    EXPECT_EQ(profile.layers, config.layers);
    EXPECT_EQ(profile.kv_heads, config.kv_heads);
    EXPECT_GE(profile.calibration.questions, 30);
    ASSERT_TRUE(profile.split_half);
    EXPECT_LE(profile.split_half->half, 1.02);
    EXPECT_LE(profile.split_half->four_fifths, 1.02);
    for (const double removed : {0.5, 0.8}) {
      const size_t i = ratio_index(removed);
      EXPECT_LT(profile.losses.profile[i], profile.losses.uniform[i]);
      EXPECT_LE(profile.losses.bound[i], profile.losses.greedy[i]);
      EXPECT_LE(profile.losses.bound[i], profile.losses.profile[i]);
    }
  }
  EXPECT_EQ(own_profiles, 6);
}

}  // namespace
}  // namespace kv::test
