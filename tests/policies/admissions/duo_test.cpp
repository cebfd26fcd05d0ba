// DuoAttention: which heads stay, and what is refused.

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "sim/budget/profile_file.h"
#include "sim/learned/learned_file.h"
#include "tests/support/entries_left.h"
#include "tests/support/file_fixtures.h"

namespace kv::ref {
namespace {

class Duo : public testing::Test {
 protected:
  test::TempFolder folder_;
  std::string write(const std::string& text) const {
    test::write_file(folder_ / "alphas.tsv", text);
    return (folder_ / "alphas.tsv").string();
  }
  static ModelIdentity model() {
    return {{}, [] { return ModelIdentity::Shape{2, 2}; }};
  }
  std::string refusal(const std::string& text) const {
    const std::string file = write(text);
    const Policy policy = make_policy("full", {}, {.admission = {"duo", {{"alphas", file, ""}}}});
    std::string message = test::user_error([&] { policy.check(model()); });
    const std::string begin = "duo: " + file + ": ";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  }
};

TEST_F(Duo, LeavesEverythingToTheHeadsOfTheLargestAlpha) {
  const std::string file = write("0.1\t0.9\n0.8\t0.2\n");
  const auto duo = [&](const std::string& retrieval) {
    return entries_left(
        {"duo", {{"alphas", file, ""}, {"retrieval", retrieval, ""}, {"sinks", "3", ""}, {"window", "8", ""}}});
  };
  EXPECT_EQ(duo("0"), (std::vector<int32_t>{11, 11, 11, 11}));
  EXPECT_EQ(duo("0.25"), (std::vector<int32_t>{11, 40, 11, 11}));
  EXPECT_EQ(duo("0.5"), (std::vector<int32_t>{11, 40, 40, 11}));
  EXPECT_EQ(duo("1"), (std::vector<int32_t>{40, 40, 40, 40}));
  write("1 1\n1 1\n");  // equals: the lower layers and heads stream
  EXPECT_EQ(duo("0.5"), (std::vector<int32_t>{11, 11, 40, 40}));
}

// Heads 1 and 2 lose least when four fifths of the cache leave, 0 and 3 when half of it does.
TEST_F(Duo, TakesABudgetProfileInPlaceOfAlphas) {
  const auto text_of = [](int layers) {
    const ProfileLosses::Curve none(kProfileRatios, 0);
    BudgetProfile profile{.model = "tiny",
                          .fingerprint = "any",
                          .scorer = "snapkv",
                          .protection = {},
                          .calibration = {{"noise"}, 1, 1, 100, 0},
                          .losses = {none, none, none, none},
                          .split_half = {},
                          .layers = layers,
                          .kv_heads = 2,
                          .removed = {}};
    for (int percent = 1; percent <= kProfileRatios; ++percent) {
      const std::vector<float> of_ratio =
          percent == 50 ? std::vector{0.2F, 0.7F, 0.8F, 0.3F} : std::vector{0.9F, 0.6F, 0.75F, 0.95F};
      for (int i = 0; i < layers * 2; ++i) profile.removed.push_back(of_ratio[static_cast<size_t>(i % 4)]);
    }
    return format_profile(profile);
  };
  const std::string file = write(text_of(2));
  const auto duo = [&](const std::string& removed) {
    return entries_left(
        {"duo", {{"profile", file, ""}, {"removed", removed, ""}, {"sinks", "3", ""}, {"window", "8", ""}}});
  };
  EXPECT_EQ(duo("0.8"), (std::vector<int32_t>{11, 40, 40, 11}));
  EXPECT_EQ(duo("0.5"), (std::vector<int32_t>{40, 11, 11, 40}));
  const auto refused = [&](std::vector<GivenParam> options) {
    return test::user_error([&] {
      make_policy("full", {}, {.admission = {"duo", std::move(options)}}).check(model());
    });
  };
  EXPECT_EQ(refused({{"profile", file, ""}, {"alphas", file, ""}}),
            "duo: expected one of the options alphas, profile and weights");
  write(text_of(1));
  EXPECT_EQ(refused({{"profile", file, ""}}), "duo: " + file + " is for 1 layers of 2 KV heads, expected 2 of 2");
  write("no profile");
  EXPECT_TRUE(refused({{"profile", file, ""}}).starts_with(file));
}

// α = σ(parameter) orders heads as their parameters do; files of other sinks or another window are of another training.
TEST_F(Duo, TakesWhatWasLearned) {
  const LearnedFile file{.learner = "duo",
                         .model = "none",
                         .fingerprint = std::string(64, '0'),
                         .settings = {{"sinks", "3"}, {"window", "8"}},
                         .origin = "{}",
                         .layers = 2,
                         .kv_heads = 2,
                         .parts = {{"alpha_logit", {}}},
                         .parameters = {-3, 0.5F, 2, -1}};
  const std::string path = (folder_ / "alphas.safetensors").string();
  write_learned(path, file);
  const auto options = [&](const char* sinks) {
    return std::vector<GivenParam>{{"weights", path, ""}, {"sinks", sinks, ""}, {"window", "8", ""}};
  };
  EXPECT_EQ(entries_left({"duo", options("3")}), (std::vector<int32_t>{11, 40, 40, 11}));
  EXPECT_EQ(test::user_error([&] {
              entries_left({"duo", options("4")});
            }),
            "duo: " + path +
                " was learned with sinks: 3, expected 4; `kvlab train SPEC` makes one, the options alphas and "
                "profile do without");
}

TEST_F(Duo, AnAlphaFileThatDoesNotFitIsRefused) {
  EXPECT_EQ(refusal("1 2\n"), "1 lines, expected 2, one for each layer");
  EXPECT_EQ(refusal("1 2\n1 2 3\n"), "line 2 has 3 numbers, expected 2, one for each KV head");
  EXPECT_EQ(refusal("1 2\n1 x\n"), "line 2: expected a number for each KV head");
  EXPECT_EQ(refusal("1 2\n1 nan\n"), "line 2: expected a number for each KV head");
  const Policy none = make_policy("full", {}, {.admission = {"duo"}});
  EXPECT_EQ(
      test::user_error([&] { none.check(model()); }),
      "duo: there are no learned weights learned/duo.safetensors; `kvlab train SPEC` makes one, the options alphas "
      "and profile do without");
  EXPECT_THROW(make_policy("full", {}, {.admission = {"duo", {{"retrieval", "1.5", ""}}}}), UserError);
}

// Its file is not the one that was checked any more.
TEST_F(Duo, AnAlphaFileThatChangesMeanwhileIsRefused) {
  const std::string file = write("1 2\n3 4\n");
  Policy policy = make_policy("full", {}, {.admission = {"duo", {{"alphas", file, ""}}}});
  const std::vector<InputFile> files = policy.check(model());
  write("1 2\n3 5\n");
  EXPECT_EQ(test::user_error([&] { policy.load(files); }), "duo: " + file + " has changed since it was checked");
}

}  // namespace
}  // namespace kv::ref
