#include "harness/spec/grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/spec/spec_reader.h"
#include "kernels/error.h"
#include "sim/budget/profile_file.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

Spec spec_of(const std::string& yaml) { return parse_spec(yaml, "s.yaml"); }

std::string error_of(const std::string& yaml) {
  try {
    make_grid(spec_of(yaml));
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* kHead = "model: m\ndata: [{task: reason, tokens: 512}]\n";

TEST(Grid, IsTheProductOfTheAxesFirstSlowestThenPolicies) {
  const Grid grid = make_grid(
      spec_of(std::string(kHead) + "policies: [full, streaming]\naxes: {budget: [64, 128], interval: [16, 32]}\n"));
  ASSERT_EQ(grid.workloads.size(), 1u);
  std::vector<std::string> order;
  for (const Case& unit_case : grid.workloads[0].cases) {
    order.push_back(fmt::format("{} {} {}", unit_case.count("budget"), unit_case.count("interval"), unit_case.policy));
  }
  EXPECT_EQ(order, (std::vector<std::string>{"64 16 0", "64 16 1", "64 32 0", "64 32 1", "128 16 0", "128 16 1",
                                             "128 32 0", "128 32 1"}));
}

TEST(Grid, ZippedAxesMoveTogether) {
  const Grid grid = make_grid(
      spec_of(std::string(kHead) +
              "policies: [streaming]\naxes: {setting: [{budget: 64, interval: 16}, {budget: 128, interval: 32}]}\n"));
  ASSERT_EQ(grid.workloads[0].cases.size(), 2u);
  EXPECT_EQ(grid.workloads[0].cases[1].count("budget"), 128);
  EXPECT_EQ(grid.workloads[0].cases[1].count("interval"), 32);
  EXPECT_EQ(grid.workloads[0].cases[1].axes, (std::vector<std::string>{"128", "32"}));
}

TEST(Grid, AnAxisOfTheDataMakesOtherWorkloads) {
  const Grid grid = make_grid(spec_of(
      "model: m\ndata: [reason, book]\npolicies: [streaming]\naxes: {budget: 64, interval: 16, tokens: [256, 512]}\n"));
  ASSERT_EQ(grid.workloads.size(), 4u);
  EXPECT_EQ(grid.workloads[0].tokens, 256);
  EXPECT_EQ(grid.workloads[1].tokens, 512);
  EXPECT_EQ(grid.workloads[2].data, 1);
  EXPECT_EQ(grid.workloads[1].cases.size(), 1u);
  EXPECT_EQ(grid.workloads[1].cases[0].axes, (std::vector<std::string>{"64", "16", "512"}));
}

TEST(Grid, DepthDistractorsAndWordingAreOptionsAndAxesOfTheData) {
  const Grid grid = make_grid(
      spec_of("model: m\ndata: [{task: niah-single-2, tokens: 512, hay: noise, wording: neutral}]\n"
              "policies: [streaming]\naxes: {budget: 64, interval: 16, depth: [0, 0.5], distractors: [0, 8]}\n"));
  ASSERT_EQ(grid.workloads.size(), 4u);
  const TaskOptions& options = grid.workloads[3].options;
  EXPECT_EQ(options.depth, 0.5);
  EXPECT_EQ(options.distractors, 8);
  EXPECT_EQ(options.hay, Hay::kNoise);
  EXPECT_EQ(options.wording, Wording::kNeutral);
  EXPECT_EQ(grid.workloads[0].options.depth, 0.0);
}

// 50 000 points are read, and counted, in a moment.
TEST(Grid, RefusesMoreCasesThanAnybodyWaitsFor) {
  std::string budgets;
  for (int budget = 100; budget < 50100; ++budget) budgets += fmt::format("{}{}", budgets.empty() ? "" : ", ", budget);
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full, streaming]\naxes: {budget: [" + budgets + "]}\n"),
            "s.yaml:4:16: axes: the product of the axes makes more than 20000 cases, expected at most that many");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full]\nsamples: 2147483647\n"),
            "s.yaml:4:10: samples = 2147483647: expected an integer from 1 to 1000000");
}

