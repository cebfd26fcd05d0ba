#include "sim/replay/prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>

#include "kernels/error.h"
#include "sim/cache/to_host.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/replay/compress.h"
#include "sim/replay/generate.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"
#include "tests/support/backends.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;
using Policies = std::vector<Policy>;

constexpr uint64_t kSeed = 3;

Ids text(const char* name, size_t first, size_t count) {
  const auto file = ref::open_packed("tests/data/reference/expected.safetensors");
  const Ids ids = file.read_i32(file.require(std::string(name) + ".input_ids"));
  return ref::slice(ids, static_cast<int64_t>(first), static_cast<int64_t>(count));
}

Ids first(const Ids& ids, int32_t count) { return ref::slice(ids, 0, count); }

std::vector<Policy*> pointers(Policies& policies) {
  std::vector<Policy*> all;
  for (Policy& policy : policies) all.push_back(&policy);
  return all;
}

// Positions resident in each (layer, KV head) of a sequence.
std::vector<Ids> residents(Backend& backend, const LoopState& state, int sequence) {
  std::vector<Ids> all;
  for (int layer = 0; layer < state.cache.shape().layers; ++layer) {
    const PagedView view = state.cache.view(layer);
    for (int head = 0; head < view.kv_heads; ++head) {
      const int64_t row = int64_t{sequence} * view.kv_heads + head;
      Ids pages(static_cast<size_t>(view.max_pages)), positions;
      backend.download(pages.data(), view.page_table + row * view.max_pages, pages.size() * sizeof(int32_t));
      for (int32_t slot = 0; slot < state.cache.lengths(layer)[static_cast<size_t>(row)]; ++slot) {
        int32_t position = -1;
        const int64_t place =
            int64_t{pages[static_cast<size_t>(slot / kPageTokens)]} * kPageTokens + slot % kPageTokens;
        backend.download(&position, view.positions + place, sizeof(int32_t));
        positions.push_back(position);
      }
      all.push_back(std::move(positions));
    }
  }
  return all;
}

// The positions that `kvlab compress` keeps, which runs each policy on its own.
std::vector<Ids> alone(Backend& backend, ModelSource& source, Policy& policy, const Ids& context, double keep) {
  const CompressResult result = compress(backend, source, policy, context, keep, kSeed);
  std::vector<Ids> kept(static_cast<size_t>(result.layers * result.kv_heads));
  for (size_t i = 0; i < result.keep.size(); ++i) {
    const auto row = i / static_cast<size_t>(result.tokens);
    if (result.keep[i]) kept[row].push_back(static_cast<int32_t>(i % static_cast<size_t>(result.tokens)));
  }
  return kept;
}

Policies several() {
  Policies policies;
  policies.push_back(make_policy("full", {}));
  // Two with entry columns of their own, two windows of different width, one ranking for two allocations.
  policies.push_back(make_policy("h2o", {}));
  policies.push_back(make_policy("snapkv", {}));
  policies.push_back(make_policy("snapkv", {{.key = "mode", .text = "kvpress", .where = ""}}));
  policies.push_back(make_policy("snapkv", {{.key = "mode", .text = "kvpress", .where = ""}}, {.allocation = {"ada"}}));
  policies.push_back(make_policy("observed-attention", {}));
  policies.push_back(make_policy("keydiff", {}));
  policies.push_back(make_policy("random", {}));
  return policies;
}

KV_OVER_BACKENDS(Runs, Prefilling);

TEST_P(Prefilling, EachPolicyKeepsWhatItKeepsAlone) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const Ids context = text("code0", 0, 150);
  const std::span<const int32_t> contexts[] = {context};
  Policies policies = several();
  const auto all = pointers(policies);
  Prefill prefill({.backend = *backend,
                   .source = source,
                   .contexts = contexts,
                   .policies = all,
                   .seed = kSeed,
                   .prefill_chunk = 64});
  double seconds = 0;
  const int32_t keep[] = {kept_tokens(150, 0.4)};
  // Scored again in the order of the policies, and each from the same untouched cache.
  for (size_t p = 1; p < all.size(); ++p) {
    SCOPED_TRACE(policies[p].scorer_name);
    const LoopState state = prefill.compressed(p, keep, seconds);
    EXPECT_EQ(state.events, std::vector<int64_t>{1});
    Policy policy = std::move(several()[p]);
    EXPECT_EQ(residents(*backend, state, 0), alone(*backend, source, policy, context, 0.4));
  }
  const LoopState full = prefill.compressed(0, keep, seconds);
  EXPECT_EQ(full.events, std::vector<int64_t>{0});
  for (const Ids& row : residents(*backend, full, 0)) EXPECT_EQ(row.size(), 150U);
}

