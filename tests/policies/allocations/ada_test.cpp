#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/error.h"
#include "tests/support/policy_runs.h"

namespace kv::ref {
namespace {

// The published procedure over one group of competing heads: each head's protected and best int(0.2 κ) stay, then the
// highest scores of all until κ a head are kept. Returns how many each keeps.
std::vector<size_t> naive(const std::vector<const Event*>& heads, size_t kept) {
  struct Entry {
    double score;
    size_t head;
  };
  std::vector<Entry> candidates;
  std::vector<size_t> counts;
  size_t share_total = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const Event& event = *heads[h];
    std::vector<double> scores;
    size_t spared = 0;
    for (size_t slot = 0; slot < event.resident.size(); ++slot) {
      const bool is_protected = event.resident[slot] < event.protection.sinks ||
                                event.resident.size() - slot <= static_cast<size_t>(event.protection.recent);
      if (is_protected) {
        ++spared;
      } else {
        scores.push_back(event.scores[slot]);
      }
    }
    std::sort(scores.rbegin(), scores.rend());
    const size_t share = std::max(spared, kept / 5);
    counts.push_back(share);
    share_total += share;
    for (size_t i = share - spared; i < scores.size(); ++i) candidates.push_back({scores[i], h});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Entry& a, const Entry& b) { return a.score > b.score; });
  for (size_t i = 0; i < heads.size() * kept - share_total; ++i) ++counts[candidates[i].head];
  return counts;
}

class Ada : public testing::Test {
 protected:
  Ada() : backend_(make_backend("cpu")), info_(tiny_info(3, 4, 2, 8)) {
    source_ = std::make_unique<TinySource>(*backend_, info_, std::vector{random_sample(info_, 100, 3)});
  }

  std::vector<Event> run(const Options& options) {
    RunArgs args = one_shot_run("observed-attention", {}, {0}, {100}, {20});
    args.allocation = {"ada", options};
    return run_policy(*source_, *backend_, args).events;
  }

  std::unique_ptr<Backend> backend_;
  SourceInfo info_;
  std::unique_ptr<TinySource> source_;
};

TEST_F(Ada, HeadsOfALayerCompeteAndLayersDoNot) {
  const std::vector<Event> events = run({});
  ASSERT_EQ(events.size(), 6U);
  bool any_uneven = false;
  for (size_t layer = 0; layer < 3; ++layer) {
    const Event& first = events[2 * layer];
    const Event& second = events[2 * layer + 1];
    const std::vector<size_t> expected = naive({&first, &second}, 20);
    EXPECT_EQ(first.kept.size(), expected[0]);
    EXPECT_EQ(second.kept.size(), expected[1]);
    EXPECT_EQ(first.kept.size() + second.kept.size(), 40U);
    any_uneven = any_uneven || expected[0] != expected[1];
  }
  EXPECT_TRUE(any_uneven) << "the case shows nothing";
}

TEST_F(Ada, WithTheWholeModelAsItsScopeAllHeadsCompete) {
  const std::vector<Event> events = run({{.key = "scope", .text = "model", .where = ""}});
  std::vector<const Event*> heads;
  for (const Event& event : events) heads.push_back(&event);
  const std::vector<size_t> expected = naive(heads, 20);
  for (size_t h = 0; h < heads.size(); ++h) EXPECT_EQ(events[h].kept.size(), expected[h]);
  const auto layer = [&](size_t l) { return expected[2 * l] + expected[2 * l + 1]; };
  EXPECT_TRUE(layer(0) != 40 || layer(1) != 40) << "the case shows nothing";
}

TEST_F(Ada, AFullSafeguardIsUniform) {
  for (const Event& event : run({{.key = "safeguard", .text = "1", .where = ""}})) EXPECT_EQ(event.kept.size(), 20U);
}

TEST_F(Ada, RefusesASafeguardThatIsNoShare) {
  try {
    make_allocation("ada", {{.key = "safeguard", .text = "1.5", .where = "x.yaml:3:4"}});
    FAIL() << "not refused";
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("x.yaml:3:4: ada: safeguard = 1.5: expected ")) << error.what();
  }
}

}  // namespace
}  // namespace kv::ref