TEST(Grid, RefusesWhatATaskCannotBe) {
  const auto error = [](const std::string& task) {
    return error_of("model: m\ndata: [{task: " + task +
                    ", tokens: 512}]\npolicies: [streaming]\naxes: {budget: 64, interval: 16}\n");
  };
  EXPECT_EQ(error("qa-2"), "s.yaml:2:15: task qa-2 is not generated, expected a JSON-lines data set of its questions");
  EXPECT_NE(error("needle, depth: 50").find("expected 0 to 1"), std::string::npos);
  EXPECT_NE(error("vt, wording: plain").find("reference"), std::string::npos);
  EXPECT_NE(error("reason, definitions: 0.5").find("definitions = 0.5: expected 0 to 0.2"), std::string::npos);
}

TEST(Grid, AnAxisOfOnePolicyDoesNotRepeatTheOthers) {
  const Grid grid = make_grid(
      spec_of(std::string(kHead) + "policies: [keydiff, snapkv]\naxes: {budget: 64, interval: 16, window: [4, 8]}\n"));
  const std::vector<Case>& cases = grid.workloads[0].cases;
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_EQ(cases[0].axes[2], "");
  EXPECT_EQ(cases[1].axes[2], "4");
  EXPECT_EQ(cases[2].axes[2], "8");
  EXPECT_EQ(cases[2].options.back().text, "8");
}

// Both filled by the policy itself and by another axis, which stands behind it.
TEST(Grid, AnAxisMayBeAnOptionOfWhatFillsASlot) {
  const Grid own =
      make_grid(spec_of(std::string(kHead) +
                        "policies: [full, {policy: full, admission: {local: {sinks: 2}}, label: local}, snapkv]\n"
                        "axes: {local.window: [32, 64], setting: [{budget: 64, interval: 16}]}\n"));
  const std::vector<Case>& cases = own.workloads[0].cases;
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[0].axes[0], "");
  EXPECT_EQ(cases[1].axes[0], "32");
  EXPECT_EQ(cases[1].slots.admission.options.back().key, "window");
  EXPECT_EQ(cases[1].slots.admission.options.back().text, "32");
  EXPECT_EQ(cases[2].axes[0], "");
  EXPECT_EQ(cases[3].axes[0], "64");
  const Grid by_axis = make_grid(spec_of(std::string(kHead) +
                                         "policies: [full]\naxes: {local.window: [32, 64], admission: [none, local], "
                                         "budget: 64, interval: 16}\n"));
  ASSERT_EQ(by_axis.workloads[0].cases.size(), 3u);
  EXPECT_EQ(by_axis.workloads[0].cases[0].slots.admission.options.size(), 0u);
  EXPECT_EQ(by_axis.workloads[0].cases[1].axes[0], "32");
}

TEST(Grid, RefusesAnOptionOfASlotThatNobodyHas) {
  const auto error = [](const std::string& policies, const std::string& axis) {
    return error_of(std::string(kHead) + "policies: [" + policies + "]\naxes: {" + axis +
                    ": 64, budget: 64, interval: 16}");
  };
  const std::string local = "{policy: full, admission: local}";
  EXPECT_EQ(error(local, "local.windw").substr(0, 115),
            "s.yaml:4:21: axes: 'local.windw' is no option of this experiment's data or policies, did you mean "
            "'local.window'? (");
  EXPECT_NE(error("full", "local.window").find("'local.window' is no option of this experiment's"), std::string::npos);
  EXPECT_EQ(error("{policy: full, admission: {local: {window: 8}}}", "local.window"),
            "s.yaml:4:22: axes: 'local.window' is set by 'full+local', too; expected one of them");
}

TEST(Grid, StatisticsBlocksBeginAtEveryEvent) {
  // Events of (96, 32) fall on 96 + 32k, of (64, 16) on 64 + 16k: blocks of 16 begin at all of them.
  const Grid grid = make_grid(
      spec_of(std::string(kHead) +
              "policies: [golden]\naxes: {setting: [{budget: 96, interval: 32}, {budget: 64, interval: 16}]}\n"));
  EXPECT_EQ(grid.needs.statistics_block, 16);
  EXPECT_TRUE(grid.needs.block_sums);
}

