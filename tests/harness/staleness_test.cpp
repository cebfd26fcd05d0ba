#include "harness/staleness.h"

#include <nlohmann/json.hpp>

#include "harness/build_info.h"
#include "harness/manifest.h"
#include "harness/result_origin.h"
#include "sim/io/hash.h"
#include "tests/support/run_fixture.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

class Staleness : public RunFixture {
 protected:
  std::filesystem::path run(const std::string& out, const Texts& overrides = {}) const {
    RunOptions with = options(out);
    with.overrides = overrides;
    run_experiment(spec(overrides), with);
    return folder_ / out;
  }

  static Json manifest_of(const std::filesystem::path& folder) {
    return Json::parse(test::read_file(folder / "manifest.json"));
  }
  static void set(const std::filesystem::path& folder, const char* key, const Json& value) {
    Json manifest = manifest_of(folder);
    value.is_null() ? static_cast<void>(manifest.erase(key)) : static_cast<void>(manifest[key] = value);
    write_atomically(folder / "manifest.json", manifest.dump());
  }
};

TEST_F(Staleness, ARunIsFreshUntilSomethingThatItsRowsDependOnChanges) {
  const std::filesystem::path out = run("a", {"samples=1"});
  const Spec same = spec({"samples=1"});
  EXPECT_EQ(check_result(out, same).reasons, Texts{});
  EXPECT_FALSE(check_result(out, same).page_differs);
  EXPECT_EQ(check_result(out, spec({"samples=2"})).reasons, Texts{"the spec differs: samples"});
  EXPECT_EQ(check_result(out, spec({"samples=1", "axes.budget=16", "seed=6"})).reasons,
            Texts{"the spec differs: axes, seed"});
  set(out, "sources_sha256", std::string(64, 'a'));
  EXPECT_EQ(check_result(out, same).reasons, Texts{"the sources that rows depend on differ"});
  set(out, "sources_sha256", nullptr);
  EXPECT_EQ(check_result(out, same).reasons, Texts{"made before sources were recorded"});
}

TEST_F(Staleness, NamesTheInputsThatDiffer) {
  const std::filesystem::path out = run("a", {"samples=1"});
  set(out, "models_sha256", {{"llama", std::string(64, 'a')}});
  EXPECT_EQ(check_result(out, spec({"samples=1"})).reasons, Texts{"inputs differ: model llama"});
  const std::filesystem::path again = run("b", {"samples=1"});
  std::string bytes = test::read_file(folder_ / "ids.safetensors");
  bytes.back() ^= 1;
  write_atomically(folder_ / "ids.safetensors", bytes);
  EXPECT_EQ(check_result(again, spec({"samples=1"})).reasons, Texts{"inputs differ: data noise"});
}

TEST_F(Staleness, RowsThatAreNotThereAreStale) {
  const std::filesystem::path out = run("a", {"samples=1"});
  std::filesystem::remove(out / "rows.csv");
  EXPECT_EQ(check_result(out, spec({"samples=1"})).reasons, Texts{"it has no rows"});
}

// A value in another style is the same value; what is only drawn is no reason to run again.
TEST_F(Staleness, OfTheSpecOnlyWhatRowsDependOnCounts) {
  const std::filesystem::path out = run("a", {"samples=1"});
  std::string text = test::replaced(yaml(), "policies: [full, streaming, h2o, random]",
                                    "policies:\n  - full\n  - streaming\n  - \"h2o\"\n  - random");
  text = "# Another question?\n" + test::replaced(text, "# Does it run?\n", "title: Another title\n");
  write_atomically(spec_file(), text);
  const ResultState state = check_result(out, spec({"samples=1"}));
  EXPECT_EQ(state.reasons, Texts{});
  EXPECT_TRUE(state.page_differs);
}

