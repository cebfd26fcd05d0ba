#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/files.h"
#include "harness/rows_file.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/paths.h"

// What `record` writes serves `run`, and `inspect` says what files hold.

namespace kv {
namespace {

// Under either name.
TEST_F(Cli, InspectPrintsWeightsThatLiePacked) {
  const std::string weights = ref::source_path("experiments/models/reference/learned/duo.safetensors");
  const Output output = run("inspect " + weights);
  EXPECT_EQ(output.code, 0);
  EXPECT_NE(output.text.find("learner = duo\n"), std::string::npos) << output.text;
  EXPECT_EQ(run("inspect " + weights + ".xz").text, output.text);
}

TEST_F(Cli, ARecordedTraceReplays) {
  ASSERT_EQ(run(fmt::format("record --model {} --ids {} --tokens 64 --layers 0,2 --out {}", model(),
                            path("ids.safetensors"), path("t.safetensors")))
                .code,
            0);
  const std::string held = run("inspect " + path("t.safetensors")).text;
  EXPECT_NE(held.find("64 tokens of llama"), std::string::npos) << held;
  EXPECT_NE(held.find("values in F32, pre-RoPE queries, pre-RoPE keys, layer inputs, W_O, losses\n"), std::string::npos)
      << held;
  write_atomically(
      folder_ / "trace.yaml",
      "trace: t.safetensors\ntables: []\npolicies: [full, h2o]\naxes: {budget: 16, interval: 8}\nmetrics: [{metric: "
      "cosine, detail: layer}]\n");
  const Output output = run(fmt::format("run {} --quiet --out {}", path("trace.yaml"), path("out")));
  EXPECT_EQ(output.code, 0) << output.text;
  int cosines = 0;
  for (const Row& row : read_rows(folder_ / "out" / "rows.csv").rows) {
    EXPECT_TRUE(row.skipped.empty()) << row.skipped;
    EXPECT_EQ(row.model, "llama");
    if (row.metric == "cosine_layer") {
      EXPECT_TRUE(row.layer == 0 || row.layer == 2);
    }
    cosines += row.metric == "cosine" ? 1 : 0;
  }
  EXPECT_EQ(cosines, 2);
}

TEST_F(Cli, ARecordedTaskKnowsItsUsefulTokens) {
  ASSERT_EQ(run(fmt::format("record --model {} --task needle --tokens 300 --layers 3 --out {}", reference(),
                            path("t.safetensors")))
                .code,
            0);
  EXPECT_NE(run("inspect " + path("t.safetensors")).text.find("links  "), std::string::npos);
  write_atomically(
      folder_ / "trace.yaml",
      "trace: t.safetensors\ntables: []\npolicies: [full]\naxes: {budget: 64, interval: 32}\nmetrics: [dilution]\n");
  ASSERT_EQ(run(fmt::format("run {} --quiet --out {}", path("trace.yaml"), path("out"))).code, 0);
  const std::vector<Row> rows = read_rows(folder_ / "out" / "rows.csv").rows;
  const auto found = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.metric == "dilution"; });
  ASSERT_NE(found, rows.end());
  ASSERT_TRUE(found->value.has_value()) << found->skipped;
  EXPECT_GT(*found->value, 0);
  EXPECT_LT(*found->value, 1);
}

}  // namespace
}  // namespace kv