TEST(Grid, SuggestsTheNearestPolicyMetricAndTask) {
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [snapvk]").substr(0, 61),
            "s.yaml:3:12: unknown policy 'snapvk', did you mean 'snapkv'? ");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full]\nmetrics: [recal]").substr(0, 59),
            "s.yaml:4:11: unknown metric 'recal', did you mean 'recall'?");
  EXPECT_EQ(error_of("model: m\ndata: [{task: raeson, tokens: 8}]\npolicies: [full]").substr(0, 58),
            "s.yaml:2:15: unknown task 'raeson', did you mean 'reason'?");
}

// Whatever its value, and before what it makes wrong elsewhere.
TEST(Grid, AMisspeltKeyOfAPolicyIsNamedWithTheKeysThatItHas) {
  const auto error = [](const std::string& keys, const std::string& axes = "") {
    return error_of(std::string(kHead) + "policies: [{policy: " + keys + "}]\naxes: {" + axes + "}");
  };
  EXPECT_EQ(error("full, admision: {local: {window: 8}}"),
            "s.yaml:3:27: policy: unknown key 'admision', did you mean 'admission'? (expected one of: policy, only, "
            "allocation, admission, selection, label)");
  for (const char* axes : {"", "local.window: 8"}) {
    EXPECT_EQ(error("full, admision: local", axes),
              "s.yaml:3:37: full: admision = local: unknown option, did you mean 'admission'? (expected one of: only, "
              "allocation, admission, selection, label)");
    EXPECT_EQ(error("full, admission: {local: {windw: 8}}", axes),
              "s.yaml:3:54: local: windw = 8: unknown option, did you mean 'window'? (expected one of: sinks, window)");
  }
  EXPECT_EQ(error("streaming, lable: x"),
            "s.yaml:3:39: streaming: lable = x: unknown option, did you mean 'label'? (expected one of: sinks, only, "
            "allocation, admission, selection, label)");
  // A list is no option's value, and no key is near.
  EXPECT_EQ(error("snapkv, kernel: [3, 5]"), "s.yaml:3:37: policy: kernel = a list: expected a single value");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full]\nmetrics: [{metric: loss, lag: 1}]"),
            "s.yaml:4:31: loss: lag = 1: unknown option (expected one of: bin)");
}

// A misspelt slot is named first: without it the labels are equal.
TEST(Grid, TwoPoliciesOrMetricsHaveTwoLabels) {
  const auto error = [](const std::string& policies, const std::string& metrics = "loss") {
    return error_of(std::string(kHead) + "policies: [" + policies + "]\nmetrics: [" + metrics + "]");
  };
  EXPECT_EQ(error("full, full"), "s.yaml:3:18: policy: 'full' appears twice, expected a label of its own for each");
  EXPECT_EQ(error("full, h2o, {policy: h2o, mode: original}"),
            "s.yaml:3:23: policy: 'h2o' appears twice, expected a label of its own for each");
  EXPECT_EQ(error("full, {policy: full, label: b}, {policy: full, admission: local}"), "no error");
  EXPECT_EQ(error("full", "loss, loss"), "s.yaml:4:17: metric: 'loss' appears twice");
  EXPECT_EQ(error("full, {policy: full, admision: local}").substr(0, 74),
            "s.yaml:3:43: full: admision = local: unknown option, did you mean 'admissi");
}

TEST(Grid, AnOptionOfASlotBesideItIsSentThere) {
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [{policy: full, admission: local, window: 4}]"),
            "s.yaml:3:53: full: window = 4: is an option of admission local, expected admission: {local: {window: 4}}");
  // It is the policy's own, too.
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [{policy: snapkv, admission: local, window: 4}]\n"
                                          "axes: {budget: 64, interval: 16}"),
            "no error");
}

