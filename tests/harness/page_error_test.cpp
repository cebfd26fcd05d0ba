#include <string>
#include <vector>

#include "harness/metrics/metric.h"
#include "tests/support/spoiled_run_fixture.h"

namespace kv {
namespace {

// What a bug would do: after the first block that pages of a case with a budget of 16 hold, row 1 loses its first page.
// Which ops check their pages is as in a debug build.
class LosesAPage final : public Metric {
 public:
  void begin_case(const CaseView& view) override {
    view.batch.backend->check_every_op(true);
    breaks_ = view.batch.budget == 16;
  }
  void attended(const LayerView& view, ConstRef) override {
    if (!breaks_ || view.layer != 2) return;
    const int32_t none = -1;
    view.backend.upload(const_cast<int32_t*>(view.cache.page_table) + view.cache.max_pages, &none, sizeof(none));
  }
  void report(const ReplayResult&, std::vector<Measured>&) override {}

 private:
  bool breaks_ = false;
};

const RegisterMetric loses_a_page{
    {.name = "loses_a_page", .summary = "", .make = [](Params&) { return std::make_unique<LosesAPage>(); }}};

class PageErrors : public SpoiledRunFixture {};

INSTANTIATE_TEST_SUITE_P(Runs, PageErrors, testing::ValuesIn(ref::backend_names()), ref::backend_case);

TEST_P(PageErrors, AreRowsWithTheirReasonAndTheOtherCasesRun) {
  for (const Row& row : spoiled_rows("loses_a_page")) {
    EXPECT_EQ(row.device, GetParam());
    EXPECT_TRUE(row.skipped.starts_with("page table: entry 0 of row 1 is -1 (expected 0 to ")) << row.skipped;
  }
}

}  // namespace
}  // namespace kv
