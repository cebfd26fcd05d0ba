#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>

#include "kernels/error.h"
#include "sim/budget/profile_file.h"
#include "sim/io/hash.h"
#include "sim/model/model_files.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

// A folder that passes for a model, and a profile of 2 layers of 2 KV heads beside it.
class LuKv : public testing::Test {
 protected:
  LuKv() : backend_(make_backend("cpu")), info_(tiny_info(2, 4, 2, 8)) {
    test::write_file(model() / "config.json", "{}");
    test::write_file(model() / "model.safetensors", "weights");
    std::filesystem::create_directory(model() / "profiles");
    info_.folder = model();
    const ProfileLosses::Curve none(kProfileRatios, 0);
    profile_ = {.model = "tiny",
                .fingerprint = fingerprint(model()),
                .scorer = "keydiff",
                .protection = {},
                .calibration = {{"kv"}, 1, 1, 100, 0},
                .losses = {none, none, none, none},
                .split_half = {},
                .layers = 2,
                .kv_heads = 2,
                .removed = {}};
    // At every ratio σ: heads that lose σ, half of that, nothing, and nearly everything.
    for (int percent = 1; percent <= kProfileRatios; ++percent) {
      const auto removed = static_cast<float>(percent) / 100;
      profile_.removed.insert(profile_.removed.end(), {removed, removed / 2, 0.0F, 0.999F});
    }
  }

  const std::filesystem::path& model() const { return folder_.path(); }
  std::filesystem::path file() const { return model() / "profiles" / "keydiff.json"; }
  void write() const { test::write_file(file(), format_profile(profile_)); }

  ModelIdentity identity() const {
    return {info_.folder, [this] { return ModelIdentity::Shape{info_.layers, info_.kv_heads}; }};
  }

  // Counts by head of 100 tokens compressed to `keep` entries a head.
  std::vector<size_t> counts(int keep, const std::string& scorer = "keydiff", const Options& options = {}) {
    TinySource source(*backend_, info_, {random_sample(info_, 101, 3)});
    RunArgs args = one_shot_run(scorer, {}, {0}, {101}, {keep});
    args.allocation = {"lu-kv", options};
    std::vector<size_t> counts;
    for (const Event& event : run_policy(source, *backend_, args).events) counts.push_back(event.kept.size());
    return counts;
  }

  // Before anything runs.
  std::string refusal(const std::string& scorer = "keydiff") {
    try {
      make_allocation("lu-kv", {})->check(identity(), scorer);
    } catch (const UserError& error) {
      return error.what();
    }
    return "not refused";
  }

  test::TempFolder folder_;
  std::unique_ptr<Backend> backend_;
  SourceInfo info_;
  BudgetProfile profile_;
};

TEST_F(LuKv, SharesByHand) {
  write();
  // σ = 0.8: shares 0.2, 0.6, 1, 0.01 of 1.81; of 80 entries 8.84, 26.52, 44.20, 0.44. The last is at least 1, so the
  // others share 79 of 1.8: 8.78, 26.33, 43.89; floors 8, 26, 43 and 1, and one more for .89 and .78.
  EXPECT_EQ(counts(20), (std::vector<size_t>{9, 26, 44, 1}));
}

TEST_F(LuKv, TheLeastShareIsAnOption) {
  write();
  // Shares 0.2, 0.6, 1, 0.2 of 2: 8, 24, 40, 8 of 80.
  EXPECT_EQ(counts(20, "keydiff", {{.key = "least", .text = "0.2", .where = ""}}), (std::vector<size_t>{8, 24, 40, 8}));
}

TEST_F(LuKv, RefusesALeastShareThatIsNone) {
  for (const char* least : {"1.5", "-0.01"}) {
    try {
      make_allocation("lu-kv", {{.key = "least", .text = least, .where = "x.yaml:3:4"}});
      FAIL() << "not refused";
    } catch (const UserError& error) {
      EXPECT_EQ(error.what(), fmt::format("x.yaml:3:4: lu-kv: least = {}: expected a number between 0 and 1", least));
    }
  }
}

TEST_F(LuKv, AHeadCannotKeepMoreThanItHas) {
  write();
  // σ = 0.05, 380 entries: the first three would get more than their 100, so the fourth gets what is left.
  EXPECT_EQ(counts(95)[2], 100U);
  EXPECT_EQ(counts(95)[0] + counts(95)[1] + counts(95)[3], 280U);
}

TEST_F(LuKv, TakesAProfileByName) {
  write();
  std::filesystem::rename(file(), model() / "other.json");
  EXPECT_EQ(counts(20, "keydiff", {{.key = "profile", .text = (model() / "other.json").string(), .where = ""}})[0], 9U);
  info_.folder.clear();  // a trace: whose model nobody can tell
  EXPECT_EQ(counts(20, "keydiff", {{.key = "profile", .text = (model() / "other.json").string(), .where = ""}})[0], 9U);
  EXPECT_EQ(refusal(), "lu-kv: a trace or random weights have no folder with profiles, expected the option profile");
}

TEST_F(LuKv, SpreadsAProfileOverAnotherShapeWhereNoModelContradicts) {
  write();
  std::filesystem::rename(file(), model() / "other.json");
  const Options other = {{.key = "profile", .text = (model() / "other.json").string(), .where = ""}};
  Options spread = other;
  spread.push_back({.key = "spread", .text = "yes", .where = ""});
  info_ = tiny_info(4, 4, 2, 8);
  EXPECT_THROW(counts(20, "keydiff", other), UserError);
  // Layers 0, 0, 1, 1 of the profile: SharesByHand, twice.
  EXPECT_EQ(counts(20, "keydiff", spread), (std::vector<size_t>{9, 26, 9, 26, 44, 1, 44, 1}));
  info_.folder = model();  // a model with files has heads of its own
  profile_.fingerprint = std::string(64, 'b');
  test::write_file(model() / "other.json", format_profile(profile_));
  EXPECT_THROW(counts(20, "keydiff", spread), UserError);
}

