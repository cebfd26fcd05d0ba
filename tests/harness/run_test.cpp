#include "harness/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/rows_file.h"
#include "kernels/error.h"
#include "sim/budget/profile_file.h"
#include "sim/model/model_config.h"
#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "tests/support/run_fixture.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

struct Killed {};

class Run : public RunFixture {
 protected:
  // Runs until `cases` more cases are on disk, then dies as if killed.
  void run_and_die(const std::string& out, int cases) const {
    const ref::Threads one(1);  // of several cases at once, another may still be finished
    RunOptions dying = options(out);
    dying.after_case = [&cases] {
      if (--cases == 0) throw Killed();
    };
    EXPECT_THROW(run_experiment(spec(), dying), Killed);
    EXPECT_FALSE(fs::exists(folder_ / out / "rows.csv"));
  }

  std::string refusal(const std::vector<std::string>& overrides) const {
    try {
      validate_experiment(spec(overrides));
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(Run, WritesRowsInOrderOfTheCases) {
  const RunSummary summary = run_experiment(spec(), options("a"));
  EXPECT_EQ(summary.cases, 2 * 4 * 3);
  EXPECT_EQ(summary.skipped, 0);
  EXPECT_EQ(summary.failed, 0);
  for (const char* file : {"rows.csv", "spec.yaml", "manifest.json", "index.html"}) {
    EXPECT_TRUE(fs::exists(folder_ / "a" / file)) << file;
  }
  EXPECT_TRUE(fs::exists(folder_ / "a" / "units"));  // for the next run

  const RowTable table = read_rows(folder_ / "a" / "rows.csv");
  EXPECT_EQ(table.axes, (std::vector<std::string>{"budget", "interval"}));
  std::vector<std::string> order;
  for (const Row& row : table.rows) {
    EXPECT_EQ(row.experiment, "tiny");
    EXPECT_EQ(row.model, "llama");
    EXPECT_EQ(row.data, "noise");
    EXPECT_EQ(row.seed, 5);
    const std::string place = fmt::format("{} {} {}", row.axes[0], row.policy, *row.sample);
    if (order.empty() || order.back() != place) order.push_back(place);
  }
  ASSERT_EQ(order.size(), 24u);
  EXPECT_EQ(order[0], "16 full 0");
  EXPECT_EQ(order[2], "16 full 2");
  EXPECT_EQ(order[3], "16 streaming 0");
  EXPECT_EQ(order[12], "24 full 0");
}

TEST_F(Run, SaysWhatWasReallyKept) {
  run_experiment(spec(), options("a"));
  std::set<std::string> seen;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    if (row.policy != "h2o" || row.axes[0] != "16" || !row.value) continue;
    seen.insert(row.metric);
    if (row.metric == "kept_tokens" || row.metric == "kept_tokens_max") {
      EXPECT_EQ(*row.value, 16);
    }
    // Chunks of 8 after the first 16 of 48 tokens: 4, and none after the last.
    if (row.metric == "evictions") {
      EXPECT_EQ(*row.value, 3);
    }
    // 16·17/2 pairs, then 4 chunks of 8 queries that see 16 and themselves; 3 layers and 2 KV heads.
    if (row.metric == "attended_pairs") {
      EXPECT_EQ(*row.value, 6 * (136 + 4 * (8 * 16 + 36)));
    }
  }
  for (const char* metric :
       {"kept_tokens", "kept_tokens_max", "evictions", "attended_pairs", "kv_bytes", "column_bytes", "total_time",
        "attention_time", "score_time", "evict_time", "nll_sum", "nll_sum_full"}) {
    EXPECT_TRUE(seen.contains(metric)) << metric;
  }
}

TEST_F(Run, FullIsTheSameAtEveryBudget) {
  run_experiment(spec(), options("a"));
  std::map<std::string, std::vector<double>> by_budget;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    if (row.policy == "full" && row.metric == "nll_sum") by_budget[row.axes[0]].push_back(*row.value);
  }
  ASSERT_EQ(by_budget.size(), 2u);
  EXPECT_EQ(by_budget["16"].size(), 3u);
  EXPECT_EQ(by_budget["16"], by_budget["24"]);
}

TEST_F(Run, ABudgetBeyondTheTextRunsAsFull) {
  run_experiment(spec({"axes.budget=[64]", "policies=[full, h2o]"}), options("a"));
  std::map<std::string, std::vector<double>> losses;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    if (row.metric == "nll_sum") losses[row.policy].push_back(*row.value);
    if (row.metric == "evictions") {
      EXPECT_EQ(*row.value, 0);
    }
    if (row.metric == "kept_tokens") {
      EXPECT_EQ(*row.value, 48);
    }
  }
  ASSERT_EQ(losses["h2o"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses["h2o"][i], losses["full"][i], 1e-5 * 48);
}

TEST_F(Run, EndsWithTheSameRowsWhereverItWasKilled) {
  run_experiment(spec(), options("whole"));
  for (const int cases : {1, 11, 24}) {
    const std::string out = fmt::format("killed-{}", cases);
    run_and_die(out, cases);
    const RunSummary summary = run_experiment(spec(), options(out));
    EXPECT_EQ(summary.reused, cases);
    EXPECT_EQ(summary.cases, 24);
    EXPECT_EQ(rows_of(out), rows_of("whole"));
  }
}

TEST_F(Run, RunsTornAndAlteredCasesAgain) {
  run_experiment(spec(), options("whole"));
  run_and_die("torn", 3);
  const fs::path units = fs::directory_iterator(folder_ / "torn" / "units")->path();
  std::vector<fs::path> files(fs::directory_iterator(units), {});
  ASSERT_EQ(files.size(), 3);
  std::string content = read_file(files[0]);
  content[content.find(",nll_sum,") + 1] = 'N';
  write_atomically(files[0], content);
  fs::resize_file(files[1], fs::file_size(files[1]) - 20);
  EXPECT_EQ(run_experiment(spec(), options("torn")).reused, 1);
  EXPECT_EQ(rows_of("torn"), rows_of("whole"));
}

TEST_F(Run, FreshStartsOverAndAChangedSpecReusesOnlyWhatIsTheSame) {
  run_and_die("a", 24);
  RunOptions changed = options("a");
  EXPECT_EQ(run_experiment(spec({"axes.budget=[16, 32]"}), changed).reused, 12);
  run_and_die("b", 24);
  RunOptions fresh = options("b");
  fresh.start = Start::kFresh;
  EXPECT_EQ(run_experiment(spec(), fresh).reused, 0);
}

TEST_F(Run, ACompleteRunThatIsStartedAgainComputesNothing) {
  run_experiment(spec(), options("a"));
  const std::string rows = read_file(folder_ / "a" / "rows.csv");
  RunOptions again = options("a");
  again.after_case = [] { ADD_FAILURE() << "a unit was computed again"; };
  EXPECT_EQ(run_experiment(spec(), again).reused, 24);
  EXPECT_EQ(read_file(folder_ / "a" / "rows.csv"), rows);  // timings included
}

// Golden changes what the full-cache pass keeps for all; that must not cost the others their units.
TEST_F(Run, NarrowedAndWidenedRunsComputeOnlyWhatIsNew) {
  run_experiment(spec(), options("a"));
  const std::vector<std::string> narrow = {"policies=[full, h2o]", "axes.budget=[16]", "samples=2"};
  const RunSummary narrowed = run_experiment(spec(narrow), options("a"));
  EXPECT_EQ(narrowed.cases, 4);
  EXPECT_EQ(narrowed.reused, 4);
  run_experiment(spec(narrow), options("narrow"));
  EXPECT_EQ(rows_of("a"), rows_of("narrow"));
  const std::vector<std::string> wide = {"policies=[full, streaming, h2o, random, golden]", "axes.budget=[16, 24, 32]"};
  const RunSummary widened = run_experiment(spec(wide), options("a"));
  EXPECT_EQ(widened.cases, 3 * 5 * 3);
  EXPECT_EQ(widened.reused, 24);
  run_experiment(spec(wide), options("wide"));
  EXPECT_EQ(rows_of("a"), rows_of("wide"));
}

TEST_F(Run, AKilledRunLeavesTheEarlierResultAsItWas) {
  run_experiment(spec(), options("a"));
  std::map<std::string, std::string> before;
  for (const char* file : {"rows.csv", "spec.yaml", "manifest.json", "index.html", "table.md"}) {
    before[file] = read_file(folder_ / "a" / file);
  }
  for (const Start start : {Start::kResume, Start::kFresh}) {
    RunOptions dying = options("a");
    dying.start = start;
    dying.after_case = [] { throw Killed(); };
    EXPECT_THROW(run_experiment(spec({"seed=6"}), dying), Killed);
    for (const auto& [file, content] : before) EXPECT_EQ(read_file(folder_ / "a" / file), content) << file;
  }
}

TEST_F(Run, TwoRunsIntoOneFolderAreRefused) {
  RunOptions first = options("a");
  int refused = 0;
  first.after_case = [&] {
    if (refused > 0) return;
    try {
      run_experiment(spec(), options("a"));
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(", another kvlab run"), std::string::npos);
      ++refused;
    }
  };
  EXPECT_EQ(run_experiment(spec(), first).cases, 24);
  EXPECT_EQ(refused, 1);
}