// Scoring is a policy's own part of the shared pass, and the copy that is cut is nobody's.
TEST_P(Prefilling, TimeOfAPolicyIsThatOfScoringAndCutting) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const Ids context = text("code0", 0, 150);
  const std::span<const int32_t> contexts[] = {context};
  Policies policies = several();
  const auto all = pointers(policies);
  Prefill prefill({.backend = *backend, .source = source, .contexts = contexts, .policies = all});
  const int32_t keep[] = {60};
  double scoring = 0;
  std::vector<std::string> scorers;
  for (size_t p = 0; p < all.size(); ++p) {
    double cutting = 0;
    prefill.compressed(p, keep, cutting);
    EXPECT_EQ(cutting > 0, policies[p].scorer != nullptr) << policies[p].name;
    EXPECT_EQ(prefill.score_seconds(p) > 0, policies[p].scorer != nullptr) << policies[p].name;
    if (std::find(scorers.begin(), scorers.end(), policies[p].scorer_name) != scorers.end()) continue;
    scorers.push_back(policies[p].scorer_name);
    scoring += prefill.score_seconds(p);
  }
  EXPECT_LT(scoring, prefill.seconds());
}

// 150 entries are 10 pages a head, the 40 % of them with 80 more 9; with nothing cut 150 + 80 are 15.
TEST_P(Prefilling, RoomIsAskedOnWhatIsLeft) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const Ids context = text("code0", 0, 150);
  const std::span<const int32_t> contexts[] = {context};
  Policies policies = several();
  const auto all = pointers(policies);
  Prefill prefill({.backend = *backend, .source = source, .contexts = contexts, .policies = all, .prefill_chunk = 64});
  const int32_t keep[] = {60}, room[] = {80}, more[] = {120};
  double seconds = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    SCOPED_TRACE(policies[p].scorer_name);
    const bool uniform = policies[p].allocation->most_kept(60, 8, 4) == 60;
    const LoopState state = prefill.compressed(p, keep, seconds, room);
    const auto heads = static_cast<size_t>(state.cache.shape().layers * state.cache.shape().kv_heads);
    const size_t page = state.cache.page_bytes();
    EXPECT_EQ(state.cache.growth_bytes(room), 0U);
    if (!policies[p].scorer) {
      EXPECT_EQ(state.cache.bytes(), 15 * heads * page);
    } else if (uniform) {
      EXPECT_EQ(state.cache.bytes(), 10 * heads * page);
      EXPECT_EQ(prefill.compressed(p, keep, seconds, more).cache.bytes(), 12 * heads * page);
    } else {  // 60 + 80 entries a head, and less than a page wasted
      EXPECT_LE(state.cache.bytes(), 10 * heads * page);
    }
  }
}

// Entries that stand in just one of two residents of the same heads, over all that the first has.
double differing_share(const std::vector<Ids>& a, const std::vector<Ids>& b) {
  size_t different = 0, all = 0;
  for (size_t row = 0; row < a.size(); ++row) {
    Ids only;
    std::set_symmetric_difference(a[row].begin(), a[row].end(), b[row].begin(), b[row].end(), std::back_inserter(only));
    different += only.size();
    all += a[row].size();
  }
  return static_cast<double>(different) / static_cast<double>(all);
}

size_t entries_of(const std::vector<Ids>& rows) {
  return std::accumulate(rows.begin(), rows.end(), size_t{0},
                         [](size_t sum, const Ids& row) { return sum + row.size(); });
}

