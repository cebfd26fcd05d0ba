#include "harness/protocols/protocol.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "harness/protocols/unit.h"
#include "harness/rows_file.h"
#include "harness/spec/case_check.h"
#include "harness/spec/grid.h"
#include "kernels/error.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/run_fixture.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

// A protocol of the tests': says how many tokens its samples have, times a factor. All that it needs is here.
class Tally final : public UnitRunner {
 public:
  explicit Tally(const UnitBatch& batch) : batch_(batch) {}
  std::string inputs() const override { return "none"; }
  std::vector<Row> run(const Case& unit_case) override {
    const int factor = unit_case.count("factor");
    if (factor == 13) throw UserError("13 brings no luck");
    std::vector<Row> rows;
    for (int s = batch_.first; s < batch_.first + batch_.count; ++s) {
      add_row(rows, batch_.blank(unit_case, s), "tally", factor == 7 ? NAN : factor * batch_.workload.tokens, "tokens");
    }
    return rows;
  }

 private:
  UnitBatch batch_;
};

const RegisterProtocol tally{{
    .name = "tally",
    .summary = "counts tokens",
    .axes = {token_axis("factor", "by which they are multiplied")},
    .check_case =
        [](const CaseCheck& check) {
          if (check.candidate.count("factor") == 0) check.refuse("needs the axis factor");
        },
    .plan = [](const Spec& spec, const Grid&) { return spec.name + ": a tally"; },
    .memory = [](const UnitBatch&) { return [](int) { return size_t{0}; }; },
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> { return std::make_unique<Tally>(batch); },
}};

// A protocol whose units run side by side. The unit of factor 2 wants the memory for itself: beside others it does not
// fit.
class Throng final : public UnitRunner {
 public:
  explicit Throng(const UnitBatch& batch) : batch_(batch) {}
  std::string inputs() const override { return "none"; }
  int most_at_once() const override { return 3; }
  std::vector<Row> run(const Case& unit_case) override {
    std::unique_lock lock(mutex_);
    const bool is_second_try = ++entered_ > 3;
    int most = ++inside_;
    if (!is_second_try) {  // the first three wait for each other, so that a slow machine changes nothing
      most_ = std::max(most_, inside_);
      all_came_.notify_all();
      all_came_.wait_for(lock, std::chrono::seconds(20), [&] { return entered_ >= 3; });
      most = most_;
    }
    --inside_;
    if (unit_case.count("factor") == 2 && !is_second_try) throw MemoryError("taken by the others");
    std::vector<Row> rows;
    for (int s = batch_.first; s < batch_.first + batch_.count; ++s) {
      add_row(rows, batch_.blank(unit_case, s), "inside", most, "units");
    }
    return rows;
  }

 private:
  UnitBatch batch_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  int entered_ = 0, inside_ = 0, most_ = 0;
};

const RegisterProtocol throng{{
    .name = "throng",
    .summary = "counts who is there",
    .axes = {token_axis("factor", "of no meaning")},
    .plan = [](const Spec& spec, const Grid&) { return spec.name + ": a throng"; },
    .memory = [](const UnitBatch&) { return [](int) { return size_t{0}; }; },
    .open = [](const UnitBatch& batch) -> std::unique_ptr<UnitRunner> { return std::make_unique<Throng>(batch); },
}};

class Protocols : public RunFixture {
 protected:
  std::vector<std::string> overrides(const std::string& factors) const {
    return {"protocol=tally", fmt::format("axes={{factor: {}}}", factors), "policies=[full, h2o]", "metrics=[]"};
  }
};

TEST_F(Protocols, AnotherOneIsAFileOfItsOwn) {
  const std::vector<std::string> sound = overrides("[1, 2]");
  EXPECT_EQ(validate_experiment(spec(sound)), "tiny: a tally");
  const RunSummary summary = run_experiment(spec(sound), options("a"));
  EXPECT_EQ(summary.cases, 2 * 2 * 3);
  std::multiset<double> values;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) values.insert(row.value.value());
  EXPECT_EQ(values.count(48), 6U);
  EXPECT_EQ(values.count(96), 6U);
  EXPECT_EQ(run_experiment(spec(overrides("[1, 2, 3]")), options("a")).reused, 12);
}