TEST_F(Run, RowsDoNotDependOnThreads) {
  std::vector<std::string> names;
  for (const PolicyEntry* entry : policies()) {
    const Policy policy = make_policy(entry->name, {});
    if (policy.scorer && policy.scorer->learner()) continue;  // of this model nothing has been learned
    names.push_back(entry->name);
  }
  const std::vector<std::string> everything = {fmt::format("policies=[{}]", fmt::join(names, ", ")), "samples=1",
                                               "axes.budget=[24]", "metrics=[loss, recall, cosine, local_error]"};
  for (const auto& [out, threads] : {std::pair{"one", 1}, {"two", 2}}) {
    const ref::Threads limit(threads);
    run_experiment(spec(everything), options(out));
  }
  EXPECT_EQ(rows_of("one"), rows_of("two"));
  const RowTable table = read_rows(folder_ / "one" / "rows.csv");
  for (const char* metric : {"nll_sum", "recall", "cosine"}) {
    std::set<std::string> measured;
    for (const Row& row : table.rows) {
      if (row.metric == metric && row.value) measured.insert(row.policy);
    }
    for (const std::string& name : names)
      EXPECT_TRUE(name == "full" || measured.contains(name)) << metric << " of " << name;
  }
}

// A profile by which heads lose from little to most of their entries.
std::string profile_of(const std::filesystem::path& model, const std::string& scorer) {
  const ModelConfig config = load_model_config(model);
  const ProfileLosses::Curve none(kProfileRatios, 0);
  BudgetProfile profile{.model = "llama",
                        .fingerprint = fingerprint(model),
                        .scorer = scorer,
                        .calibration = {{"noise"}, 1, 1, 100, 0},
                        .losses = {none, none, none, none},
                        .layers = config.layers,
                        .kv_heads = config.kv_heads};
  for (size_t i = 0; i < kProfileRatios * profile.heads(); ++i) {
    profile.removed.push_back(static_cast<float>(i * 37 % 100) / 101);
  }
  return format_profile(profile);
}

