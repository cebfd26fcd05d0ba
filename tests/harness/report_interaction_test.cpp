// Tables of interactions: what one factor changes where another is changed, too, less what it changes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "harness/clusters.h"
#include "harness/report/table.h"

namespace kv {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Of one sample the four numbers: without either, each alone, both together.
struct Four {
  double none = 0, admission = 0, allocation = 0, both = 0;
};

class Interaction : public testing::Test {
 protected:
  Row& add(const std::string& admission, const std::string& allocation, int sample, double value,
           const std::string& metric = "loss") {
    rows_.rows.push_back({.experiment = "e",
                          .model = "m",
                          .data = "prose",
                          .policy = "snapkv",
                          .device = "cpu",
                          .sample = sample,
                          .seed = 1,
                          .metric = metric,
                          .value = value,
                          .axes = {admission, allocation, "0.5"}});
    return rows_.rows.back();
  }

  void add(int sample, const Four& four, const std::string& metric = "loss") {
    add("none", "uniform", sample, four.none, metric);
    add("wg-kv", "uniform", sample, four.admission, metric);
    add("none", "global", sample, four.allocation, metric);
    add("wg-kv", "global", sample, four.both, metric);
  }

  void add_document(int sample, const std::string& document) {
    add(sample, {}, std::string(kDocumentMetric));
    for (Row& row : rows_.rows) {
      if (row.metric != kDocumentMetric || row.sample != sample) continue;
      row.value.reset();
      row.text = document;
    }
  }

  // (5 - 8) - (9 - 10) = -2 and (23.5 - 21) - (22 - 20) = 0.5.
  void add_two_samples() {
    add(0, {.none = 10, .admission = 9, .allocation = 8, .both = 5});
    add(1, {.none = 20, .admission = 22, .allocation = 21, .both = 23.5});
  }

  static TablePlan plan() {
    TablePlan plan;
    plan.name = "t";
    plan.title = "Both together";
    plan.measure.metrics = {"loss"};
    plan.rows = {"admission", "allocation"};
    plan.digits = 2;
    plan.better = Better::kLower;
    plan.paired =
        Pairing{.column = "admission", .with = "none", .beside = Level{.column = "allocation", .with = "uniform"}};
    return plan;
  }

  static TablePlan relative() {
    TablePlan relative = plan();
    relative.paired->relative = true;
    return relative;
  }

  TableView view(const TablePlan& plan) const { return build_table(plan, {}, rows_); }
  // Of the only row, whose last cell it is.
  TableCell cell(const TablePlan& plan) const {
    const TableView table = view(plan);
    EXPECT_EQ(table.rows.size(), 1U);
    return table.rows.at(0).back();
  }