TEST_F(LuKv, WithoutTheOptimalityGapTakesTheProfileOfTheOraclesOrder) {
  const Options oracle = {{.key = "order", .text = "oracle", .where = ""}};
  write();
  EXPECT_THROW(counts(20, "keydiff", oracle), UserError);
  profile_.scorer = "oracle order";
  test::write_file(model() / "profiles" / "oracle+order.json", format_profile(profile_));
  EXPECT_EQ(counts(20, "keydiff", oracle), counts(20, "random", oracle));
  EXPECT_EQ(counts(20, "random", oracle)[0], 9U);
}

TEST_F(LuKv, RefusesAMissingProfile) {
  EXPECT_EQ(refusal(), fmt::format("lu-kv: there is no profile of keydiff, expected {}; `kvlab profile SPEC` makes one",
                                   file().string()));
}

TEST_F(LuKv, RefusesTheProfileOfAnotherScorer) {
  write();
  std::filesystem::rename(file(), model() / "profiles" / "random.json");
  EXPECT_EQ(refusal("random"),
            fmt::format("lu-kv: {} is the profile of keydiff, expected random; `kvlab profile SPEC` makes one",
                        (model() / "profiles" / "random.json").string()));
}

TEST_F(LuKv, RefusesTheProfileOfAnotherModel) {
  profile_.fingerprint = std::string(64, 'b');
  write();
  EXPECT_EQ(refusal(), fmt::format("lu-kv: {} is for model tiny with files of SHA-256 bbbbbbbbbbbb…, expected {:.12}… "
                                   "of {}; `kvlab profile SPEC` makes one",
                                   file().string(), fingerprint(model()), model().string()));
}

TEST_F(LuKv, RefusesTheProfileOfAnotherShape) {
  write();
  info_ = tiny_info(3, 4, 2, 8);
  info_.folder = model();
  EXPECT_EQ(refusal(), fmt::format("lu-kv: {} is for 2 layers of 2 KV heads, expected 3 of 2; `kvlab profile SPEC` "
                                   "makes one",
                                   file().string()));
}

TEST_F(LuKv, CheckTellsTwoProfilesApart) {
  write();
  const auto allocation = make_allocation("lu-kv", {});
  const std::vector<InputFile> first = allocation->check(identity(), "keydiff");
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].path, file());
  EXPECT_EQ(first[0].sha256, sha256_hex(test::read_file(file())));
  profile_.removed[0] += 0.001F;
  write();
  EXPECT_NE(allocation->check(identity(), "keydiff").at(0).sha256, first.at(0).sha256);
  EXPECT_THROW(allocation->check(identity(), "random"), UserError);
  EXPECT_TRUE(make_allocation("uniform", {})->check(identity(), "random").empty());
}

// What was checked is what is used: neither other bytes of that name, nor none at all.
TEST_F(LuKv, LoadsNothingElseThanWhatWasChecked) {
  write();
  const auto allocation = make_allocation("lu-kv", {});
  const std::vector<InputFile> checked = allocation->check(identity(), "keydiff");
  EXPECT_NO_THROW(allocation->load(checked));
  profile_.removed[0] += 0.001F;
  write();
  EXPECT_EQ(test::user_error([&] { allocation->load(checked); }),
            fmt::format("lu-kv: {} has changed since it was checked: SHA-256 {:.12}…, expected {:.12}…",
                        file().string(), sha256_hex(test::read_file(file())), checked.at(0).sha256));
  std::filesystem::remove(file());
  EXPECT_THROW(allocation->load(checked), UserError);
}

// Whoever owns the identity says for how long the files stay as they are: nothing else remembers them.
TEST_F(LuKv, AnIdentityKnowsItsFilesAsLongAsItLives) {
  write();
  const auto allocation = make_allocation("lu-kv", {});
  const ModelIdentity before = identity();
  EXPECT_EQ(before.fingerprint(), fingerprint(model()));
  test::write_file(model() / "model.safetensors", "other weights");
  EXPECT_NO_THROW(allocation->check(before, "keydiff"));
  EXPECT_THROW(allocation->check(identity(), "keydiff"), UserError);
}

// An option that repeats its default does not ask for another profile.
TEST(ScorerName, HasTheOptionsThatDifferFromTheirDefaults) {
  EXPECT_EQ(make_policy("keydiff", {{"sinks", "0", ""}}).scorer_name, "keydiff");
  EXPECT_EQ(make_policy("keydiff", {{"sinks", "4", ""}, {"recent", "1", ""}}).scorer_name,
            "keydiff {recent: 1, sinks: 4}");
}

// The default of lambda is 0.1, that of sinks 0.
TEST(ScorerName, HasValuesNotTheirSpelling) {
  EXPECT_EQ(make_policy("r-kv", {{"lambda", "0.10", ""}}).scorer_name, "r-kv");
  EXPECT_EQ(make_policy("r-kv", {{"lambda", "0.070", ""}}).scorer_name, "r-kv {lambda: 0.07}");
  EXPECT_EQ(make_policy("r-kv", {{"lambda", "7e-2", ""}}).scorer_name, "r-kv {lambda: 0.07}");
  EXPECT_EQ(make_policy("keydiff", {{"sinks", "04", ""}}).scorer_name, "keydiff {sinks: 4}");
  EXPECT_EQ(make_policy("keydiff", {{"sinks", "-0", ""}}).scorer_name, "keydiff");
}

}  // namespace
}  // namespace kv::ref