TEST_F(Run, RowsOfEveryAllocationDoNotDependOnThreads) {
  write_atomically(folder_ / "p.json", profile_of(ref::source_path("tests/data/llama"), "h2o"));
  const std::map<std::string, std::string> options_of = {
      {"pyramid", "{pyramid: {beta: 2, window: 2}}"},
      {"lu-kv", fmt::format("{{lu-kv: {{profile: {}}}}}", (folder_ / "p.json").string())}};
  std::vector<std::string> entries;
  for (const AllocationEntry* entry : allocations()) {
    const auto found = options_of.find(entry->name);
    const std::string allocation = found == options_of.end() ? entry->name : found->second;
    entries.push_back(fmt::format("{{policy: h2o, label: {}, allocation: {}}}", entry->name, allocation));
  }
  const std::vector<std::string> everything = {fmt::format("policies=[full, {}]", fmt::join(entries, ", ")),
                                               "samples=2", "batch=2", "axes.budget=[24]", "metrics=[loss, recall]"};
  for (const auto& [name, threads] : {std::pair{"one", 1}, {"two", 2}}) {
    const ref::Threads set(threads);
    EXPECT_EQ(run_experiment(spec(everything), options(name)).skipped, 0);
  }
  EXPECT_EQ(rows_of("one"), rows_of("two"));
  const RowTable table = read_rows(folder_ / "one" / "rows.csv");
  for (const AllocationEntry* entry : allocations()) {
    EXPECT_TRUE(std::any_of(table.rows.begin(), table.rows.end(), [&](const Row& row) {
      return row.policy == entry->name && row.metric == "nll_sum" && row.value;
    })) << entry->name;
  }
}

