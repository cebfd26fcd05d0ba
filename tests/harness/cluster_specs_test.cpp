// experiments/cluster/specs.sh, which knows of YAML no more than a shell does.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>

#include "harness/protocols/protocol.h"
#include "harness/spec/spec_reader.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

std::set<std::string> named_by_the_script() {
  std::set<std::string> names;
  const std::string command = "cd '" + ref::source_path(".") + "' && bash experiments/cluster/specs.sh";
  FILE* const output = ::popen(command.c_str(), "r");
  std::array<char, 256> line;
  while (output && std::fgets(line.data(), line.size(), output)) names.insert(fs::path(line.data()).stem().string());
  EXPECT_EQ(::pclose(output), 0);
  return names;
}

TEST(ClusterSpecs, AreThoseThatKvlabRunTakes) {
  const std::set<std::string> named = named_by_the_script();
  int read = 0;
  for (const auto& entry : fs::directory_iterator(ref::source_path("experiments"))) {
    if (entry.path().extension() != ".yaml") continue;
    const Spec spec = load_spec(entry.path(), {});
    const bool runs = spec.protocol->open && !spec.protocol->learns && spec.benchmarks.text.empty();
    EXPECT_EQ(named.contains(entry.path().stem().string()), runs) << entry.path();
    ++read;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace kv
