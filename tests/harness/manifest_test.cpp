#include "harness/manifest.h"

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/run_fixture.h"

namespace kv {
namespace {

using Json = nlohmann::json;

class Manifest : public RunFixture {
 protected:
  Json run(const std::string& out, const std::vector<std::string>& overrides = {}) const {
    RunOptions with = options(out);
    with.overrides = overrides;
    run_experiment(spec(overrides), with);
    return Json::parse(read_file(folder_ / out / "manifest.json"));
  }
};

TEST_F(Manifest, StatesWhatARunWasMadeOf) {
  const Json manifest = run("a", {"samples=2"});
  for (const char* key : {"commit", "changes", "spec_sha256", "rows_sha256", "models_sha256", "prompts_sha256", "seed",
                          "device", "machine", "build", "command", "date", "seconds", "cases"}) {
    EXPECT_TRUE(manifest.contains(key)) << key;
  }
  EXPECT_EQ(manifest["command"], "kvlab run tiny.yaml --set 'samples=2'");
  EXPECT_EQ(manifest["prompts_sha256"].size(), 1u);  // of all samples of one kind of data
  EXPECT_EQ(manifest["models_sha256"]["llama"].get<std::string>().size(), 64u);
  EXPECT_EQ(manifest["seed"], 5);
  EXPECT_FALSE(manifest["machine"].contains("gpu"));
}

TEST_F(Manifest, TheMachineBeginsWithTheFactsOfItsAccelerator) {
  const Spec checked = spec();
  const Facts facts = {{"gpu", "made up"}, {"cuda_driver", "13.0"}, {"cuda_runtime", "13.0"}, {"cublaslt", "130000"}};
  const auto machine =
      nlohmann::ordered_json::parse(manifest_json({.spec = &checked, .accelerator = facts}))["machine"];
  size_t next = 0;
  for (const auto& [name, value] : machine.items()) {
    if (next == facts.size()) break;
    EXPECT_EQ(name, facts[next].first);
    EXPECT_EQ(value, facts[next++].second);
  }
  EXPECT_TRUE(machine.contains("cpu"));
  EXPECT_EQ(Json::parse(origin_json(checked, facts))["machine"]["cublaslt"], "130000");
}

// Eight units, of which the first seven are followed by 0.3 s each: 2.1 in all. Whoever takes them over took no time.
TEST_F(Manifest, TheSecondsOfUnitsThatAreTakenOverAddUp) {
  const std::vector<std::string> overrides = {"samples=1"};
  RunOptions slow = options("a");
  slow.after_case = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  run_experiment(spec(overrides), slow);
  RunOptions again = options("a");
  again.draw = Draw::kLater;
  EXPECT_EQ(run_experiment(spec(overrides), again).reused, 8);
  EXPECT_GE(Json::parse(read_file(folder_ / "a" / "manifest.json"))["seconds"].get<int>(), 2);
}

TEST_F(Manifest, HoldsNoAbsolutePathsAndNoHostName) {
  const std::string text = run("a").dump();
  EXPECT_EQ(text.find(folder_.string()), std::string::npos);
  std::array<char, 256> host{};
  ASSERT_EQ(gethostname(host.data(), host.size() - 1), 0);
  const std::string name(host.data());
  if (name.size() > 5) {
    EXPECT_EQ(text.find(name), std::string::npos);
  }
}

TEST_F(Manifest, TheHashesFollowTheirInputsAlone) {
  const Json a = run("a"), same = run("b"), seed = run("c", {"seed=6"}), shorter = run("d", {"data.noise.tokens=40"}),
             more = run("e", {"samples=1"});
  for (const char* key : {"spec_sha256", "rows_sha256", "models_sha256", "prompts_sha256"}) {
    EXPECT_EQ(a[key], same[key]) << key;
  }
  EXPECT_NE(a["spec_sha256"], seed["spec_sha256"]);
  EXPECT_EQ(a["prompts_sha256"], seed["prompts_sha256"]);  // the ids come from a file
  EXPECT_NE(a["rows_sha256"], seed["rows_sha256"]);
  EXPECT_NE(a["prompts_sha256"], shorter["prompts_sha256"]);
  EXPECT_NE(a["prompts_sha256"], more["prompts_sha256"]);
}

}  // namespace
}  // namespace kv
