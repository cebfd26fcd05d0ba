// What holds of any scorer, allocation, admission and selection together, whatever says when events fall: combinations
// are drawn from all that is registered, and a new one joins by that.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kernels/error.h"
#include "sim/policy/capacity.h"
#include "sim/replay/resident_bound.h"
#include "tests/support/backends.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/replayed.h"
#include "tests/support/sights.h"
#include "tests/support/uneven_profile.h"

namespace kv::ref {
namespace {

constexpr int kWindow = 16, kBudget = 24, kInterval = 8, kDraws = 400;
const std::vector<int32_t> kLengths = {90, 61, 47}, kPrompts = {40, 61, 30}, kSamples = {0, 1, 2};
const std::vector<int32_t> kKept = {20, 18, 16};  // of one-shot compression

// Of a size that these texts feel: what options are given, where a filling of the kind declares them; of several values
// one is drawn. So are those that choose among words, and others have their defaults.
using Small = std::map<std::string, std::string>;
const Small kSmallAllocation = {{"beta", "3"}, {"window", "0"}};
const Small kSmallAdmission = {
    {"sinks", "2"}, {"window", std::to_string(kWindow)}, {"tau", "0.5"}, {"drop", "0 | 0.5"}};
const Small kSmallSelection = {{"pages", "2"}};

enum class When { kIntervals, kOnce, kCapacity };
constexpr When kWhens[] = {When::kIntervals, When::kOnce, When::kCapacity};

std::string name_of(When when) {
  return when == When::kIntervals ? "by intervals" : when == When::kOnce ? "once" : "by capacity";
}

std::vector<std::string> words_of(const std::string& type) {
  std::vector<std::string> words;
  for (size_t from = 0; from < type.size();) {
    const size_t end = std::min(type.find(" | ", from), type.size());
    words.push_back(type.substr(from, end - from));
    from = end + 3;
  }
  return words;
}

std::string written(const SlotChoice& choice) {
  std::string text = choice.name;
  for (const GivenParam& option : choice.options) text += " " + option.key + "=" + option.text;
  return text;
}

// One draw, by what it was drawn from.
struct Draw {
  When when = When::kIntervals;
  std::string scorer;
  SlotChoices slots;

  std::vector<std::string> values() const {
    return {name_of(when), "scorer " + scorer, "allocation " + slots.allocation.name,
            "admission " + slots.admission.name, "selection " + slots.selection.name};
  }
};

class EveryCombination : public testing::Test {
 protected:
  EveryCombination() {
    backend_->check_every_op(true);  // no page that is free, or another row's, is read
    std::vector<TinySample> samples;
    for (const int32_t sample : kSamples) {
      samples.push_back(random_sample(info_, kLengths[sample], static_cast<uint32_t>(sample) + 1));
    }
    source_ = std::make_unique<test::WithOutput>(*backend_, info_, std::move(samples));
  }

  template <class Choices>
  const auto& draw(const Choices& choices) {
    return choices[generator_() % std::size(choices)];
  }

  template <class Entry>
  SlotChoice draw_filling(const std::vector<const Entry*>& known,
                          std::vector<DeclaredParam> (*describe)(std::string_view), const Small& small) {
    SlotChoice choice{draw(known)->name};
    for (const DeclaredParam& option : describe(choice.name)) {
      const std::vector<std::string> words = words_of(option.type);
      if (const auto found = small.find(option.key); found != small.end()) {
        choice.options.push_back({found->first, draw(words_of(found->second)), ""});
      } else if (words.size() > 1) {
        choice.options.push_back({option.key, draw(words), ""});
      }
    }
    return choice;
  }

  Draw draw_one() {
    Draw drawn{.when = draw(kWhens), .scorer = draw(policies())->name};
    drawn.slots = {draw_filling(allocations(), describe_allocation, kSmallAllocation),
                   draw_filling(admissions(), describe_admission, kSmallAdmission),
                   draw_filling(selections(), describe_selection, kSmallSelection)};
    if (!make_policy(drawn.scorer, {}).scorer) drawn.slots.allocation = SlotChoices{}.allocation;  // has no events
    add_profile(drawn);
    return drawn;
  }

  // What divides by a profile has one, of the scorer or of the oracle's order.
  void add_profile(Draw& drawn) const {
    std::vector<GivenParam>& options = drawn.slots.allocation.options;
    const bool by_oracle = std::any_of(options.begin(), options.end(), [](const GivenParam& option) {
      return option.key == "order" && option.text == "oracle";
    });
    const std::string order = by_oracle ? std::string(kOracleOrder) : drawn.scorer;
    for (const DeclaredParam& option : describe_allocation(drawn.slots.allocation.name)) {
      if (option.key != "profile") continue;
      const std::filesystem::path file = folder_ / (order + ".json");
      test::write_file(file, test::uneven_profile(order, info_));
      options.push_back({option.key, file.string(), ""});
    }
  }