TEST(Grid, AnUnknownSlotIsRefusedAtItsName) {
  const auto error = [](const std::string& keys) {
    return error_of(std::string(kHead) + "policies: [{policy: full, " + keys + "}]").substr(0, 41);
  };
  EXPECT_EQ(error("admission: locl"), "s.yaml:3:38: unknown admission 'locl', di");
  EXPECT_EQ(error("admission: {locl: {window: 8}}"), "s.yaml:3:39: unknown admission 'locl', di");
  EXPECT_EQ(error("selection: qest"), "s.yaml:3:38: unknown selection 'qest', di");
  EXPECT_EQ(error("allocation: adda"), "s.yaml:3:39: unknown allocation 'adda', d");
}

TEST(Grid, RefusesABudgetThatAPolicyCannotKeepAtTheAxis) {
  const std::string error = error_of(std::string(kHead) + "policies: [h2o]\naxes: {budget: 64, interval: 64}\n");
  EXPECT_EQ(error.substr(0, 14), "s.yaml:4:16: h") << error;
  EXPECT_NE(error.find("64"), std::string::npos);
}

TEST(Grid, RefusesAnIntervalThatMayLeaveAHeadLessThanItsWindowAtTheAxis) {
  EXPECT_EQ(error_of(std::string(kHead) +
                     "policies: [{policy: snapkv, allocation: pyramid}]\naxes: {budget: 64, interval: 4}\n"),
            "s.yaml:4:30: snapkv: interval 4 must be at least the window 8 with allocation pyramid, which may leave a "
            "head fewer entries");
  EXPECT_EQ(error_of(std::string(kHead) +
                     "policies: [{policy: h2o, queries: 32, allocation: pyramid}]\naxes: {budget: 64, interval: 4}\n"),
            "no error");
}

// A cache that is pruned by how full it is.
TEST(Grid, RefusesACapacityThatMeansNothingOrThatSomebodyCannotDoWith) {
  const auto error = [](const std::string& policy, const std::string& axes, const std::string& metrics = "loss") {
    return error_of(std::string(kHead) + "policies: [" + policy + "]\naxes: {" + axes + "}\nmetrics: [" + metrics +
                    "]\n");
  };
  EXPECT_EQ(error("{policy: snapkv, mode: wg-kv, allocation: share}", "capacity: 512, drop: 0.2"), "no error");
  EXPECT_EQ(error("{policy: snapkv, mode: wg-kv}", "capacity: 255"),
            "s.yaml:4:18: policy 'snapkv' under protocol decode has a capacity of 255 entries, expected at least the "
            "window 256");
  EXPECT_EQ(error("{policy: h2o, admission: {local: {window: 64}}}", "capacity: 63"),
            "s.yaml:4:18: policy 'h2o+local' under protocol decode has a capacity of 63 entries, expected at least the "
            "window 64");
  EXPECT_EQ(error("h2o", "capacity: 9"),
            "s.yaml:4:18: policy 'h2o' under protocol decode has a capacity of 9 entries, of which drop = 0.1 takes "
            "less than 2 a head, no more than a token may bring; expected more of either");
  EXPECT_EQ(error("h2o", "capacity: 64, drop: 1"),
            "s.yaml:4:28: policy 'h2o' under protocol decode has drop = 1, expected less");
  EXPECT_EQ(error("h2o", "budget: 64, interval: 16, drop: 0.2"),
            "s.yaml:4:40: policy 'h2o' under protocol decode has drop without the axis capacity");
  EXPECT_EQ(error("h2o", "capacity: 64, budget: 64, interval: 16"),
            "s.yaml:4:18: policy 'h2o' under protocol decode takes either the axis capacity or the axes budget and "
            "interval, not both");
  EXPECT_EQ(error("golden", "capacity: 64"),
            "s.yaml:4:18: policy 'golden' under protocol decode needs the future, which knows events by their places, "
            "expected no axis capacity");
  EXPECT_EQ(error("{policy: h2o, allocation: optimal}", "capacity: 64").substr(0, 55),
            "s.yaml:4:18: policy 'h2o+optimal' under protocol decode");
  EXPECT_EQ(
      error("{policy: streaming, sinks: 30}", "capacity: 40, drop: 0.1"),
      "s.yaml:4:18: policy 'streaming' under protocol decode has a capacity of 40 entries with 30 protected sinks, of "
      "which drop = 0.1 takes less than 2 a head, no more than a token may bring; expected more of either");
  EXPECT_EQ(error("foresight-kv", "capacity: 64"),
            "s.yaml:4:18: policy 'foresight-kv' under protocol decode knows events after whole intervals only, "
            "expected the axes budget and interval");
  EXPECT_EQ(error("{policy: h2o, queries: 8}", "capacity: 64").substr(0, 70),
            "s.yaml:4:18: policy 'h2o' under protocol decode knows events after who");
  EXPECT_EQ(error("h2o", "capacity: 64, cut_by: golden", "evicted_overlap"),
            "s.yaml:4:18: policy 'h2o' under protocol decode with cut_by = golden is pruned to a budget, expected no "
            "axis capacity");
  EXPECT_EQ(error("h2o", "capacity: 64", "recall"),
            "s.yaml:5:11: metric 'recall' asks beforehand where events fall, which the axis capacity leaves to the "
            "cache");
  EXPECT_EQ(error("{policy: snapkv, window: 65, admission: {local: {window: 64}}}", "capacity: 64"),
            "s.yaml:3:12: snapkv: judges by the newest 65 queries, expected no more than the 64 tokens for which "
            "admission local lets all see an entry");
}