  RowTable rows_{.axes = {"admission", "allocation", "keep"}};
};

// Cells of either baseline are no rows.
TEST_F(Interaction, IsWhatOneChangesLessWhatItChangesAlone) {
  add_two_samples();
  EXPECT_EQ(to_markdown(view(plan())),
            "### Both together\n\n"
            "| admission | allocation | loss |\n"
            "|:---|:---|---:|\n"
            "| wg-kv | global | -0.75 |\n\n"
            "Each number: mean over samples less that of none, less the same difference at uniform, on the same rows "
            "of the same samples, n = 2; no interval below 5 samples.  \n"
            "Below 0: the two help each other; at 0 their effects add up.  \n"
            "\xe2\x80\xa0: the 95 % interval of the interaction excludes zero (n of at least 8).  \n");
}

// -0.75 of 15, the mean of what has neither.
TEST_F(Interaction, RelativeIsInPercentOfWhatHasNeither) {
  add_two_samples();
  const TableView table = view(relative());
  EXPECT_EQ(table.header.back(), "loss (%)");
  EXPECT_EQ(table.rows.at(0).back().text, "-5.00");
  EXPECT_THAT(table.notes, Contains(HasSubstr("samples, in % of none with uniform, n = 2")));
}

// Either factor may be the one that is named first.
TEST_F(Interaction, HasNoOrder) {
  add_two_samples();
  TablePlan other = relative();
  other.paired = Pairing{.column = "allocation",
                         .with = "uniform",
                         .relative = true,
                         .beside = Level{.column = "admission", .with = "none"}};
  EXPECT_EQ(cell(other).text, "-5.00");
}

// Hard samples and easy ones, both factors of other effects in each, which together are their sum.
TEST_F(Interaction, OfEffectsThatAddUpIsZero) {
  for (int s = 0; s < 9; ++s) {
    const double hard = 8 << (s % 3), one = -0.25 * s, other = 0.5 + s;
    add(s, {.none = hard, .admission = hard + one, .allocation = hard + other, .both = hard + one + other});
  }
  for (const TablePlan& table : {plan(), relative()}) {
    EXPECT_EQ(cell(table).text, "0.00");
    EXPECT_EQ(cell(table).interval, "");  // no draw has another
    EXPECT_FALSE(cell(table).differs);
  }
}

TEST_F(Interaction, IsMarkedWhereEnoughSamplesExcludeZero) {
  for (int s = 0; s < 8; ++s) {
    add(s, {.none = 10. + s, .admission = 9. + s, .allocation = 9. + s, .both = 7. - 0.25 * (s % 2) + s});
    if (s < 6) continue;
    EXPECT_EQ(cell(plan()).differs, s == 7) << s;
  }
}

// Of sums 30 / 10, 32 / 10, 26 / 10 and 20 / 10: (2 - 2.6) - (3.2 - 3) = -0.8; the samples' own would make -3/4.
TEST_F(Interaction, OfARatioIsOfFourQuotientsOfSums) {
  add(0, {.none = 20, .admission = 24, .allocation = 20, .both = 16}, "sum");
  add(0, {.none = 8, .admission = 8, .allocation = 8, .both = 8}, "full");
  add(1, {.none = 10, .admission = 8, .allocation = 6, .both = 4}, "sum");
  add(1, {.none = 2, .admission = 2, .allocation = 2, .both = 2}, "full");
  TablePlan ratio = plan();
  ratio.measure = {.metrics = {}, .ratio = {"sum", "full"}};
  EXPECT_EQ(cell(ratio).text, "-0.80");
  ratio.paired->relative = true;
  EXPECT_EQ(cell(ratio).text, "-26.67");
}

// Draws of documents, each with its samples and all four numbers of them, by another generator. How hard a document is
// differs by far more than what the factors change: with draws of their own, the four would give a far wider interval.
class InteractionInterval : public Interaction {
 protected:
  static constexpr int kDocuments = 12, kSamples = 2 * kDocuments;

  InteractionInterval() {
    std::mt19937_64 random(5);
    std::normal_distribution<double> noise;
    for (int s = 0; s < kSamples; ++s) {
      const int document = s / 2;
      const double hard = 100 + 60. * document, one = -3 + noise(random), other = -4 + noise(random);
      sums_.push_back({.none = hard,
                       .admission = hard + one,
                       .allocation = hard + other,
                       .both = hard + one + other - 1 + 2 * noise(random)});
      fulls_.push_back(50 + 5. * (s % 7));
      add(s, sums_.back(), "sum");
      add(s, {.none = fulls_[s], .admission = fulls_[s], .allocation = fulls_[s], .both = fulls_[s]}, "full");
      add_document(s, "book " + std::to_string(s / 2));
    }
  }

  double interaction(const std::vector<int>& documents) const {
    Four sum;
    double full = 0;
    for (const int document : documents) {
      for (const int s : {2 * document, 2 * document + 1}) {
        sum.none += sums_[s].none;
        sum.admission += sums_[s].admission;
        sum.allocation += sums_[s].allocation;
        sum.both += sums_[s].both;
        full += fulls_[s];
      }
    }
    const double of_both = sum.both / full - sum.allocation / full, alone = sum.admission / full - sum.none / full;
    return 100 * (of_both - alone) / (sum.none / full);
  }

  std::array<double, 2> drawn_interval() const {
    std::mt19937_64 random(11);
    std::uniform_int_distribution<int> any(0, kDocuments - 1);
    std::vector<double> draws(20000);
    for (double& draw : draws) {
      std::vector<int> documents(kDocuments);
      for (int& document : documents) document = any(random);
      draw = interaction(documents);
    }
    std::sort(draws.begin(), draws.end());
    return {draws[draws.size() / 40], draws[draws.size() - draws.size() / 40]};
  }

