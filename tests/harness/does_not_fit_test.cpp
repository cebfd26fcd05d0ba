#include <optional>
#include <string>

#include "kernels/tensor.h"
#include "sim/replay/run_footprint.h"
#include "tests/support/address_space.h"
#include "tests/support/run_fixture.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

// An experiment where a case does not fit the device: that one is a row with the bytes needed and free, and the others
// run.
class DoesNotFit : public RunFixture, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  }

  RunSummary run(const std::string& model, const std::string& batch) const {
    write_atomically(spec_file(),
                     "# Does it fit?\nmodel: {random: " + model + "}\ndevice: " + GetParam() +
                         "\nprotocol: latency\nsamples: 1\nprefill_chunk: 64\ntables: []\npolicies: [full]\n" +
                         "axes: {batch: " + batch + ", context: 64}\n");
    return run_experiment(spec(), options("out"));
  }

  // The only row of this batch, which has a reason in the place of a value.
  std::string reason(const std::string& batch) const {
    std::vector<Row> found;
    for (const Row& row : rows()) {
      if (row.axes[0] == batch) found.push_back(row);
    }
    if (found.size() != 1) return "not one row";
    EXPECT_FALSE(found[0].value.has_value());
    EXPECT_EQ(found[0].device, GetParam());
    EXPECT_TRUE(found[0].skipped.ends_with(" are free on " + GetParam())) << found[0].skipped;
    return found[0].skipped;
  }
  std::vector<Row> rows() const { return read_rows(folder_ / "out" / "rows.csv").rows; }
};

INSTANTIATE_TEST_SUITE_P(Runs, DoesNotFit, testing::ValuesIn(ref::backend_names()), ref::backend_case);

TEST_P(DoesNotFit, ABatchIsARowWithItsReasonAndTheOthersRun) {
  EXPECT_EQ(run("tiny", "[1000000000, 2]").skipped, 1);
  const std::string line = reason("1000000000");
  EXPECT_TRUE(line.starts_with("a batch of 1000000000 with 80 entries a head does not fit: it needs ")) << line;
  EXPECT_NE(line.find("KV cache "), line.npos) << line;
  bool timed = false;
  for (const Row& row : rows()) timed |= row.axes[0] == "2" && row.metric == "prefill_time" && row.value > 0;
  EXPECT_TRUE(timed);
}

// It may fit another time: where another program had the memory, or on a larger card.
TEST_P(DoesNotFit, ABatchIsTriedAgainByTheNextRun) {
  run("tiny", "[1000000000, 2]");
  const RunSummary again = run("tiny", "[1000000000, 2]");
  EXPECT_EQ(again.cases, 2);
  EXPECT_EQ(again.reused, 1);
  EXPECT_EQ(again.skipped, 1);
}

TEST_P(DoesNotFit, AModelIsARowWithItsReason) {
  std::optional<ref::AddressSpaceLimit> limit;  // some hosts have terabytes
  if (GetParam() == "cpu") limit.emplace(1'000'000'000);
  EXPECT_EQ(run("llama-3.1-405b", "2").skipped, 1);
  const std::string bytes = GetParam() == "cpu" ? "1623.41 GB" : "811.71 GB";
  const std::string line = reason("2");
  EXPECT_TRUE(line.starts_with("a llama model of 126 layers does not fit: it needs " + bytes + " (weights ")) << line;
}

}  // namespace
}  // namespace kv
