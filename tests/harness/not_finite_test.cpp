#include <limits>
#include <string>
#include <vector>

#include "harness/metrics/metric.h"
#include "tests/support/run_fixture.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

// What a bug would do: in a case with a budget of 16, H2O's sum of entry 5 of row 1 in layer 2 is no number, or
// endless.
class SpoilsAScore final : public Metric {
 public:
  explicit SpoilsAScore(float value) : value_(value) {}
  void begin_case(const CaseView& view) override { spoils_ = view.batch.budget == 16; }
  void attended(const LayerView& view, ConstRef) override {
    constexpr int kRow = 1, kSlot = 5;
    if (!spoils_ || view.layer != 2 || view.lengths[kRow] <= kSlot) return;
    int32_t page = -1;
    view.backend.download(&page, view.cache.page_table + kRow * view.cache.max_pages, sizeof(page));
    float* const sum = view.columns + (page * kPageTokens + kSlot) * view.cache.column_width;
    view.backend.upload(sum, &value_, sizeof(value_));
  }
  void report(const ReplayResult&, std::vector<Measured>&) override {}

 private:
  float value_;
  bool spoils_ = false;
};

const RegisterMetric nan_score{{.name = "nan_score", .summary = "", .make = [](Params&) {
                                  return std::make_unique<SpoilsAScore>(std::numeric_limits<float>::quiet_NaN());
                                }}};
const RegisterMetric endless_score{{.name = "endless_score", .summary = "", .make = [](Params&) {
                                      return std::make_unique<SpoilsAScore>(std::numeric_limits<float>::infinity());
                                    }}};

class NotFinite : public RunFixture, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (!ref::try_backend(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  }
  RunSummary run(const std::string& out, std::vector<std::string> overrides) const {
    overrides.insert(overrides.end(), {"device=" + GetParam(), "policies=[h2o]"});
    return run_experiment(spec(overrides), options(out));
  }
  void expect_rows(const std::string& metric, const std::string& value) const {
    const RunSummary whole = run("whole", {"axes.budget=[24]"});
    EXPECT_EQ(whole.skipped, 0);
    const RunSummary summary = run("out", {"metrics=[loss, " + metric + "]"});
    EXPECT_EQ(summary.cases, 2 * 3);
    EXPECT_EQ(summary.skipped, 3);
    const RowTable table = read_rows(folder_ / "out" / "rows.csv");
    std::vector<Row> good, failed;
    for (const Row& row : table.rows) {
      if (!is_timing(row.metric)) (row.axes[0] == "24" ? good : failed).push_back(row);
    }
    ASSERT_EQ(failed.size(), 3u);  // one a sample
    for (const Row& row : failed) {
      EXPECT_EQ(row.skipped,
                "h2o: the score of entry 5 of 24 in layer 2, KV head 1, is " + value + " (expected a finite number)");
    }
    EXPECT_EQ(format_rows(table.axes, good), rows_of("whole"));
  }
};

INSTANTIATE_TEST_SUITE_P(Runs, NotFinite, testing::ValuesIn(ref::backend_names()), ref::backend_case);

TEST_P(NotFinite, AScoreThatIsNoNumberIsARowWithItsReasonAndTheOtherCasesRun) { expect_rows("nan_score", "nan"); }
TEST_P(NotFinite, AnEndlessScoreIsARowWithItsReasonAndTheOtherCasesRun) { expect_rows("endless_score", "inf"); }

}  // namespace
}  // namespace kv
