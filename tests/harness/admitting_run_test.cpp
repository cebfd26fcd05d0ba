// Policies that turn tokens away, from a spec to rows; and where that is refused.

#include <map>

#include "tests/support/slot_run_fixture.h"

namespace kv {
namespace {

class AdmittingRun : public SlotRun {
 protected:
  AdmittingRun() : SlotRun(16) {}
};

// Of 48 tokens the last one saw the first 2 and the newest 10; of a window that the text does not fill, all.
TEST_F(AdmittingRun, RowsSayWhatWasThere) {
  auto rows = run(with("[full, {policy: full, admission: {local: {sinks: 2, window: 10}}}, {policy: full, admission: "
                       "local, label: wide}, h2o, {policy: h2o, admission: {local: {sinks: 8, window: 12}}}]"),
                  "out");
  ASSERT_EQ(rows["full"]["kept_tokens"], 48);
  EXPECT_EQ(rows["full"]["cache_size"], 1);
  EXPECT_EQ(rows["full+local"]["kept_tokens"], 12);
  EXPECT_NEAR(rows["full+local"]["cache_size"], 12.0 / 48, 1e-9);
  EXPECT_NE(rows["full+local"]["loss_ratio"], 1);
  EXPECT_LT(rows["full+local"]["attended_pairs"], rows["full"]["attended_pairs"]);
  for (const char* metric : {"kept_tokens", "attended_pairs", "loss_ratio", "cache_size"}) {
    EXPECT_EQ(rows["wide"][metric], rows["full"][metric]) << metric;
  }
  EXPECT_EQ(rows["h2o"]["kept_tokens"], 16);
  EXPECT_EQ(rows["h2o+local"]["kept_tokens"], 16);
  EXPECT_LT(rows["h2o+local"]["attended_pairs"], rows["h2o"]["attended_pairs"]);
  EXPECT_TRUE(rows["h2o+local"].contains("recall"));
}

// Whatever the number of samples that run together.
TEST_F(AdmittingRun, RowsDependOnNoBatch) {
  const std::string yaml = with(
      "[{policy: full, admission: {local: {sinks: 2, window: 10}}}, {policy: streaming, "
      "admission: {local: {sinks: 8, window: 12}}}]");
  run(yaml + "batch: 1\n", "alone");
  run(yaml + "batch: 3\n", "together");
  EXPECT_EQ(rows_of("alone"), rows_of("together"));
}

TEST_F(AdmittingRun, AnAxisOfAdmissionsIsOfAllPolicies) {
  const std::string yaml = test::replaced(with("[full, streaming]"), "{budget: 16, interval: 8}",
                                          "{budget: 16, interval: 8, admission: [none, local]}");
  const RunSummary summary = run_experiment(spec_of(yaml), options("axis"));
  EXPECT_EQ(summary.cases, 4 * 3);
  EXPECT_EQ(summary.failed, 0);
}

TEST_F(AdmittingRun, WhatCannotBeIsRefusedInOneLine) {
  const std::string local = "[full, {policy: full, admission: local}]";
  EXPECT_TRUE(
      refusal(with("[{policy: full, admission: locl}]"))
          .ends_with("unknown admission 'locl', did you mean 'local'? (expected one of: duo, local, none, wg-kv)"));
  EXPECT_TRUE(refusal(with("[{policy: full, admission: {local: {windw: 3}}}]")).find("did you mean 'window'?") !=
              std::string::npos);
  EXPECT_TRUE(refusal(with(local, "loss, survival"))
                  .ends_with("metric 'survival' does not know of entries that nobody sees yet, expected no admission "
                             "beside it"));
  EXPECT_TRUE(refusal(with("[{policy: snapkv, admission: {local: {window: 7}}}]"))
                  .ends_with("snapkv: judges by the newest 8 queries, expected no more than the 7 tokens for which "
                             "admission local lets all see an entry"));
  EXPECT_TRUE(refusal(test::replaced(with("[full, {policy: streaming, admission: local}]", "evicted_overlap"),
                                     "interval: 8}", "interval: 8, cut_by: golden}"))
                  .find("expected no admission") != std::string::npos);
  EXPECT_TRUE(
      refusal(with(local) + "device: cuda\n")
          .ends_with("policy 'full+local' under protocol decode runs with admission 'local' on device cpu alone "
                     "as yet"));
  EXPECT_TRUE(
      refusal("# How much loss?\nmodel: " + ref::source_path("tests/data/llama") +
              "\nprotocol: profile\ndata: [{task: kv, tokens: 64}]\npolicies: [{policy: keydiff, admission: local}]\n")
          .ends_with("policy 'keydiff+local' under protocol profile takes no admission yet, expected none in place "
                     "of 'local'"));
}

}  // namespace
}  // namespace kv