// Small heads: the exact solver serves every event.
TEST_F(Run, RowsSayHowManyEventsWereDividedExactly) {
  run_experiment(spec({"policies=[{policy: h2o, allocation: optimal}, h2o]", "samples=2", "axes.budget=[24]"}),
                 options("a"));
  std::map<std::string, std::vector<double>> of;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    const bool splits = row.metric.ends_with("_splits");
    if (splits) {
      EXPECT_EQ(row.policy, "h2o+optimal");
      EXPECT_EQ(row.text, "oracle");
    }
    if (row.policy == "h2o+optimal" && (splits || row.metric == "evictions")) of[row.metric].push_back(*row.value);
  }
  EXPECT_EQ(of["evictions"], (std::vector<double>{2, 2}));
  EXPECT_EQ(of["exact_splits"], (std::vector<double>{2, 2}));
  EXPECT_EQ(of["hull_splits"], (std::vector<double>{0, 0}));
}

// The second case must not run on a profile that nothing has checked, nor that the manifest does not name.
TEST_F(Run, AProfileThatChangesWhileItRunsIsTheReasonOfASkippedCase) {
  const std::filesystem::path file = folder_ / "p.json";
  const std::string profile = profile_of(ref::source_path("tests/data/llama"), "h2o");
  write_atomically(file, profile);
  const ref::Threads one(1);  // so that the second case begins when the first is done
  RunOptions changing = options("out");
  changing.after_case = [&] { write_atomically(file, profile + "\n"); };
  const RunSummary summary = run_experiment(
      spec({fmt::format("policies=[{{policy: h2o, allocation: {{lu-kv: {{profile: {}}}}}}}]", file.string()),
            "samples=1"}),
      changing);
  EXPECT_EQ(summary.cases, 2);
  ASSERT_EQ(summary.problems.size(), 1u);
  EXPECT_NE(summary.problems[0].find("p.json has changed since it was checked"), std::string::npos)
      << summary.problems[0];
}

TEST_F(Run, BatchesChangeNoMoreThanRoundings) {
  run_experiment(spec(), options("one"));
  run_experiment(spec({"batch=2"}), options("two"));
  const RowTable first = read_rows(folder_ / "one" / "rows.csv"), second = read_rows(folder_ / "two" / "rows.csv");
  ASSERT_EQ(first.rows.size(), second.rows.size());
  for (size_t i = 0; i < first.rows.size(); ++i) {
    EXPECT_EQ(first.rows[i].metric, second.rows[i].metric);
    EXPECT_EQ(first.rows[i].sample, second.rows[i].sample);
    if (!first.rows[i].value || is_timing(first.rows[i].metric) || first.rows[i].unit == "bytes") continue;
    EXPECT_NEAR(*first.rows[i].value, *second.rows[i].value, 1e-4 * std::max(1.0, std::abs(*first.rows[i].value)))
        << first.rows[i].policy << " " << first.rows[i].metric;
  }
}