TEST(Grid, RefusesAxesOfTheOtherProtocolAndMissingOnes) {
  EXPECT_EQ(
      error_of(std::string(kHead) + "policies: [h2o]\naxes: {keep: 0.5}"),
      "s.yaml:4:14: axes: keep does not belong to protocol decode (expected budget and interval and capacity and drop "
      "and cut_by)");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [h2o]\naxes: {budget: 64}"),
            "s.yaml:4:16: policy 'h2o' under protocol decode needs the axes budget and interval, or the axis capacity");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [keydiff]\nprotocol: one-shot"),
            "s.yaml:3:12: policy 'keydiff' under protocol one-shot needs the axis keep");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [keydiff]\nprotocol: one-shot\naxes: {keep: 1.5}"),
            "s.yaml:5:14: axes: keep = 1.5: expected a fraction above 0 and at most 1");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full]"), "no error");
}

constexpr const char* kLatencyHead = "model: {random: tiny}\nprotocol: latency\n";

TEST(Grid, LatencyCasesLeaveOutWhatAPolicyHasNoUseFor) {
  const Grid grid = make_grid(spec_of(std::string(kLatencyHead) +
                                      "policies: [full, streaming]\n"
                                      "axes: {budget: [64, 128], interval: 16, new_tokens: 300, batch: [4, max]}\n"));
  ASSERT_EQ(grid.workloads.size(), 1u);
  std::vector<std::string> order;
  for (const Case& unit_case : grid.workloads[0].cases) {
    order.push_back(fmt::format("{} {} {}", unit_case.policy, unit_case.count("budget"), unit_case.word("batch")));
  }
  EXPECT_EQ(order, (std::vector<std::string>{"0 0 4", "1 64 4", "0 0 max", "1 64 max", "1 128 4", "1 128 max"}));
}

