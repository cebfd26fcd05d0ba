// Policies that look on while golden evicts, from a spec to rows.

#include <fmt/format.h>

#include <map>

#include "tests/support/run_fixture.h"

namespace kv {
namespace {

class EvictedOverlapRun : public RunFixture {
 protected:
  static std::string with(const std::string& axes, const std::string& metrics = "evicted_overlap") {
    std::string yaml = test::replaced(RunFixture::yaml(), "[full, streaming, h2o, random]",
                                      "[full, golden, {policy: streaming, sinks: 4}, h2o, random]");
    yaml = test::replaced(yaml, "{budget: [16, 24], interval: 8}", axes);
    return test::replaced(yaml, "[loss]", "[" + metrics + "]");
  }
  Spec spec_of(const std::string& yaml) const {
    write_atomically(spec_file(), yaml);
    return load_spec(spec_file());
  }
  std::string refusal(const std::string& yaml) const {
    return test::user_error([&] { run_experiment(spec_of(yaml), options("refused")); });
  }
};

// At (24, 12) one event of the 48 tokens takes 12 of 24 candidates: the oracle agrees with itself, chance with half of
// it, and whoever evicts the oldest with exactly the share of them that golden takes.
TEST_F(EvictedOverlapRun, IsOfTheSameCaches) {
  run_experiment(spec_of(with("{budget: 24, interval: 12, cut_by: golden}")), options("out"));
  std::map<std::string, std::vector<double>> overlaps, of_layers;
  for (const Row& row : read_rows(folder_ / "out/rows.csv").rows) {
    if (row.metric == "evicted_overlap" && row.value) overlaps[row.policy].push_back(*row.value);
    if (row.metric == "evicted_overlap_layer") of_layers[row.policy].push_back(*row.value);
    if (row.policy != "full") {
      EXPECT_EQ(row.axes.at(2), "golden");
    }
  }
  EXPECT_FALSE(overlaps.contains("full"));  // which evicts nothing, whoever cuts
  EXPECT_EQ(overlaps["golden"], (std::vector<double>{1, 1, 1}));
  for (const std::string policy : {"streaming", "h2o", "random"}) {
    ASSERT_EQ(overlaps[policy].size(), 3u) << policy;
    double sum = 0, layers = 0;
    for (const double overlap : overlaps[policy]) sum += overlap / 3;
    for (const double overlap : of_layers[policy]) layers += overlap / static_cast<double>(of_layers[policy].size());
    EXPECT_GT(sum, 0.3) << policy;
    EXPECT_LT(sum, 0.8) << policy;
    EXPECT_NEAR(sum, layers, 1e-6) << policy;  // layers have as many heads and events
  }
}

TEST_F(EvictedOverlapRun, NeedsSomebodyWhoLooksOn) {
  run_experiment(spec_of(with("{budget: 24, interval: 12}")), options("out"));
  for (const Row& row : read_rows(folder_ / "out/rows.csv").rows) {
    if (row.metric != "evicted_overlap") continue;
    EXPECT_EQ(row.skipped,
              "nobody looked on while something was evicted: expected the axis cut_by and a text with an event");
  }
}

TEST_F(EvictedOverlapRun, RefusesWhatIsNotThePolicys) {
  const std::string file = spec_file().string();
  const std::string other = refusal(with("{budget: 24, interval: 12, cut_by: golden}", "evicted_overlap, loss"));
  EXPECT_TRUE(other.ends_with(
      "metric 'loss' is of who evicts, which with cut_by = golden is not the policy; expected evicted_overlap alone"))
      << other;
  const std::string uneven = refusal(with("{budget: 25, interval: 12, cut_by: golden}"));
  EXPECT_TRUE(uneven.ends_with("golden: budget 25 must be a multiple of the interval 12")) << uneven;
  const std::string unknown = refusal(with("{budget: 24, interval: 12, cut_by: h2o}"));
  EXPECT_TRUE(unknown.ends_with("axes: cut_by = h2o: expected itself or golden")) << unknown;
}

}  // namespace
}  // namespace kv