// Budgets are then bounds: a threshold that nothing reaches leaves what is protected, one that all reach changes
// nothing.
TEST_F(Run, AThresholdOfScoresLeavesLessThanABudgetAndFailsNothing) {
  const std::vector<std::string> data = {"batch=3", "metrics=[loss, cache_size]"};
  const auto run_with = [&](const std::string& out, const char* allocation, const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {fmt::format(
        "policies=[{{policy: keydiff, label: a, allocation: {0}}}, {{policy: h2o, label: b, allocation: {0}}}]",
        allocation)};
    overrides.insert(overrides.end(), data.begin(), data.end());
    overrides.insert(overrides.end(), more.begin(), more.end());
    const RunSummary summary = run_experiment(spec(overrides), options(out));
    EXPECT_EQ(summary.failed + summary.skipped, 0) << out << "\n"
                                                   << fmt::format("{}", fmt::join(summary.problems, "\n"));
  };
  const auto sizes_of = [&](const std::string& out) {
    std::vector<double> sizes;
    for (const Row& row : read_rows(folder_ / out / "rows.csv").rows) {
      if (row.metric == "cache_size") sizes.push_back(row.value.value());
    }
    return sizes;
  };
  const std::vector<std::vector<std::string>> protocols = {
      {}, {"protocol=one-shot", "axes={keep: [0.5, 1.0]}"}, {"axes={capacity: 24, drop: 0.25}"}};
  for (size_t p = 0; p < protocols.size(); ++p) {
    SCOPED_TRACE(p);
    const auto name = [&](const char* what) { return fmt::format("{}{}", what, p); };
    run_with(name("plain"), "global", protocols[p]);
    run_with(name("low"), "{global: {threshold: -1e30}}", protocols[p]);
    run_with(name("high"), "{global: {threshold: 1e30}}", protocols[p]);
    const std::vector<double> plain = sizes_of(name("plain")), low = sizes_of(name("low")),
                              high = sizes_of(name("high"));
    EXPECT_EQ(plain, low);
    ASSERT_EQ(plain.size(), high.size());
    ASSERT_FALSE(plain.empty());
    if (p == protocols.size() - 1) continue;  // what is left there at the end has come since the last event
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_LT(high[i], plain[i]) << i;
  }
}

TEST_F(Run, DataThatIsTooShortIsSkippedWithItsReason) {
  const RunSummary summary = run_experiment(spec({"samples=4", "policies=[streaming]"}), options("a"));
  EXPECT_EQ(summary.cases, 8);
  EXPECT_EQ(summary.skipped, 2);
  ASSERT_EQ(summary.problems.size(), 2u);
  EXPECT_NE(summary.problems[0].find("150 tokens, sample 3 of 48 tokens needs 192"), std::string::npos)
      << summary.problems[0];
  int skipped = 0;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows)
    skipped += row.skipped.empty() || !row.metric.empty() ? 0 : 1;
  EXPECT_EQ(skipped, 2);
}

TEST_F(Run, ASampleThatCannotBeHadCostsTheOthersOfItsBatchNothing) {
  for (const char* batch : {"batch=1", "batch=4"}) {
    const RunSummary summary = run_experiment(spec({"samples=4", "policies=[streaming]", batch}), options(batch));
    EXPECT_EQ(summary.cases, 8);
    EXPECT_EQ(summary.skipped, 2) << batch;
    std::set<int> measured;
    for (const Row& row : read_rows(folder_ / batch / "rows.csv").rows) {
      if (row.value) measured.insert(row.sample.value());
    }
    EXPECT_EQ(measured, (std::set{0, 1, 2})) << batch;
  }
}

using RunSlow = Run;

// One context is a token longer than the other, and the window leaves room in that one alone.
TEST_F(RunSlow, ASampleThatAPolicyRefusesCostsTheOthersOfItsBatchNothing) {
  write_atomically(spec_file(), "# Who is refused?\nmodel: " + ref::source_path("experiments/models/reference") +
                                    "\ndata: [{task: kv, tokens: 256}]\nprotocol: one-shot\nsamples: 4\ntables: []\n"
                                    "policies: [{policy: snapkv, window: 8}]\naxes: {keep: 0.5}\nmetrics: [loss]\n");
  run_experiment(spec(), options("all"));
  std::map<int, double> kept;
  for (const Row& row : read_rows(folder_ / "all" / "rows.csv").rows) {
    if (row.metric == "kept_tokens") kept[row.sample.value()] = row.value.value();
  }
  const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
  const double least = std::min_element(kept.begin(), kept.end(), by_value)->second;
  ASSERT_LT(least, std::max_element(kept.begin(), kept.end(), by_value)->second) << "contexts of one length";
  const std::string window = fmt::format("policies=[{{policy: snapkv, window: {}}}]", least);
  run_experiment(spec({window, "batch=1"}), options("one"));
  run_experiment(spec({window, "batch=4"}), options("four"));
  std::map<int, std::string> reasons;
  const std::vector<Row> rows = read_rows(folder_ / "four" / "rows.csv").rows;
  for (const Row& row : rows) {
    if (!row.skipped.empty() && row.metric.empty()) reasons[row.sample.value()] = row.skipped;
  }
  EXPECT_FALSE(reasons.empty());
  EXPECT_LT(reasons.size(), 4u);
  for (const auto& [sample, reason] : reasons) {
    EXPECT_EQ(reason, fmt::format("snapkv: budget {} does not exceed the window {}", kept[sample], least));
  }
  EXPECT_EQ(rows_of("four"), rows_of("one"));
}