  // UserError where what was drawn does not go together.
  static RunArgs run_of(const Draw& drawn) {
    RunArgs args = events_of(drawn);
    args.allocation = drawn.slots.allocation;
    args.admission = drawn.slots.admission;
    args.selection = drawn.slots.selection;
    if (!make_policy(drawn.scorer, {}).scorer) args.schedule = full_schedule(kLengths, 32);  // it has no events
    if (args.selection.name != "all") args.schedule = token_by_token(args.schedule, kPrompts);
    const Policy policy = make_policy(drawn.scorer, {}, drawn.slots);
    if (policy.oracle() && args.capacity) throw UserError("knows events by their places");
    if (policy.scorer) check_admission(policy, args.interval);
    if (policy.scorer && args.interval > 0) check_interval(policy, args.interval);
    return args;
  }

  static RunArgs events_of(const Draw& drawn) {
    switch (drawn.when) {
      case When::kIntervals:
        return decode_run(drawn.scorer, {}, kSamples, kLengths, kBudget, kInterval);
      case When::kOnce:
        return one_shot_run(drawn.scorer, {}, kSamples, kLengths, kKept);
      case When::kCapacity:
        break;
    }
    RunArgs args{.policy = drawn.scorer,
                 .options = {},
                 .samples = kSamples,
                 .lengths = kLengths,
                 .schedule = full_schedule(kLengths, 32),
                 .capacity = Capacity{.entries = 16, .drop = 0.25}};
    const Policy alone = make_policy(drawn.scorer, {});
    const int judging = scorer_needs(alone).window(args.capacity->interval());
    args.capacity->window = drawn.slots.admission.name != "none" ? kWindow : judging;
    if (alone.scorer) args.capacity->sinks = alone.scorer->protects(args.capacity->kept(), 3).sinks;
    if (!args.capacity->holds()) throw UserError("takes too little");
    if (scorer_needs(alone).even_intervals) throw UserError("knows events after whole intervals only");
    args.budget = args.capacity->kept();
    args.interval = args.capacity->interval();
    return args;
  }

  // Of an admission, as it decides alone.
  const Sights& seen(const SlotChoice& admission) {
    const auto [found, is_new] = seen_.try_emplace(written(admission));
    if (is_new) found->second = sights(*source_, *backend_, admission, kLengths);
    return found->second;
  }

  // At an event a head holds what the event before left and what came since, as far as the newest query still saw it:
  // nothing else comes or goes. What stays was there; totals are as asked. At the end it is as at an event.
  void check_entries(const PolicyRun& ran, const RunArgs& args) {
    const Sights& sights = seen(args.admission);
    const bool keeps_window =
        make_allocation(args.allocation.name, args.allocation.options)->keeps_protected();  // others may thin a head
    Left left;
    std::map<std::pair<int, int>, int64_t> kept, asked;  // of a sequence's event, over layers and heads
    for (const Event& event : ran.events) {
      LeftOfHead& head = left[{event.sequence, event.layer, event.head}];
      const auto& by_position = sights.at({event.sequence, event.layer, event.head});
      ASSERT_EQ(event.resident, expected_at(head, by_position, event.tokens_seen));
      ASSERT_TRUE(std::includes(event.resident.begin(), event.resident.end(), event.kept.begin(), event.kept.end()));
      if (args.capacity && keeps_window) check_window(event, args.capacity->window);
      head = {.tokens_seen = event.tokens_seen, .kept = event.kept};
      kept[{event.sequence, event.tokens_seen}] += std::ssize(event.kept);
      asked[{event.sequence, event.tokens_seen}] += asked_of(event, args);
    }
    EXPECT_EQ(kept, asked);
    for (const auto& [row, by_position] : sights) {
      const auto [sequence, layer, head] = row;
      const int32_t length = kLengths[static_cast<size_t>(sequence)];
      ASSERT_EQ(held_at_the_end(ran.left->cache, sequence, layer, head), expected_at(left[row], by_position, length));
    }
  }

  // What a head's newest event left, of all tokens up to then.
  struct LeftOfHead {
    int32_t tokens_seen = 0;
    std::vector<int32_t> kept = {};
  };
  using Left = std::map<Sights::key_type, LeftOfHead>;

  static std::vector<int32_t> expected_at(const LeftOfHead& left, const Sights::mapped_type& by_position,
                                          int32_t tokens) {
    std::vector<int32_t> expected;
    for (const int32_t position : by_position.at(tokens - 1)) {
      const bool is_new = position >= left.tokens_seen;
      if (is_new || std::binary_search(left.kept.begin(), left.kept.end(), position)) expected.push_back(position);
    }
    return expected;
  }