TEST(Grid, RefusesLatencyCasesThatMeasureNothing) {
  const std::string head = kLatencyHead;
  EXPECT_EQ(error_of(head + "policies: [full]\naxes: {batch: 2}\n"),
            "s.yaml:3:12: policy 'full' under protocol latency needs an axis context or new_tokens");
  EXPECT_EQ(
      error_of(head + "policies: [h2o]\naxes: {context: 64}\n"),
      "s.yaml:3:12: policy 'h2o' under protocol latency needs either the axes budget and interval or the axis keep");
  EXPECT_EQ(error_of(head + "policies: [h2o]\naxes: {new_tokens: 64, keep: 0.5}\n"),
            "s.yaml:3:12: policy 'h2o' under protocol latency needs the axis context, of which keep is a fraction");
  EXPECT_EQ(error_of(head + "policies: [h2o]\naxes: {context: 64, budget: 32, interval: 16}\n"),
            "s.yaml:3:12: policy 'h2o' under protocol latency takes either the axis context, or budget and interval");
  EXPECT_EQ(
      error_of(head + "policies: [{policy: h2o, mode: original}]\naxes: {new_tokens: 64, budget: 32, interval: 16}\n"),
      "s.yaml:3:12: policy 'h2o' under protocol latency prunes at an interval of its own; expected one that keeps "
      "to the asked interval");
  EXPECT_EQ(error_of(head + "policies: [golden]\naxes: {new_tokens: 64, budget: 32, interval: 16}\n"),
            "s.yaml:3:12: policy 'golden' under protocol latency needs the future, which nothing computes there");
  EXPECT_EQ(error_of(head + "policies: [{policy: h2o, allocation: optimal}]\naxes: {context: 64, keep: 0.5}\n"),
            "s.yaml:3:12: policy 'h2o+optimal' under protocol latency needs the future (allocation 'optimal' divides "
            "each input by it), which nothing computes there");
  EXPECT_EQ(error_of(head + "policies: [full]\naxes: {context: 64, batch: many}\n"),
            "s.yaml:4:28: axes: batch = many: expected a number of sequences, or max");
  EXPECT_EQ(error_of(head + "data: [{task: reason, tokens: 64}]\npolicies: [full]\naxes: {context: 64}\n"),
            "s.yaml:3:7: data = a list: protocol latency draws its own tokens, expected no such key");
}

TEST(Grid, APolicyRunsOnlyWhereItsSpecWantsIt) {
  const Grid grid = make_grid(
      spec_of(std::string(kHead) +
              "policies: [full, {policy: streaming, only: {budget: 128}}]\naxes: {budget: [64, 128], interval: 16}\n"));
  std::vector<std::string> order;
  for (const Case& unit_case : grid.workloads[0].cases)
    order.push_back(fmt::format("{} {}", unit_case.policy, unit_case.count("budget")));
  EXPECT_EQ(order, (std::vector<std::string>{"0 64", "0 128", "1 128"}));
  EXPECT_EQ(error_of(std::string(kHead) +
                     "policies: [{policy: streaming, only: {size: 1}}]\naxes: {budget: 64, interval: 16}\n"),
            "s.yaml:3:12: policy 'streaming': only: 'size' is no axis (expected one of: budget, interval)");
}

TEST(Grid, KnowsBeforeAnythingRunsThatAProfileIsMissing) {
  const std::string llama = ref::source_path("tests/data/llama"),
                    asked =
                        "data: [{task: reason, tokens: 512}]\npolicies: [{policy: keydiff, sinks: 4, allocation: "
                        "lu-kv}]\nprotocol: one-shot\n"
                        "axes: {keep: 0.2}\nmodel: ";
  EXPECT_EQ(error_of(asked + llama + "\n"), "s.yaml:2:12: lu-kv: there is no profile of keydiff {sinks: 4}, expected " +
                                                llama +
                                                "/profiles/keydiff_sinks=4.json; `kvlab profile SPEC` makes one");
  EXPECT_EQ(error_of(asked + "m\n"), "no error") << "of a model that is not there: who opens it says so";
  EXPECT_EQ(error_of("model: m\ndata: [{task: kv, tokens: 64}]\npolicies: [keydiff, full]\nprotocol: profile\n"),
            "s.yaml:3:21: policy 'full' never evicts, so there is nothing to profile");
}

// `tiny` has 2 layers of 2 KV heads. Random weights have no files to compare, so their shape is all there is.
TEST(Grid, KnowsBeforeAnythingRunsThatAProfileIsOfAnotherShape) {
  const test::TempFolder folder;
  const ProfileLosses::Curve none(kProfileRatios, 0);
  const std::filesystem::path file = folder / "p.json";
  test::write_file(file, format_profile({.model = "m",
                                         .fingerprint = "any",
                                         .scorer = "keydiff",
                                         .calibration = {{"kv"}, 1, 1, 100, 0},
                                         .losses = {none, none, none, none},
                                         .layers = 3,
                                         .kv_heads = 4,
                                         .removed = std::vector<float>(kProfileRatios * 12, 0.5F)}));
  const auto error = [&](const char* model) {
    return error_of(
        fmt::format("model: {{random: {}}}\nprotocol: latency\nsamples: 1\naxes: {{budget: 64, interval: "
                    "16}}\npolicies: [{{policy: keydiff, allocation: {{lu-kv: {{profile: {}}}}}}}]\n",
                    model, file.string()));
  };
  EXPECT_EQ(error("tiny"),
            fmt::format("s.yaml:5:12: lu-kv: {} is for 3 layers of 4 KV heads, expected 2 of 2; `kvlab profile SPEC` "
                        "makes one",
                        file.string()));
  // Not the profile's fault, nor that of the policy which asks for the shape.
  EXPECT_EQ(error("tinny").substr(0, 32), "s.yaml:1:17: unknown model shape");
}