TEST_F(Run, RowsAreSafeWhereTheReportCannotBeMade) {
  const std::vector<std::string> drawn = {"policies=[streaming]",
                                          "plots=[{name: p, kind: bars, metric: nll_sum, x: policy}]"};
  fs::create_directories(folder_ / "a" / "p.svg" / "in_the_way");
  EXPECT_THROW(run_experiment(spec(drawn), options("a")), UserError);
  EXPECT_FALSE(read_rows(folder_ / "a" / "rows.csv").rows.empty());
  EXPECT_TRUE(fs::exists(folder_ / "a" / "manifest.json"));
  fs::remove_all(folder_ / "a" / "p.svg");
  EXPECT_EQ(run_experiment(spec(drawn), options("a")).reused, 6);
  EXPECT_TRUE(fs::is_regular_file(folder_ / "a" / "p.svg"));
}

TEST_F(Run, ANamedShapeRunsWithRandomWeights) {
  const std::vector<std::string> random = {"model={random: tiny}"};
  EXPECT_EQ(run_experiment(spec(random), options("a")).skipped, 0);
  run_experiment(spec(random), options("b"));
  run_experiment(spec({"model={random: tiny}", "seed=6"}), options("c"));
  EXPECT_EQ(rows_of("a"), rows_of("b"));
  const auto losses = [&](const std::string& out) {
    std::vector<double> all;
    for (const Row& row : read_rows(folder_ / out / "rows.csv").rows) {
      EXPECT_EQ(row.model, "tiny (random)");
      if (row.metric == "nll_sum" && row.policy == "full") all.push_back(*row.value);
    }
    return all;
  };
  EXPECT_NE(losses("a"), losses("c"));  // the weights come from the seed
}

TEST_F(Run, ARandomModelRefusesUnknownShapesAndTextsBeforeItRuns) {
  EXPECT_EQ(refusal({"model={random: llama-9b}"}).substr(0, 56),
            "--set model={random: llama-9b}: unknown model shape 'lla");
  EXPECT_EQ(
      refusal({"model={random: tiny}", "data=[{task: reason, tokens: 64}]"}),
      "--set model={random: tiny}: tiny with random weights has no tokenizer; expected data with ids, or protocol "
      "latency");
}

TEST_F(Run, OracleRowsSaySo) {
  run_experiment(spec({"policies=[golden, h2o]"}), options("a"));
  int marked = 0;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    if (row.metric != "loss_ratio") continue;
    EXPECT_EQ(row.text, row.policy == "golden" ? "oracle" : "");
    marked += row.text == "oracle" ? 1 : 0;
  }
  EXPECT_EQ(marked, 6);
}

TEST_F(Run, AFolderThatCannotBeWrittenIsRefusedAtOnce) {
  write_atomically(folder_ / "file", "x");
  RunOptions unwritable = options("file/out");
  bool ran = false;
  unwritable.after_case = [&ran] { ran = true; };
  EXPECT_THROW(run_experiment(spec(), unwritable), UserError);
  EXPECT_FALSE(ran);
}

TEST_F(Run, OneShotKeepsTheAskedFraction) {
  // Without a question the whole text is context, so one event comes at its end.
  run_experiment(spec({"protocol=one-shot", "axes={keep: [0.25]}", "policies=[keydiff]"}), options("a"));
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) {
    if (row.metric == "kept_tokens") {
      EXPECT_EQ(*row.value, 12);
    }
    if (row.metric == "evictions") {
      EXPECT_EQ(*row.value, 1);
    }
  }
}

}  // namespace
}  // namespace kv