TEST_F(Staleness, ASpecThatIsLikeAnotherIsStaleWhenThatOneChanges) {
  write_atomically(folder_ / "like.yaml", "like: tiny.yaml\npolicies: [full, h2o]\n");
  const auto derived = [&] { return load_spec(folder_ / "like.yaml", Texts{"samples=1"}); };
  RunOptions with = options("a");
  with.overrides = {"samples=1"};
  run_experiment(derived(), with);
  EXPECT_EQ(check_result(folder_ / "a", derived()).reasons, Texts{});
  EXPECT_FALSE(check_result(folder_ / "a", derived()).page_differs);
  write_atomically(spec_file(), test::replaced(yaml(), "policies: [full, streaming, h2o, random]", "policies: [full]"));
  EXPECT_EQ(check_result(folder_ / "a", derived()).reasons, Texts{}) << "it has policies of its own";
  write_atomically(spec_file(), test::replaced(yaml(), "seed: 5", "seed: 6"));
  EXPECT_EQ(check_result(folder_ / "a", derived()).reasons, Texts{"the spec differs: seed"});
  write_atomically(spec_file(), "title: Another title\n" + yaml());
  EXPECT_EQ(check_result(folder_ / "a", derived()).reasons, Texts{});
  EXPECT_TRUE(check_result(folder_ / "a", derived()).page_differs);
}

TEST_F(Staleness, AdoptingASpecDrawsItAndKeepsTheRows) {
  const std::filesystem::path out = run("a", {"samples=1"});
  const std::string rows = test::read_file(out / "rows.csv");
  const Json before = manifest_of(out);
  write_atomically(spec_file(),
                   test::replaced(yaml(), "tables: []", "tables: [{name: t, metric: nll_sum, rows: [policy]}]"));
  const Spec now = spec({"samples=1"});
  EXPECT_NE(adopt_spec(out, now).find("### t"), std::string::npos);
  EXPECT_EQ(test::read_file(out / "rows.csv"), rows);
  EXPECT_EQ(test::read_file(out / "spec.yaml"), now.resolved);
  Json after = manifest_of(out);
  EXPECT_EQ(after["spec_sha256"], sha256_hex(now.resolved));
  after["spec_sha256"] = before["spec_sha256"];
  EXPECT_EQ(after, before) << "nothing else changes";
  EXPECT_FALSE(check_result(out, now).page_differs);
  const std::string error = test::user_error([&] { adopt_spec(out, spec({"samples=2", "seed=1"})); });
  EXPECT_NE(error.find("its rows were made with another value of: samples, seed"), std::string::npos) << error;
  EXPECT_EQ(test::read_file(out / "spec.yaml"), now.resolved);
}

TEST_F(Staleness, FindsTheResultsOfAnExperimentAndTheirSettings) {
  const auto add = [&](const char* name, const std::string& manifest) {
    std::filesystem::create_directories(folder_ / "results" / name);
    write_atomically(folder_ / "results" / name / "manifest.json", manifest);
  };
  add("x-cuda", R"({"experiment": "x", "command": "kvlab run x.yaml --set 'device=cuda' --set 'axes.a=[1, 2]'"})");
  add("x", R"({"experiment": "x", "command": "kvlab run x.yaml"})");
  add("x-listed", R"({"experiment": "x", "overrides": ["title=it's"], "command": "kvlab run x.yaml --set 'a=1'"})");
  add("y", R"({"experiment": "y"})");
  add("broken", "{");
  const std::vector<ResultOrigin> found = results_of("x", folder_ / "results");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].folder.filename(), "x");
  EXPECT_EQ(found[0].overrides, Texts{});
  EXPECT_EQ(found[1].overrides, (Texts{"device=cuda", "axes.a=[1, 2]"}));
  EXPECT_EQ(found[2].overrides, Texts{"title=it's"});
  EXPECT_TRUE(results_of("x", folder_ / "nowhere").empty());
  EXPECT_THROW(read_origin(folder_ / "results" / "broken"), UserError);
}

TEST(RowSources, OfTheCpuAreOthersThanThoseOfAGpu) {
  EXPECT_EQ(row_sources("cpu"), build_info().cpu_sources);
  EXPECT_EQ(row_sources("cuda"), build_info().sources);
  EXPECT_EQ(build_info().sources.size(), 64u);
  EXPECT_EQ(build_info().cpu_sources.size(), 64u);
  EXPECT_NE(build_info().sources, build_info().cpu_sources);
}

}  // namespace
}  // namespace kv
