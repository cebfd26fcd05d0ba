#include <limits>
#include <string>
#include <vector>

#include "harness/metrics/metric.h"
#include "tests/support/spoiled_run_fixture.h"

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

class NotFinite : public SpoiledRunFixture {
 protected:
  void expect_reason(const std::string& metric, const std::string& value) const {
    for (const Row& row : spoiled_rows(metric)) {
      EXPECT_EQ(row.skipped,
                "h2o: the score of entry 5 of 24 in layer 2, KV head 1, is " + value + " (expected a finite number)");
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Runs, NotFinite, testing::ValuesIn(ref::backend_names()), ref::backend_case);

TEST_P(NotFinite, AScoreThatIsNoNumberIsARowWithItsReasonAndTheOtherCasesRun) { expect_reason("nan_score", "nan"); }
TEST_P(NotFinite, AnEndlessScoreIsARowWithItsReasonAndTheOtherCasesRun) { expect_reason("endless_score", "inf"); }

}  // namespace
}  // namespace kv