  // Positions that the sequence's last query saw: others are there up to the next sweep.
  static std::vector<int32_t> held_at_the_end(const Cache& cache, int sequence, int layer, int head) {
    const PagedView view = cache.view(layer);
    const int64_t row = int64_t{sequence} * cache.shape().kv_heads + head;
    std::vector<int32_t> positions;
    for (int32_t slot = 0; slot < view.lengths[row]; ++slot) {
      const int64_t page = view.page_table[row * view.max_pages + slot / kPageTokens];
      const int64_t place = page * kPageTokens + slot % kPageTokens;
      const bool has_expired = view.expires && view.expires[place] < kLengths[static_cast<size_t>(sequence)];
      if (!has_expired) positions.push_back(view.positions[place]);
    }
    return positions;
  }

  // What is in the window stays.
  static void check_window(const Event& event, int window) {
    const auto newest = std::min<std::ptrdiff_t>(window, std::ssize(event.resident));
    ASSERT_TRUE(
        std::includes(event.kept.begin(), event.kept.end(), event.resident.end() - newest, event.resident.end()));
  }

  static int64_t asked_of(const Event& event, const RunArgs& args) {
    if (args.capacity) {
      const auto length = static_cast<int32_t>(event.resident.size());
      const int32_t older = std::max(0, length - args.capacity->window);
      return length - std::min(older / 4, std::max(0, older - args.capacity->sinks));
    }
    return args.interval > 0 ? kBudget : kKept[static_cast<size_t>(event.sequence)];
  }

  // At the end memory is that of the entries, lengths are those that the backend knows, and nothing was more than was
  // known before.
  void check_memory(const PolicyRun& ran, const RunArgs& args) {
    const Cache& cache = ran.left->cache;
    const Policy policy = make_policy(args.policy, {}, {args.allocation, args.admission, args.selection});
    int64_t bound = 0;
    for (const ResidentBound& of_sequence :
         resident_bounds(args.schedule, policy, info_, args.capacity && policy.scorer ? &*args.capacity : nullptr)) {
      bound += of_sequence.pages();
    }
    EXPECT_LE(cache.peak_pages(), bound);
    int64_t pages = 0;
    for (int layer = 0; layer < info_.layers; ++layer) {
      const PagedView view = cache.view(layer);
      for (size_t row = 0; row < static_cast<size_t>(cache.rows()); ++row) {
        const int32_t length = cache.lengths(layer)[row];
        EXPECT_EQ(view.lengths[row], length);
        pages += (length + kPageTokens - 1) / kPageTokens;
      }
    }
    EXPECT_EQ(cache.used_pages(), pages);
    int64_t entries = 0;
    for (const auto& sequence : ran.result.sequences) entries += sequence.end_entries;
    EXPECT_EQ(cache.entries(), entries);
  }

  std::map<std::string, Sights> seen_;  // by admission
  std::mt19937 generator_{7};
  test::TempFolder folder_;
  SourceInfo info_ = tiny_info(2, 4, 2, 8);
  std::unique_ptr<Backend> backend_ = make_backend("cpu");
  std::unique_ptr<Source> source_;
};

// Some values go with few others, and a rule says so: golden knows whole intervals alone, h2o sums what a selection
// hides. Of any value a tenth of its draws has to run all the same, and two, or the test is of less than it says.
TEST_F(EveryCombination, KeepsWhatWasLetInAndAsManyAsAsked) {
  std::map<std::string, int> drawn, ran;
  int64_t runs = 0, events = 0;
  for (int i = 0; i < kDraws; ++i) {
    const Draw draw = draw_one();
    for (const std::string& value : draw.values()) ++drawn[value];
    RunArgs args;
    try {
      args = run_of(draw);
    } catch (const UserError&) {
      continue;
    }
    SCOPED_TRACE(draw.scorer + ", " + written(args.allocation) + ", " + written(args.admission) + ", " +
                 written(args.selection) + ", " + name_of(draw.when));
    const PolicyRun run = run_policy(*source_, *backend_, args);
    check_entries(run, args);
    check_memory(run, args);
    for (const std::string& value : draw.values()) ++ran[value];
    ++runs;
    events += std::ssize(run.events);
  }
  for (const auto& [value, draws] : drawn) {
    EXPECT_GE(draws, 8) << value << " is drawn too seldom";
    EXPECT_GE(ran[value], std::max(2, draws / 10)) << value << " hardly ever runs";
  }
  EXPECT_GE(runs, kDraws / 3) << "most combinations go together";
  EXPECT_GE(events, 10 * runs);
}

}  // namespace
}  // namespace kv::ref
