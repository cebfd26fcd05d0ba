#include "harness/spec/spec_text.h"

#include <gtest/gtest.h>

#include "harness/spec/spec_reader.h"
#include "tests/support/file_fixtures.h"

namespace kv {
namespace {

using test::user_error;

constexpr const char* kBase = R"(# Which policy is best?
title: The base
model: m
data: [{task: reason, tokens: 64}]
policies: [full, {policy: h2o, recent: 8}]
axes:
  budget: [32, 64]
  interval: 8
metrics: [loss]
samples: 3
tables: [{name: t, metric: nll_sum, rows: [policy], columns: [budget]}]
)";

// Specs in one folder; base.yaml is among them.
class SpecLike : public testing::Test {
 protected:
  SpecLike() { write("base.yaml", kBase); }

  void write(const std::string& name, const std::string& yaml) { test::write_file(folder_ / name, yaml); }
  Spec read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    write("s.yaml", yaml);
    return load_spec(folder_ / "s.yaml", overrides);
  }
  // Without the folder's name.
  std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    std::string error = user_error([&] { read(yaml, overrides); });
    for (size_t at; (at = error.find(folder_.path().string() + "/")) != error.npos;) {
      error.erase(at, folder_.path().string().size() + 1);
    }
    return error;
  }

  test::TempFolder folder_;
};

TEST_F(SpecLike, TakesEveryTopLevelKeyThatItDoesNotWrite) {
  const Spec spec = read("# And for another model?\nlike: base.yaml\nmodel: other\naxes: {budget: 16, interval: 4}\n");
  EXPECT_EQ(spec.name, "s");
  EXPECT_EQ(spec.question, "And for another model?");
  EXPECT_EQ(spec.title, "The base");
  EXPECT_EQ(spec.models.at(0).source.text, "other");
  EXPECT_EQ(spec.axes.size(), 2u);
  EXPECT_EQ(spec.axes[0].points.size(), 1u) << "a key is replaced whole";
  EXPECT_EQ(spec.policies.size(), 2u);
  EXPECT_EQ(spec.samples, 3);
  EXPECT_EQ(spec.report.tables.size(), 1u);
}

TEST_F(SpecLike, QuestionAndTitleAreInheritedWhereItHasNone) {
  const Spec spec = read("like: base.yaml\nmodel: other\n");
  EXPECT_EQ(spec.question, "Which policy is best?");
  EXPECT_EQ(spec.title, "The base");
}

TEST_F(SpecLike, ItsResolvedSpecNeedsNoOtherFileAndReadsTheSame) {
  const Spec spec = read("# Why?\nlike: base.yaml\nmodel: other\n", {"samples=7"});
  std::filesystem::remove(folder_ / "base.yaml");
  const Spec again = parse_spec(spec.resolved, "s.yaml");
  EXPECT_EQ(again.row_keys, spec.row_keys);
  EXPECT_EQ(again.question, "Why?");
  EXPECT_EQ(again.samples, 7);
  EXPECT_EQ(spec.resolved.find("like"), std::string::npos) << spec.resolved;
}

TEST_F(SpecLike, ChangesWithItsBase) {
  const std::string yaml = "like: base.yaml\nmodel: other\n";
  const Spec before = read(yaml);
  write("base.yaml", test::replaced(kBase, "interval: 8", "interval: 4"));
  const Spec after = read(yaml);
  EXPECT_NE(after.row_keys, before.row_keys);
  EXPECT_NE(after.resolved, before.resolved);
}

TEST_F(SpecLike, ValuesKeepTheirPlaceInTheFileThatHasThem) {
  EXPECT_EQ(read("like: base.yaml\nmodel: other\n").policies[1].options[0].where,
            (folder_ / "base.yaml").string() + ":5:40");
  write("base.yaml", test::replaced(kBase, "samples: 3", "samples: 0"));
  EXPECT_EQ(error_of("like: base.yaml\n"), "base.yaml:10:10: samples = 0: expected an integer from 1 to 1000000");
  write("base.yaml", test::replaced(kBase, "samples: 3", "sampels: 3"));
  EXPECT_TRUE(
      error_of("like: base.yaml\n")
          .starts_with(
              "base.yaml:10:1: unknown key 'sampels', did you mean 'samples'? (expected one of: title, like, "));
  write("base.yaml", kBase);
  EXPECT_EQ(error_of("like: base.yaml\n", {"samples=0"}),
            "--set samples=0: samples = 0: expected an integer from 1 to 1000000");
  EXPECT_TRUE(
      error_of("like: base.yaml\nmdel: x\n").starts_with("s.yaml:2:1: unknown key 'mdel', did you mean 'model'?"));
  EXPECT_TRUE(error_of("like: base.yaml\naxes: {interval: 4}\n")
                  .starts_with("base.yaml:11:63: table 't': columns names the column 'budget'"));
}

TEST_F(SpecLike, RefusesABaseThatIsNone) {
  EXPECT_EQ(error_of("model: m\nlike: none.yaml\n"), "s.yaml:2:7: like = none.yaml: no such file beside this spec");
  EXPECT_EQ(error_of("like: [base.yaml]\n"), "s.yaml:1:7: like = a list: expected a text");
  EXPECT_EQ(error_of("like:\n"), "s.yaml:2:1: like = nothing: expected a text");
  EXPECT_TRUE(error_of("lik: base.yaml\n").starts_with("s.yaml:1:1: unknown key 'lik', did you mean 'like'?"));
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_EQ(error_of("like: folder\n"), "s.yaml:1:7: like = folder: folder: cannot read: not a regular file");
  write("broken.yaml", "model: [\n");
  EXPECT_TRUE(error_of("like: broken.yaml\n").starts_with("broken.yaml:2:1: "));
  write("list.yaml", "[model]\n");
  EXPECT_EQ(error_of("like: list.yaml\n"), "list.yaml:1:1: expected a map of keys and values");
}

TEST_F(SpecLike, GoesOneLevelDeep) {
  constexpr const char* kTwice = "is like another spec itself, expected one that has every key in its own file";
  write("middle.yaml", "like: base.yaml\n");
  EXPECT_EQ(error_of("like: middle.yaml\n"), std::string("s.yaml:1:7: like = middle.yaml: ") + kTwice);
  EXPECT_EQ(error_of("like: s.yaml\n"), std::string("s.yaml:1:7: like = s.yaml: ") + kTwice);
}

TEST_F(SpecLike, IsSaidByTheFileAlone) {
  constexpr const char* kError =
      "--set like=base.yaml: like = base.yaml: only the spec's file may say it, expected no such --set";
  EXPECT_EQ(error_of("like: base.yaml\n", {"like=base.yaml"}), kError);
  EXPECT_EQ(error_of(kBase, {"like=base.yaml"}), kError);
}

TEST_F(SpecLike, ValuesThatItSharesAreChangedByOverridesInItAlone) {
  const Spec spec = read("like: base.yaml\n", {"policies.h2o.recent=4", "data.reason.tokens=32"});
  EXPECT_EQ(spec.policies[1].options[0].text, "4");
  EXPECT_EQ(spec.policies[1].options[0].where, "--set policies.h2o.recent=4");
  EXPECT_EQ(spec.data[0].tokens, 32);
}

}  // namespace
}  // namespace kv