TEST_P(Prefilling, ARaggedBatchIsItsContextsAlone) {
  KV_BACKEND_OR_SKIP(backend);
  // On a GPU products of other shapes round differently (16 bits), and what nearly ties for the last place may turn.
  // Half of the entries stay, so those of another context, or by another order, would differ by about 100 %.
  const double most_different = GetParam() == "cpu" ? 0 : 0.2;
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const std::vector<Ids> texts = {text("code0", 0, 150), text("book0", 0, 70), text("code0", 100, 64)};
  const std::vector<std::span<const int32_t>> contexts(texts.begin(), texts.end());
  const std::vector<int32_t> keep = {60, 40, 64};
  Policies policies = several();
  const auto all = pointers(policies);
  Prefill batch({.backend = *backend,
                 .source = source,
                 .contexts = contexts,
                 .policies = all,
                 .seed = kSeed,
                 .prefill_chunk = 64});
  double seconds = 0;
  for (const size_t p : {size_t{1}, size_t{3}, size_t{4}}) {
    SCOPED_TRACE(policies[p].scorer_name);
    const LoopState together = batch.compressed(p, keep, seconds);
    EXPECT_EQ(together.events, (std::vector<int64_t>{1, 1, 0}));
    for (int s = 0; s < 3; ++s) {
      const auto index = static_cast<size_t>(s);
      Policies fresh = several();
      Policy* const policy[] = {&fresh[p]};
      const int32_t number[] = {s};
      Prefill single({.backend = *backend,
                      .source = source,
                      .contexts = std::span(&contexts[index], 1),
                      .policies = policy,
                      .seed = kSeed,
                      .sample_numbers = number,
                      .prefill_chunk = 64});
      const LoopState state = single.compressed(0, std::span(&keep[index], 1), seconds);
      const std::vector<Ids> batched = residents(*backend, together, s), unbatched = residents(*backend, state, 0);
      ASSERT_EQ(batched.size(), unbatched.size());
      EXPECT_EQ(entries_of(batched), entries_of(unbatched)) << "budgets do not depend on scores";
      EXPECT_LE(differing_share(batched, unbatched), most_different) << "context " << s;
    }
  }
}

class ArgmaxKeeper final : public Observer {
 public:
  void block_done(const Block& block, const TokenLosses& losses) override {
    for (int32_t i = 0; i < block.segments[0].count; ++i) argmax.push_back(losses.argmax[static_cast<size_t>(i)]);
  }
  Ids argmax;
};

// The same question over the same compressed context by the replay loop, whose one-shot schedule cuts after the
// context.
TEST_P(Prefilling, GenerationGoesOnFromTheCompressedContext) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const Ids whole = text("code0", 0, 170);
  const Ids context = first(whole, 150);
  const std::span<const int32_t> contexts[] = {context}, prompts[] = {whole};
  for (const char* allocation : {"uniform", "ada"}) {
    SCOPED_TRACE(allocation);
    Policy snapkv = make_policy("snapkv", {}, {.allocation = {allocation}});
    Policy* const policies[] = {&snapkv};
    Prefill prefill({.backend = *backend,
                     .source = source,
                     .contexts = contexts,
                     .policies = policies,
                     .seed = kSeed,
                     .prefill_chunk = 64});
    const int32_t keep[] = {50};
    double seconds = 0;
    Ids answer;
    for (int question = 0; question < 2; ++question) {  // asked twice: the first leaves no trace
      LoopState state = prefill.compressed(0, keep, seconds);
      Policy full = make_policy("full", {});
      const GenerateResult result = generate({.backend = *backend,
                                              .source = source,
                                              .policy = full,
                                              .prompts = prompts,
                                              .resumed = &state,
                                              .max_new_tokens = 12,
                                              .prefill_chunk = 64});
      if (question == 1) {
        EXPECT_EQ(result.sequences[0].ids, answer);
      }
      answer = result.sequences[0].ids;
      EXPECT_EQ(result.costs.sequences[0].events, 1);
      EXPECT_EQ(result.costs.sequences[0].kept_mean, 50);
    }
    Ids forced = whole;
    forced.insert(forced.end(), answer.begin(), answer.end());
    const std::span<const int32_t> sequences[] = {forced};
    ArgmaxKeeper keeper;
    Observer* const observers[] = {&keeper};
    const auto length = static_cast<int32_t>(forced.size());
    const int32_t context_tokens = 150;
    const Schedule schedule = one_shot_schedule(std::span(&length, 1), std::span(&context_tokens, 1), keep, 64);
    replay({.backend = *backend,
            .source = source,
            .policy = snapkv,
            .sequences = sequences,
            .schedule = schedule,
            .seed = kSeed,
            .observers = observers});
    for (size_t i = 0; i < answer.size(); ++i) EXPECT_EQ(keeper.argmax[whole.size() - 1 + i], answer[i]);
  }
}

// What every row says of its entries at the first event, protected ones left out.
class FirstEvent final : public Observer {
 public:
  void evicting(const EvictionView& view) override {
    for (int64_t row = 0; row < view.layer.rows(); ++row) {
      const int32_t length = view.layer.lengths[static_cast<size_t>(row)];
      ASSERT_EQ(length, view.tokens_seen[0]);
      scores_.push_back(to_host(view.layer.backend, view.scores.row(row), length));
      scores_.back().resize(static_cast<size_t>(length - view.protection.recent));
    }
  }

