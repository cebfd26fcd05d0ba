#pragma once

#include <string>
#include <vector>

#include "tests/support/run_fixture.h"
#include "tests/support/slices.h"

namespace kv {

// Runs in which a metric of the test spoils every case of h2o with a budget of 16, on each backend.
class SpoiledRunFixture : public RunFixture, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  }

  // The spoiled cases' rows, one a sample; those of the other cases must be as without the metric.
  std::vector<Row> spoiled_rows(const std::string& metric) const {
    EXPECT_EQ(run("whole", {"axes.budget=[24]"}).skipped, 0);
    const RunSummary summary = run("out", {"metrics=[loss, " + metric + "]"});
    EXPECT_EQ(summary.cases, 2 * 3);
    EXPECT_EQ(summary.skipped, 3);
    const RowTable table = read_rows(folder_ / "out" / "rows.csv");
    std::vector<Row> sound, spoiled;
    for (const Row& row : table.rows) {
      if (!is_timing(row.metric)) (row.axes[0] == "24" ? sound : spoiled).push_back(row);
    }
    EXPECT_EQ(spoiled.size(), 3u);
    EXPECT_EQ(format_rows(table.axes, sound), rows_of("whole"));
    return spoiled;
  }

 private:
  RunSummary run(const std::string& out, std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"device=" + GetParam(), "policies=[h2o]"});
    return run_experiment(spec(overrides), options(out));
  }
};

}  // namespace kv
