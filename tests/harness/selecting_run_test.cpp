// Policies whose queries read a part of the cache, from a spec to rows; and where that is refused.

#include <cmath>
#include <map>

#include "tests/support/slot_run_fixture.h"

namespace kv {
namespace {

class SelectingRun : public SlotRun {
 protected:
  SelectingRun() : SlotRun(32) {}
};

// 48 tokens fill three pages. A text without a question is read token by token from its first one, so that with one
// page the query at position i reads i mod 16 + 1 entries.
TEST_F(SelectingRun, RowsSayWhatWasRead) {
  auto rows = run(with("[full, {policy: full, selection: quest}, {policy: full, selection: {quest: {pages: 1}}, label: "
                       "last}, {policy: full, selection: {quest: {pages: 1, mode: official}}, label: official}, "
                       "streaming, {policy: streaming, selection: {quest: {pages: 1}}}]"),
                  "out");
  const double all = 48 * 49 / 2.0, last = 3 * 16 * 17 / 2.0;  // of a KV head
  EXPECT_EQ(rows["full"]["attended_pairs"], 3 * 2 * all) << "3 layers of 2 KV heads";
  EXPECT_EQ(rows["full+quest"]["attended_pairs"], rows["full"]["attended_pairs"]);
  EXPECT_NEAR(rows["full+quest"]["loss_ratio"], 1, 1e-5);
  EXPECT_EQ(rows["last"]["attended_pairs"], 3 * 2 * last);
  EXPECT_EQ(rows["official"]["attended_pairs"], 2 * (2 * all + last)) << "the first two layers read everything";
  EXPECT_GT(std::abs(rows["last"]["loss_ratio"] - 1), 1e-4);
  EXPECT_GT(std::abs(rows["official"]["loss_ratio"] - 1), 1e-4);
  for (const char* policy : {"full", "full+quest", "last"}) EXPECT_EQ(rows[policy]["kept_tokens"], 48) << policy;
  EXPECT_EQ(rows["streaming"]["kept_tokens"], 32);
  EXPECT_EQ(rows["streaming+quest"]["kept_tokens"], 32);
  EXPECT_LT(rows["streaming+quest"]["attended_pairs"], rows["streaming"]["attended_pairs"]);
  EXPECT_EQ(rows["streaming+quest"]["recall"], rows["streaming"]["recall"]) << "of evictions alone";
}

// Whatever the number of samples that run together.
TEST_F(SelectingRun, RowsDependOnNoBatch) {
  const std::string yaml = with(
      "[{policy: full, selection: {quest: {pages: 2}}}, {policy: snapkv, admission: {local: {sinks: 20, window: 9}}, "
      "selection: {quest: {pages: 1}}}]");
  run(yaml + "batch: 1\n", "alone");
  run(yaml + "batch: 3\n", "together");
  EXPECT_EQ(rows_of("alone"), rows_of("together"));
}

// Only what follows the context is read token by token, so that its passes are alike.
TEST_F(SelectingRun, OneShotSelectsBehindTheContext) {
  const std::string yaml = "# Does it run?\nmodel: " + ref::source_path("experiments/models/reference") +
                           "\nprotocol: one-shot\ndata: [{task: kv, tokens: 128}]\n"
                           "policies: [full, {policy: full, selection: {quest: {pages: 2}}}, {policy: snapkv, "
                           "selection: {quest: {pages: 2}}}, snapkv]\n"
                           "axes: {keep: 0.5}\nmetrics: [loss]\nsamples: 1\ntables: []\n";
  auto rows = run(yaml, "one-shot");
  // 64 tokens of context are read whole; the query at position i behind it reads a page, and its own up to itself.
  int all = 0, chosen = 0;
  for (int i = 0; i < 127; ++i) {
    all += i + 1;
    chosen += i < 64 ? i + 1 : 16 + i % 16 + 1;
  }
  const double heads = rows["full"]["attended_pairs"] / all;
  EXPECT_EQ(rows["full+quest"]["attended_pairs"], heads * chosen);
  EXPECT_LT(rows["snapkv+quest"]["attended_pairs"], rows["snapkv"]["attended_pairs"]);
  EXPECT_EQ(rows["snapkv+quest"]["kept_tokens"], rows["snapkv"]["kept_tokens"]);
  EXPECT_NE(rows["full+quest"]["loss_ratio"], 1);
}

TEST_F(SelectingRun, OneShotWantsAQuestionBehindTheContext) {
  const std::string yaml = test::replaced(with("[full, {policy: full, selection: quest}]", "loss"),
                                          "{budget: 32, interval: 8}", "{keep: 0.5}") +
                           "protocol: one-shot\n";
  run_experiment(spec_of(yaml), options("no-question"));
  int skipped = 0;
  for (const Row& row : read_rows(folder_ / "no-question" / "rows.csv").rows) {
    if (row.policy != "full+quest") continue;
    EXPECT_EQ(row.skipped, "no query selects, since nothing follows the context; expected a question behind it");
    ++skipped;
  }
  EXPECT_EQ(skipped, 3);
}

TEST_F(SelectingRun, AnAxisOfSelectionsIsOfAllPolicies) {
  const std::string yaml = test::replaced(with("[full, streaming]"), "{budget: 32, interval: 8}",
                                          "{budget: 32, interval: 8, selection: [all, quest]}");
  const RunSummary summary = run_experiment(spec_of(yaml), options("axis"));
  EXPECT_EQ(summary.cases, 4 * 3);
  EXPECT_EQ(summary.failed, 0);
}

TEST_F(SelectingRun, WhatCannotBeIsRefusedInOneLine) {
  const std::string quest = "[full, {policy: full, selection: quest}]";
  const auto expect = [&](const std::string& yaml, const std::string& end) {
    const std::string message = refusal(yaml);
    EXPECT_TRUE(message.ends_with(end)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect(with("[{policy: full, selection: qest}]"),
         "unknown selection 'qest', did you mean 'quest'? (expected one of: all, quest)");
  EXPECT_NE(refusal(with("[{policy: full, selection: {quest: {page: 3}}}]")).find("did you mean 'pages'?"),
            std::string::npos);
  expect(with(quest, "loss, survival"),
         "metric 'survival' does not know of entries that nobody sees yet, expected no selection beside it");
  expect(test::replaced(with("[full, {policy: streaming, selection: quest}]", "evicted_overlap"), "interval: 8}",
                        "interval: 8, cut_by: golden}"),
         "expected no selection beside it");
  expect("# How much loss?\nmodel: " + ref::source_path("tests/data/llama") +
             "\nprotocol: profile\ndata: [{task: kv, tokens: 64}]\npolicies: [{policy: keydiff, selection: quest}]\n",
         "policy 'keydiff+quest' under protocol profile takes no selection yet, expected all in place of 'quest'");
}

}  // namespace
}  // namespace kv
