// kvlab plan, from the times of a short run.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/files.h"
#include "tests/support/cli_fixture.h"

namespace kv {
namespace {

class CliPlan : public Cli {
 protected:
  CliPlan() { EXPECT_EQ(run(fmt::format("run {} --quiet --no-draw --out {}", spec(), path("short"))).code, 0); }

  std::string spec() const { return path("tiny.yaml"); }
  Output plan(const std::string& more) { return run(fmt::format("plan {} --from {} {}", spec(), path("short"), more)); }
  // Times that a test can reckon with, in place of the run's.
  void set_times(double start, double of_case) {
    auto manifest = nlohmann::ordered_json::parse(read_file(path("short") + "/manifest.json"));
    auto& times = manifest["times"];
    times["start"] = start;
    for (auto& workload : times["workloads"]) {
      for (auto& seconds : workload["seconds"]) seconds = of_case * workload["samples"].get<int>();
    }
    write_atomically(path("short") + "/manifest.json", manifest.dump());
  }
};

TEST_F(CliPlan, DividesTheTimesOfARun) {
  set_times(0, 10);
  const auto manifest = nlohmann::ordered_json::parse(read_file(path("short") + "/manifest.json"));
  const auto& workload = manifest["times"]["workloads"][0];
  ASSERT_EQ(manifest["times"]["workloads"].size(), 1u);
  const auto cases = static_cast<double>(workload["seconds"].size());
  const Output output = plan("--set samples=8 --set batch=2 --ranks 1,2,8");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("tiny: 4 pieces, "), std::string::npos) << output.text;
  const auto line = [&](int ranks, double seconds, double speed_up) {
    const std::string time = seconds < 600 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.1f} min", seconds / 60);
    return fmt::format("{:>6}  {:>10}  {:>8.2f}", ranks, time, speed_up);
  };
  EXPECT_NE(output.text.find(line(1, 80 * cases, 1)), std::string::npos) << output.text;
  EXPECT_NE(output.text.find(line(2, 40 * cases, 2)), std::string::npos) << output.text;
  EXPECT_NE(output.text.find(line(8, 20 * cases, 4)), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("50.0 %  more ranks than pieces (50.0 %)"), std::string::npos) << output.text;
}

TEST_F(CliPlan, NamesStartUpWhereItIsWhatHolds) {
  set_times(1000, 0.001);
  EXPECT_NE(plan("--set batch=1 --ranks 2").text.find("start-up (100.0 %)"), std::string::npos);
}

TEST_F(CliPlan, StandsBesideWhatRunsTook) {
  set_times(0, 10);
  auto manifest = nlohmann::ordered_json::parse(read_file(path("short") + "/manifest.json"));
  const int samples = manifest["times"]["workloads"][0]["samples"];
  const auto cases = static_cast<double>(manifest["times"]["workloads"][0]["seconds"].size());
  const std::string size = fmt::format("--set batch=1 --set samples={} ", samples);
  const double alone = 10 * samples * cases;
  manifest["seconds"] = alone / 1.25;
  manifest["ranks"] = nlohmann::ordered_json::array({1, 2});
  std::filesystem::create_directories(path("two"));
  write_atomically(path("two") + "/manifest.json", manifest.dump());
  const Output output = plan(size + fmt::format("--measured {} --ranks 1", path("two")));
  EXPECT_EQ(output.code, 0) << output.text;
  const int of_one = (samples + 1) / 2;
  const double of_two = 10 * cases * of_one;
  const double off = 100 * (of_two / (alone / 1.25) - 1);
  EXPECT_NE(output.text.find(fmt::format("{:>+6.1f} %  {}", off, path("two"))), std::string::npos) << output.text;

  manifest["ranks"][1] = {{"node", 0}, {"lost", true}};
  write_atomically(path("two") + "/manifest.json", manifest.dump());
  const Output fewer = plan(size + fmt::format("--measured {}", path("two")));
  EXPECT_EQ(fewer.code, 2);
  EXPECT_NE(fewer.text.find("lost a rank on the way"), std::string::npos) << fewer.text;

  manifest["ranks"][1].erase("lost");
  manifest["machine"]["cpu"] = "another";
  write_atomically(path("two") + "/manifest.json", manifest.dump());
  const Output elsewhere = plan(size + fmt::format("--measured {}", path("two")));
  EXPECT_EQ(elsewhere.code, 2);
  EXPECT_NE(elsewhere.text.find("was measured on another, expected "), std::string::npos) << elsewhere.text;

  const Output other = plan(fmt::format("--set samples={} --measured {}", samples + 1, path("two")));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.text.find(fmt::format("is of {} samples, expected the {} of the plan", samples, samples + 1)),
            std::string::npos)
      << other.text;
}

TEST_F(CliPlan, RefusesARunThatSaysNothingOfTheSpec) {
  EXPECT_EQ(plan("--set 'policies=[full]'").code, 2);
  EXPECT_NE(plan("--set 'policies=[full]'").text.find("is of other policies or axes than "), std::string::npos);
  EXPECT_NE(plan("--set data.noise.tokens=40").text.find("is of other data or lengths than "), std::string::npos);
  EXPECT_EQ(plan("--ranks 0").code, 2);
  auto manifest = nlohmann::ordered_json::parse(read_file(path("short") + "/manifest.json"));
  manifest.erase("times");
  write_atomically(path("short") + "/manifest.json", manifest.dump());
  const Output output = plan("");
  EXPECT_EQ(output.code, 2);
  EXPECT_NE(output.text.find("says of no unit what it took"), std::string::npos) << output.text;
}

TEST_F(CliPlan, RefusesAManifestThatSaysNonsense) {
  const std::string file = path("short") + "/manifest.json";
  const auto good = nlohmann::ordered_json::parse(read_file(file));
  const auto expect_refused_with = [&](const nlohmann::ordered_json& manifest, const char* what) {
    write_atomically(file, manifest.dump());
    const Output output = plan("--ranks 2");
    EXPECT_EQ(output.code, 2) << what;
    EXPECT_NE(output.text.find(what), std::string::npos) << output.text;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
  };
  for (const char* batch :
       {"0", "-2", "4294967296", "\"16\"", "[16]", "{\"auto\": 3}", "{\"auto\": {}}", "null", "1.5"}) {
    auto manifest = good;
    manifest["batch"] = nlohmann::ordered_json::parse(batch);
    expect_refused_with(manifest, "does not say how many samples of ");
  }
  for (const double seconds : {0.0, 1e308}) {
    auto manifest = good;
    for (auto& of_case : manifest["times"]["workloads"][0]["seconds"]) of_case = seconds;
    expect_refused_with(manifest, "times: of no use");
  }
  auto other = good;
  other["experiment"] = "other";
  expect_refused_with(other, "is of another experiment than ");
}

}  // namespace
}  // namespace kv