  std::vector<Four> sums_;
  std::vector<double> fulls_;
};

TEST_F(InteractionInterval, IsThatOfDrawsWithAllFourTogether) {
  TablePlan ratio = relative();
  ratio.measure = {.metrics = {}, .ratio = {"sum", "full"}};
  ratio.digits = 6;
  std::vector<int> every(kDocuments);
  for (int document = 0; document < kDocuments; ++document) every[document] = document;
  const TableCell shown = cell(ratio);
  EXPECT_NEAR(std::stod(shown.text), interaction(every), 1e-6);
  double low = 0, high = 0;
  ASSERT_EQ(std::sscanf(shown.interval.c_str(), "[%lf, %lf]", &low, &high), 2);
  const auto [drawn_low, drawn_high] = drawn_interval();
  const double tolerance = 0.08 * (drawn_high - drawn_low);  // five standard deviations of 2000 draws' own
  EXPECT_NEAR(low, drawn_low, tolerance);
  EXPECT_NEAR(high, drawn_high, tolerance);
  EXPECT_THAT(view(ratio).notes, Contains(HasSubstr("n = 24 of 12 documents")));
}

// What lacks one of the four numbers counts in none of them.
TEST_F(Interaction, SamplesThatOneSideLacksAreLeftOut) {
  add_two_samples();
  add(2, {.none = 1, .admission = 1, .allocation = 1, .both = 1000});
  std::erase_if(rows_.rows,
                [](const Row& row) { return row.sample == 2 && row.axes[0] == "none" && row.axes[1] == "uniform"; });
  EXPECT_EQ(cell(plan()).text, "-0.75");
  EXPECT_THAT(view(plan()).notes,
              Contains("wg-kv, global: 2 samples in all four; 1 of its samples, 1 of none's, 1 of uniform's and 0 of "
                       "none with uniform's have no partner."));
}

// Cells are means over `keep`; at 0.1 global alone has no row of sample 0.
TEST_F(Interaction, RowsThatOneSideLacksAreLeftOut) {
  add_two_samples();
  for (const char* admission : {"none", "wg-kv"}) {
    for (const char* allocation : {"uniform", "global"}) {
      if (std::string(admission) == "none" && std::string(allocation) == "global") continue;
      add(admission, allocation, 0, 1000).axes[2] = "0.1";
    }
  }
  EXPECT_EQ(cell(plan()).text, "-0.75");
  EXPECT_THAT(view(plan()).notes,
              Contains("wg-kv, global: In 1 of its samples rows that one side lacks are left out."));
}

// lu-kv ran with admission only, and so has no row.
TEST_F(Interaction, ACellThatLacksOneOfTheOthersIsNotShown) {
  add_two_samples();
  add("wg-kv", "lu-kv", 0, 1);
  EXPECT_EQ(view(plan()).rows.size(), 1U);
  std::erase_if(rows_.rows, [](const Row& row) { return row.axes[0] == "none" && row.axes[1] == "uniform"; });
  const TableView none = view(plan());
  EXPECT_TRUE(none.rows.empty());
  EXPECT_EQ(none.notes.front(),
            "No row can be compared: admission = none, allocation = uniform or both together has no value for metric "
            "loss where another row has one.");
}

TEST_F(Interaction, ShowsWhyOneOfTheOthersWasSkipped) {
  add_two_samples();
  for (Row& row : rows_.rows) {
    if (row.axes[0] != "none" || row.axes[1] != "uniform") continue;
    row.value.reset();
    row.skipped = "too long";
  }
  EXPECT_EQ(cell(plan()).text, "none with uniform skipped: too long");
  for (Row& row : rows_.rows) {
    row.value.reset();
    row.skipped = "too long";
  }
  EXPECT_EQ(cell(plan()).text, "skipped: too long");
}

TEST_F(Interaction, CountsTheSkippedSamplesOfAllFour) {
  add_two_samples();
  add("none", "global", 2, 0).value.reset();
  rows_.rows.back().skipped = "too long";
  EXPECT_THAT(view(plan()).notes, Contains("wg-kv, global: 1 of none's samples skipped: too long."));
  for (const auto& [admission, allocation] :
       {std::pair{"none", "uniform"}, {"wg-kv", "uniform"}, {"wg-kv", "global"}}) {
    add(admission, allocation, 2, 0).value.reset();
    rows_.rows.back().skipped = "too long";
  }
  EXPECT_THAT(view(plan()).notes, Contains("wg-kv, global: 1 of the samples of all four skipped: too long."));
}

// The full cache has no allocation, and so stands for each: (5 - 9) - (3 - 6) = -1. But what it has without one is not
// what it would have at uniform's.
TEST_F(Interaction, AnAxisThatDoesNotApplyFitsEveryValueButThatCompared) {
  add("none", "uniform", 0, 9);
  add("wg-kv", "uniform", 0, 5);
  add("none", "", 0, 6).policy = "full";
  add("wg-kv", "", 0, 3).policy = "full";
  TablePlan against_full = plan();
  against_full.rows = {"policy", "admission", "allocation"};
  against_full.paired =
      Pairing{.column = "policy", .with = "full", .beside = Level{.column = "admission", .with = "none"}};
  EXPECT_EQ(cell(against_full).text, "-1.00");
  add("wg-kv", "global", 0, 4);
  add("none", "global", 0, 4);
  against_full.paired->beside = Level{.column = "allocation", .with = "uniform"};
  EXPECT_TRUE(view(against_full).rows.empty());
}

// Two settings each, of sizes of their own. At 0.5 sample 0 has 10, 9, 8 and 5 as above, sample 1 the others.
class InteractionAtEqualSize : public Interaction {
 protected:
  void add_settings(const std::string& admission, const std::string& allocation, int sample, double loss) {
    const double reach = admission == "none" ? 0.25 : 0.125;
    for (const double side : {-1., 1.}) {
      const std::string keep = side < 0 ? "0.1" : "0.9";
      add(admission, allocation, sample, loss - 4 * side).axes[2] = keep;
      add(admission, allocation, sample, 0.5 + side * reach, "cache_size").axes[2] = keep;
    }
  }

