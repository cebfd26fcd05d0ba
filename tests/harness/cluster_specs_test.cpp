// experiments/cluster/specs.sh, which knows of YAML no more than a shell does.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "harness/protocols/protocol.h"
#include "harness/spec/spec_reader.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> named_by_the_script(const std::string& kind) {
  std::vector<std::string> names;
  const std::string command = "cd '" + ref::source_path(".") + "' && bash experiments/cluster/specs.sh " + kind;
  FILE* const output = ::popen(command.c_str(), "r");
  std::array<char, 256> line;
  while (output && std::fgets(line.data(), line.size(), output)) names.push_back(fs::path(line.data()).stem().string());
  EXPECT_EQ(::pclose(output), 0);
  return names;
}

// And of what trains, what goes on from others' weights comes behind these.
TEST(ClusterSpecs, AreThoseThatKvlabRunTakesAndThoseThatItTrains) {
  const std::vector<std::string> runs = named_by_the_script(""), trainings = named_by_the_script("trainings");
  const std::set<std::string> named(runs.begin(), runs.end()), trained(trainings.begin(), trainings.end());
  EXPECT_EQ(named.size(), runs.size());
  EXPECT_EQ(trained.size(), trainings.size());
  const auto place_of = [&](const char* name) { return std::find(trainings.begin(), trainings.end(), name); };
  EXPECT_LT(place_of("foresight-kv"), place_of("foresight-kv-reinforced"));
  EXPECT_LT(place_of("foresight-kv-settings"), place_of("foresight-kv-settings-reinforced"));
  EXPECT_NE(place_of("foresight-kv-settings-reinforced"), trainings.end());
  int read = 0;
  for (const auto& entry : fs::directory_iterator(ref::source_path("experiments"))) {
    if (entry.path().extension() != ".yaml") continue;
    const Spec spec = load_spec(entry.path(), {});
    const bool is_run = spec.protocol->open && !spec.protocol->learns && spec.benchmarks.text.empty();
    EXPECT_EQ(named.contains(entry.path().stem().string()), is_run) << entry.path();
    EXPECT_EQ(trained.contains(entry.path().stem().string()), spec.protocol->learns) << entry.path();
    ++read;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace kv