  std::vector<std::vector<float>> scores_;  // [layers · rows]
};

// To the bit, where all that precedes the interval is one piece in both; else as near as roundings are, if they are
// f32's.
TEST_P(Prefilling, JudgesAsAtTheFirstEventOfPruning) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  constexpr int kBudget = 118, kInterval = 32;
  const bool has_f32 = backend->activation_type() == DType::kF32;
  const Ids tokens = text("code0", 0, kBudget + kInterval + 1), context = first(tokens, kBudget + kInterval);
  const std::span<const int32_t> contexts[] = {context}, sequences[] = {tokens};
  struct Judge {
    const char* name;
    std::vector<GivenParam> options;
  };
  for (const Judge& judge :
       {Judge{"foresight-kv", {}}, {"foresight-kv", {{"sums", "kept", ""}}}, {"r-kv", {}}, {"h2o", {}}}) {
    SCOPED_TRACE(judge.name);
    const auto made = [&] {
      Policy policy = make_policy(judge.name, judge.options);
      const SourceInfo& info = source.info();
      policy.load(policy.check(
          {info.folder, [&] {
             return ModelIdentity::Shape{info.layers, info.kv_heads, info.q_heads, info.head_dim, info.width};
           }}));
      return policy;
    };
    Policy judging = made(), in_pieces = made(), pruning = made();
    Policy* const whole[] = {&judging};
    Policy* const by_pieces[] = {&in_pieces};
    const auto prefilled = [&](std::span<Policy* const> policies, int chunk) {
      return std::make_unique<Prefill>(PrefillArgs{.backend = *backend,
                                                   .source = source,
                                                   .contexts = contexts,
                                                   .policies = policies,
                                                   .prefill_chunk = chunk,
                                                   .interval = kInterval});
    };
    const auto prefill = prefilled(whole, 1024), pieces = prefilled(by_pieces, 50);
    FirstEvent event;
    Observer* const observers[] = {&event};
    const int32_t length = static_cast<int32_t>(tokens.size());
    replay({.backend = *backend,
            .source = source,
            .policy = pruning,
            .sequences = sequences,
            .schedule = decode_schedule({&length, 1}, kBudget, kInterval),
            .budget = kBudget,
            .interval = kInterval,
            .observers = observers});
    const SourceInfo& info = source.info();
    ASSERT_EQ(event.scores_.size(), static_cast<size_t>(info.layers * info.kv_heads));
    for (int layer = 0; layer < info.layers; ++layer) {
      for (int head = 0; head < info.kv_heads; ++head) {
        const std::vector<float>& want = event.scores_[static_cast<size_t>(layer * info.kv_heads + head)];
        EXPECT_EQ(to_host(*backend, prefill->scored(0, layer).scores.row(head), std::ssize(want)), want);
        const std::vector<float> near = to_host(*backend, pieces->scored(0, layer).scores.row(head), std::ssize(want));
        for (size_t i = 0; i < want.size() && has_f32; ++i)
          ASSERT_NEAR(near[i], want[i], 1e-3 * (1 + std::abs(want[i])));
      }
    }
    double seconds = 0;
    const int32_t keep[] = {kBudget};
    EXPECT_EQ(prefill->compressed(0, keep, seconds).events, std::vector<int64_t>{1});
  }
}

TEST_P(Prefilling, RefusesWhatCannotBe) {
  KV_BACKEND_OR_SKIP(backend);
  ModelSource source(*backend, load_model(ref::source_path("experiments/models/reference")));
  const Ids context = text("code0", 0, 64);
  const std::span<const int32_t> contexts[] = {context}, nothing[] = {std::span<const int32_t>()};
  Policies policies = several();
  const auto all = pointers(policies);
  EXPECT_THROW(Prefill({.backend = *backend, .source = source, .contexts = nothing, .policies = all}), UserError);
  Prefill prefill({.backend = *backend, .source = source, .contexts = contexts, .policies = all});
  double seconds = 0;
  const int32_t keep[] = {8};  // snapkv's own window
  EXPECT_THROW(prefill.compressed(2, keep, seconds), UserError);
  Policy golden = make_policy("golden", {});
  Policy* const oracle[] = {&golden};
  EXPECT_THROW(Prefill({.backend = *backend, .source = source, .contexts = contexts, .policies = oracle}), UserError);
}

}  // namespace
}  // namespace kv