// What the file says is not even looked at.
TEST(Grid, AProfileLaidOverAnotherShapeServesProtocolLatencyOnly) {
  const test::TempFolder folder;
  test::write_file(folder / "p.json", "anything");
  const std::string policy =
      fmt::format("policies: [{{policy: keydiff, allocation: {{lu-kv: {{profile: {}, spread: yes}}}}}}]\n",
                  (folder / "p.json").string());
  const std::string refusal =
      "s.yaml:3:12: lu-kv: with 'spread: yes' only time and memory mean anything, and only a spec with 'protocol: "
      "latency' "
      "measures those";
  const std::string random = "model: {random: tiny}\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\n";
  EXPECT_EQ(error_of(random + policy + "protocol: one-shot\naxes: {keep: 0.2}\n"), refusal);
  EXPECT_EQ(error_of(random + policy + "axes: {budget: 24, interval: 8}\n"), refusal);
}

TEST(Grid, AnOracleAllocationAsksForWhatItLooksAt) {
  const std::string head = std::string(kHead) + "protocol: one-shot\naxes: {keep: 0.2}\n";
  const BaselineNeeds needs = make_grid(spec_of(head + "policies: [{policy: h2o, allocation: optimal}]\n")).needs;
  EXPECT_TRUE(needs.block_max && needs.value_norms);
  EXPECT_EQ(needs.statistics_block, 64);
  EXPECT_EQ(make_grid(spec_of(head + "policies: [{policy: h2o, allocation: {optimal: {block: 24}}}]\n"
                                     "metrics: [{metric: recall, block: 16}]\n"))
                .needs.statistics_block,
            8);
}

TEST(Grid, RefusesToKeepWhatIsNoFraction) {
  for (const char* protocol : {"one-shot", "answer"}) {
    const auto message = [&](const char* keep) {
      return error_of(
          fmt::format("{}policies: [full, keydiff]\nprotocol: {}\naxes: {{keep: [0.5, {}]}}\n", kHead, protocol, keep));
    };
    for (const char* keep : {"0", "-0.5", "1.5", "nan", ".nan", "inf", "half", "0.5x", "50%"}) {
      EXPECT_EQ(message(keep),
                fmt::format("s.yaml:5:20: axes: keep = {}: expected a fraction above 0 and at most 1", keep));
    }
    EXPECT_EQ(message("1"), "no error");
    EXPECT_EQ(message("''"), "s.yaml:5:20: axes: keep: expected a single value a point");
  }
}

TEST(Grid, RefusesUnknownAxesAndOptions) {
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [h2o]\naxes: {budgte: 64, interval: 16}").substr(0, 92),
            "s.yaml:4:16: axes: 'budgte' is no option of this experiment's data or policies, did you mean");
  EXPECT_NE(error_of(std::string(kHead) + "policies: [{policy: h2o, moed: original}]\naxes: {budget: 64, interval: 16}")
                .find("s.yaml:3:32: h2o: moed = original: unknown option"),
            std::string::npos);
  EXPECT_EQ(error_of("model: m\ndata: [reason]\npolicies: [full]"),
            "s.yaml:2:8: data: 'reason' lacks the key 'tokens' (a sample's length)");
  EXPECT_EQ(error_of(std::string(kHead) + "policies: [full]\naxes: {tokens: 64}"),
            "s.yaml:4:16: axes: 'tokens' is set by 'reason', too; expected one of them");
}

}  // namespace
}  // namespace kv