TEST_F(Protocols, ProblemsOfAUnitAreRowsWithTheirReason) {
  const RunSummary summary = run_experiment(spec(overrides("[1, 7, 13]")), options("a"));
  EXPECT_EQ(summary.skipped, 6);  // two policies and three samples
  std::map<std::string, int> reasons;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) ++reasons[row.metric + ":" + row.skipped];
  EXPECT_EQ(reasons,
            (std::map<std::string, int>{{"tally:", 6}, {"tally:not a finite number", 6}, {":13 brings no luck", 6}}));
}

TEST_F(Protocols, UnitsRunSideBySideAndWhatDidNotFitRunsAgainAlone) {
  const ref::Threads limit(3);
  const std::vector<std::string> crowded = {"protocol=throng", "axes={factor: [1, 2, 3]}", "policies=[full]",
                                            "metrics=[]", "samples=1"};
  EXPECT_EQ(run_experiment(spec(crowded), options("a")).skipped, 0);
  std::map<std::string, double> inside;
  for (const Row& row : read_rows(folder_ / "a" / "rows.csv").rows) inside[row.axes[0]] = row.value.value();
  EXPECT_EQ(inside.size(), 3U);
  EXPECT_EQ(inside["1"], 3);
  EXPECT_EQ(inside["2"], 1);  // the second time
}

TEST_F(Protocols, RefusesWhatBelongsToOthers) {
  const auto refusal = [&](const std::vector<std::string>& sets) {
    return test::user_error([&] { validate_experiment(spec(sets)); });
  };
  EXPECT_NE(refusal({"protocol=tally", "axes={}"}).find("policy 'full' under protocol tally needs the axis factor"),
            std::string::npos);
  EXPECT_EQ(refusal({"protocol=tally", "axes={keep: 0.5}"}),
            "--set axes={keep: 0.5}: axes: keep does not belong to protocol tally (expected factor)");
  EXPECT_EQ(refusal({"sampling={top_k: 1}"}).find("--set sampling={top_k: 1}: sampling = a map: only protocol answer"),
            0U);
  EXPECT_EQ(refusal({"axes={factor: 0}", "protocol=tally"}),
            "--set axes={factor: 0}: axes: factor = 0: expected a number of tokens, 1 to 16777216");
  EXPECT_EQ(refusal({"axes={factor: 60000000}", "protocol=tally"}),
            "--set axes={factor: 60000000}: axes: factor = 60000000: expected a number of tokens, 1 to 16777216");
}

TEST(ProtocolList, EveryProtocolSaysWhatItIsAndWhatItTakes) {
  int defaults = 0;
  for (const Protocol* protocol : protocols()) {
    EXPECT_FALSE(protocol->summary.empty()) << protocol->name;
    EXPECT_TRUE(protocol->plan) << protocol->name;
    EXPECT_EQ(protocol->open != nullptr, protocol->verb == "run") << protocol->name;
    EXPECT_EQ(find_protocol(protocol->name), protocol);
    for (const ProtocolAxis& axis : protocol->axes) EXPECT_FALSE(axis.help.empty()) << axis.name;
    for (const ProtocolKey& key : protocol->keys) {
      EXPECT_FALSE(key.help.empty()) << key.name;
      Params params(key.name);
      key.read(params);
      EXPECT_FALSE(params.declared().empty()) << key.name;
    }
    defaults += protocol->is_default ? 1 : 0;
  }
  EXPECT_EQ(defaults, 1);
  EXPECT_EQ(find_protocol("none"), nullptr);
}

}  // namespace
}  // namespace kv