  InteractionAtEqualSize() {
    int sample = 0;
    for (const Four& four : {Four{10, 9, 8, 5}, Four{20, 22, 21, 23.5}}) {
      add_settings("none", "uniform", sample, four.none);
      add_settings("wg-kv", "uniform", sample, four.admission);
      add_settings("none", "global", sample, four.allocation);
      add_settings("wg-kv", "global", sample, four.both);
      ++sample;
    }
  }

  static TablePlan at(std::vector<std::string> sizes) {
    TablePlan at = relative();
    at.columns = {"cache_size"};
    at.at = EqualSize{.metric = "cache_size", .values = std::move(sizes)};
    return at;
  }
};

TEST_F(InteractionAtEqualSize, IsOfTheFourNumbersAtThatSize) {
  EXPECT_EQ(cell(at({"0.5"})).text, "-5.00");
  EXPECT_THAT(view(at({"0.5"})).notes,
              Contains("Each number: mean over samples less that of none, less the same difference at uniform, on the "
                       "same samples, in % of none with uniform, n = 2; no interval below 5 samples."));
}

// None's settings reach to 0.75, those with admission to 0.625.
TEST_F(InteractionAtEqualSize, SaysWhichOfThemDoesNotReachIt) {
  EXPECT_EQ(cell(at({"0.7"})).text, "not bracketed: in 2 settings cache_size is 0.38 to 0.62");
  TablePlan of_none = at({"0.7"});
  of_none.paired->with = "wg-kv";
  EXPECT_EQ(cell(of_none).text, "wg-kv: not bracketed: in 2 settings cache_size is 0.38 to 0.62");
}

TEST_F(InteractionAtEqualSize, LeavesOutASampleThatOneOfThemHasNotThere) {
  std::erase_if(rows_.rows, [](const Row& row) {
    return row.sample == 1 && row.axes == std::vector<std::string>{"none", "uniform", "0.9"};
  });
  EXPECT_EQ(cell(at({"0.5"})).text, "-20.00");  // -2 of 10
  EXPECT_THAT(view(at({"0.5"})).notes,
              Contains("wg-kv, global, cache_size=0.5: 1 of none with uniform's samples left out, whose cache_size is "
                       "0.25. 1 samples in all four; 1 of its samples, 1 of none's, 1 of uniform's and 0 of none with "
                       "uniform's have no partner."));
}

}  // namespace
}  // namespace kv
