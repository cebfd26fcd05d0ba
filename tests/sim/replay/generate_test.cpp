#include "sim/replay/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "kernels/error.h"
#include "kernels/expiry.h"
#include "sim/io/safetensors.h"
#include "sim/model/model_files.h"
#include "sim/replay/replay.h"
#include "sim/replay/schedule.h"
#include "tests/support/chosen_admission.h"
#include "tests/support/initial_weights.h"
#include "tests/support/packed_tensors.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;
using Ending = GenerateResult::Ending;

// The start of a text that the reference model knows how to continue.
Ids text(const char* name, size_t first, size_t count) {
  const auto file = ref::open_packed("tests/data/reference/expected.safetensors");
  const Ids ids = file.read_i32(file.require(std::string(name) + ".input_ids"));
  return ref::slice(ids, static_cast<int64_t>(first), static_cast<int64_t>(count));
}

// What a test asks for, beside the model and its device.
struct Ask {
  std::vector<Ids> prompts;
  std::string policy = "full";
  SlotChoice admission{"none"}, selection{"all"};
  int budget = 0;
  int interval = 0;
  std::optional<double> keep;
  int max_new_tokens = 40;
  Ids stop_ids;
  Sampling sampling;
  Ids sample_numbers;
};

class Watcher final : public Observer {};

class ArgmaxKeeper final : public Observer {
 public:
  void block_done(const Block& block, const TokenLosses& losses) override {
    for (int32_t i = 0; i < block.segments[0].count; ++i) argmax.push_back(losses.argmax[static_cast<size_t>(i)]);
  }
  Ids argmax;
};

constexpr const char* kModel = "experiments/models/reference";

// The reference model with a final norm that makes every logit NaN.
class SpoiledWeights final : public Weights {
 public:
  const ModelConfig& config() const override { return files_.config(); }
  Tensor load(const ExpectedTensor& tensor, Backend& backend) const override {
    if (tensor.name != "model.norm.weight") return files_.load(tensor, backend);
    return ref::upload_activations(backend, std::vector<float>(static_cast<size_t>(tensor.elements()), NAN));
  }

 private:
  ModelFiles files_{ref::source_path(kModel)};
};

struct Bench {
  explicit Bench(Backend& on) : Bench(on, load_model(ref::source_path(kModel))) {}
  Bench(Backend& on, const Weights& weights) : backend(on), source(on, weights) {}

  GenerateResult generate(const Ask& ask, Policy& policy, std::span<Observer* const> observers = {},
                          std::optional<LoopState>* left = nullptr) {
    const std::vector<std::span<const int32_t>> prompts(ask.prompts.begin(), ask.prompts.end());
    return kv::generate({.backend = backend,
                         .source = source,
                         .policy = policy,
                         .prompts = prompts,
                         .budget = ask.budget,
                         .interval = ask.interval,
                         .keep = ask.keep,
                         .until_first_end = left != nullptr,
                         .left = left,
                         .max_new_tokens = ask.max_new_tokens,
                         .stop_ids = ask.stop_ids,
                         .sampling = ask.sampling,
                         .seed = 3,
                         .sample_numbers = ask.sample_numbers,
                         .prefill_chunk = 64,
                         .observers = observers,
                         .count_pairs = true});
  }
  GenerateResult generate(const Ask& ask, std::span<Observer* const> observers = {},
                          std::optional<LoopState>* left = nullptr) {
    Policy policy = make_policy(ask.policy, {}, {.admission = ask.admission, .selection = ask.selection});
    ref::use_initial_weights(policy, source.info());
    return generate(ask, policy, observers, left);
  }

  // The most likely token after each of `ids`, in these steps.
  Ids most_likely(const Ask& ask, const Ids& ids, const Schedule& schedule) {
    Policy policy = make_policy(ask.policy, {}, {.admission = ask.admission, .selection = ask.selection});
    ref::use_initial_weights(policy, source.info());
    const std::span<const int32_t> sequences[] = {ids};
    ArgmaxKeeper keeper;
    Observer* const observers[] = {&keeper};
    replay({.backend = backend,
            .source = source,
            .policy = policy,
            .sequences = sequences,
            .schedule = schedule,
            .budget = ask.budget,
            .interval = ask.interval,
            .seed = 3,
            .observers = observers});
    return keeper.argmax;
  }

  Backend& backend;
  ModelSource source;
};

// The same schedule with single tokens after the prompt.
Schedule token_by_token(const Schedule& schedule, int32_t prompt) {
  Schedule result;
  int32_t done = 0;
  for (const Step& step : schedule) {
    int32_t left = step.counts[0];
    while (left > 0) {
      const int32_t count = done < prompt ? std::min(left, prompt - done) : 1;
      done += count;
      left -= count;
      result.push_back({{count}, {left == 0 ? step.keep[0] : -1}});
    }
  }
  return result;
}

// Forces the text that was generated through replay: each new id is the most likely one after the ids before it.
void expect_teacher_forced(Bench& bench, const Ask& ask) {
  SCOPED_TRACE(ask.policy);
  const GenerateResult result = bench.generate(ask);
  const Ids& drawn = result.sequences[0].ids;
  ASSERT_EQ(std::ssize(drawn), ask.max_new_tokens);
  EXPECT_EQ(result.sequences[0].ending, Ending::kLength);
  const int32_t prompt = static_cast<int32_t>(ask.prompts[0].size());
  Ids ids = ask.prompts[0];
  ids.insert(ids.end(), drawn.begin(), drawn.end() - 1);
  const int32_t length = static_cast<int32_t>(ids.size());
  Schedule schedule = full_schedule({&length, 1}, 64);
  if (ask.interval > 0) schedule = decode_schedule({&length, 1}, ask.budget, ask.interval, 64);
  if (ask.keep) {
    const int32_t kept = kept_tokens(prompt, *ask.keep);
    schedule = one_shot_schedule({&length, 1}, {&prompt, 1}, {&kept, 1}, 64);
  }
  const Ids likely = bench.most_likely(ask, ids, token_by_token(schedule, prompt));
  EXPECT_EQ(Ids(likely.begin() + prompt - 1, likely.end()), drawn);
}

KV_OVER_BACKENDS(Runs, Generate);
KV_OVER_BACKENDS(Runs, GenerateSlow);

TEST_P(Generate, GreedyIsReplaysMostLikelyTokenOverTheFullCache) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  expect_teacher_forced(bench, {.prompts = {text("book0", 0, 150)}, .max_new_tokens = 60});
  expect_teacher_forced(bench, {.prompts = {text("code0", 0, 64)}, .max_new_tokens = 1});
  expect_teacher_forced(bench, {.prompts = {text("code0", 0, 1)}, .max_new_tokens = 20});
}

// Steps of which a recording sweeps, too: replay's tokens, one by one, see what those of one block do
// (admission_test.cpp).
TEST_P(Generate, GreedyIsReplaysMostLikelyTokenUnderAnAdmission) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  const SlotChoice local{"local", {{"sinks", "4", ""}, {"window", "24", ""}}};
  expect_teacher_forced(bench, {.prompts = {text("book0", 0, 90)}, .admission = local, .max_new_tokens = 60});
  expect_teacher_forced(bench, {.prompts = {text("code0", 0, 90)},
                                .policy = "snapkv",
                                .admission = local,
                                .budget = 48,
                                .interval = 16,
                                .max_new_tokens = 60});
}

TEST_P(GenerateSlow, GreedyIsReplaysMostLikelyTokenUnderEveryPolicy) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const PolicyEntry* entry : policies()) {
    const Policy policy = make_policy(entry->name, {});
    if (!policy.scorer || policy.scorer->needs().future) continue;
    expect_teacher_forced(bench,
                          {.prompts = {text("code0", 0, 90)}, .policy = entry->name, .budget = 48, .interval = 16});
    if (entry->name == "foresight-kv") continue;  // which prunes at intervals alone
    expect_teacher_forced(bench, {.prompts = {text("book0", 0, 90)}, .policy = entry->name, .keep = 0.5});
  }
}

TEST_P(Generate, CutsWhenReplayDoes) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  // B = 48, L = 16 and 90 + 39 processed tokens: cuts after 64, 80, 96, 112 and 128 tokens; with 38 processed none
  // follows the last, and a prompt of 96 is cut at its end only where a second new token is asked for.
  const auto events = [&](size_t prompt, int new_tokens) {
    const GenerateResult result = bench.generate({.prompts = {text("code0", 0, prompt)},
                                                  .policy = "streaming",
                                                  .budget = 48,
                                                  .interval = 16,
                                                  .max_new_tokens = new_tokens});
    return result.costs.sequences[0].events;
  };
  EXPECT_EQ(events(90, 40), 5);
  EXPECT_EQ(events(90, 39), 4);
  EXPECT_EQ(events(96, 1), 2);
  EXPECT_EQ(events(96, 2), 3);
  EXPECT_EQ(events(20, 44), 0);
  EXPECT_EQ(events(20, 46), 1);
}

// In f32 a sequence's text is what it is alone. In bf16 products of other shapes round otherwise, and a near tie may
// then fall the other way; among other neighbours of the same lengths it must still be the same.
TEST_P(GenerateSlow, ABatchOfRaggedPromptsDoesNotMixItsSequences) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  for (const std::string policy : {"full", "h2o", "snapkv"}) {
    Ask ask{.prompts = {text("book0", 0, 100), text("code0", 0, 37), text("code0", 200, 81)}, .policy = policy};
    if (policy != "full") ask.budget = 48, ask.interval = 16;
    for (const float temperature : {0.0f, 1.0f}) {
      ask.sampling = {.temperature = temperature, .top_k = 20, .seed = 5};
      const GenerateResult together = bench.generate(ask);
      for (size_t s = 0; s < ask.prompts.size(); ++s) {
        Ask other = ask;
        for (size_t n = 0; n < ask.prompts.size(); ++n) {
          if (n != s) other.prompts[n] = text("book0", 500, ask.prompts[n].size());
        }
        EXPECT_EQ(together.sequences[s].ids, bench.generate(other).sequences[s].ids) << policy << " " << s;
        if (backend->activation_type() != DType::kF32) continue;
        other.prompts = {ask.prompts[s]};
        other.sample_numbers = {static_cast<int32_t>(s)};
        EXPECT_EQ(together.sequences[s].ids, bench.generate(other).sequences[0].ids) << policy << " " << s;
      }
    }
  }
}

TEST_P(Generate, StopsAtAStopIdWhileTheOthersGoOn) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Ask ask{.prompts = {text("book0", 0, 70), text("code0", 0, 70)}, .max_new_tokens = 50};
  const GenerateResult all = bench.generate(ask);
  // The first id of sequence 0's second half that neither has said before.
  const Ids &first = all.sequences[0].ids, &second = all.sequences[1].ids;
  const auto stop = std::find_if(first.begin() + 5, first.end(), [&](int32_t id) {
    return std::find(second.begin(), second.end(), id) == second.end();
  });
  ASSERT_NE(stop, first.end());
  const int64_t until = std::find(first.begin(), first.end(), *stop) - first.begin() + 1;
  ask.stop_ids = {8000, *stop};
  const GenerateResult result = bench.generate(ask);
  EXPECT_EQ(result.sequences[0].ids, ref::slice(first, 0, until));
  EXPECT_EQ(result.sequences[0].ending, Ending::kStop);
  EXPECT_EQ(std::ssize(result.sequences[1].ids), 50);
  EXPECT_EQ(ref::slice(result.sequences[1].ids, 0, until), ref::slice(second, 0, until));
  EXPECT_EQ(result.sequences[1].ending, Ending::kLength);
}

TEST_P(Generate, SampledTextRepeatsForASeedOnly) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Ask ask{.prompts = {text("book0", 0, 70), text("book0", 0, 70)}};
  ask.sampling = {.temperature = 1, .top_p = 0.95f, .seed = 1};
  const GenerateResult first = bench.generate(ask), same = bench.generate(ask);
  ask.sampling.seed = 2;
  const GenerateResult other = bench.generate(ask);
  EXPECT_EQ(first.sequences[0].ids, same.sequences[0].ids);
  EXPECT_EQ(first.sequences[1].ids, same.sequences[1].ids);
  EXPECT_NE(first.sequences[0].ids, first.sequences[1].ids) << "numbers 0 and 1 of a batch draw for themselves";
  EXPECT_NE(first.sequences[0].ids, other.sequences[0].ids);
}

// An observer sees each step, so that they run eagerly.
TEST_P(GenerateSlow, RecordedStepsEqualEagerOnes) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  const auto expect_same = [&](const Ask& ask) {
    SCOPED_TRACE(ask.policy + ", " + ask.selection.name);
    const GenerateResult recorded = bench.generate(ask), eager = bench.generate(ask, observers);
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(recorded.sequences[s].ids, eager.sequences[s].ids);
    int steps = 0, of_recordings = 0;
    for (const auto& stretch : recorded.stretches) {
      steps += stretch.steps;
      of_recordings += stretch.recorded ? stretch.steps : 0;
    }
    EXPECT_EQ(steps, ask.max_new_tokens - 1);
    EXPECT_GT(of_recordings, 20);
    for (const auto& stretch : eager.stretches) EXPECT_FALSE(stretch.recorded);
    EXPECT_EQ(recorded.costs.sequences[0].attended_pairs, eager.costs.sequences[0].attended_pairs);
    EXPECT_EQ(recorded.costs.sequences[1].end_entries, eager.costs.sequences[1].end_entries);
  };
  for (const PolicyEntry* entry : policies()) {
    const Policy policy = make_policy(entry->name, {});
    if (policy.scorer && policy.scorer->needs().future) continue;
    Ask ask{.prompts = {text("code0", 0, 90), text("book0", 0, 75)}, .policy = entry->name};
    if (policy.scorer) ask.budget = 48, ask.interval = 16;
    ask.sampling = {.temperature = 0.7f, .seed = 4};
    expect_same(ask);
    if (!scorer_needs(policy).column_sums) continue;
    ask.selection = {"quest", {{"pages", "2", ""}}};  // beside which a step attends twice
    expect_same(ask);
  }
}

// What is in a cache, in order of layers, rows and slots: bytes of each key and value, and positions.
struct Entries {
  Entries(Backend& backend, const Cache& cache) {
    for (int layer = 0; layer < cache.shape().layers; ++layer) add_layer(backend, cache.view(layer));
  }
  bool operator==(const Entries&) const = default;

  std::vector<uint8_t> bytes;
  Ids positions;

 private:
  void add_layer(Backend& backend, const PagedView& view) {
    const int64_t slots = view.pool_pages * kPageTokens;
    const size_t entry = static_cast<size_t>(view.head_dim) * bytes_of(view.keys.dtype);
    std::vector<uint8_t> keys(slots * entry), values(slots * entry);
    Ids pages(view.rows * view.max_pages), lengths(view.rows), places(slots);
    backend.download(keys.data(), view.keys.data, keys.size());
    backend.download(values.data(), view.values.data, values.size());
    backend.download(places.data(), view.positions, slots * sizeof(int32_t));
    backend.download(pages.data(), view.page_table, pages.size() * sizeof(int32_t));
    backend.download(lengths.data(), view.lengths, lengths.size() * sizeof(int32_t));
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t slot = 0; slot < lengths[row]; ++slot) {
        const int64_t at = int64_t{pages[row * view.max_pages + slot / kPageTokens]} * kPageTokens + slot % kPageTokens;
        positions.push_back(places[at]);
        for (const std::vector<uint8_t>* pool : {&keys, &values}) {
          bytes.insert(bytes.end(), pool->begin() + at * entry, pool->begin() + (at + 1) * entry);
        }
      }
    }
  }
};

// Swept every 16 tokens, whoever watches, and whatever the host hears of it meanwhile: at the end a head has the sinks
// and the window, or what gates and a draw let in, and each layer's keys and values, which hang on all attention before
// it, are the same to the last bit.
TEST_P(GenerateSlow, EntriesExpireInRecordedStepsAsInEagerOnes) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  const SlotChoice local{"local", {{"sinks", "4", ""}, {"window", "24", ""}}};
  for (const SlotChoice& admission : {local, SlotChoice{"wg-kv", {{"drop", "0.5", ""}, {"window", "24", ""}}}}) {
    SCOPED_TRACE(admission.name);
    Ask ask{.prompts = {text("code0", 0, 90), text("book0", 0, 75)}, .admission = admission, .max_new_tokens = 300};
    std::optional<LoopState> of_recorded, of_eager;
    EXPECT_TRUE(bench.generate(ask, {}, &of_recorded).stretches.back().recorded);
    EXPECT_FALSE(bench.generate(ask, observers, &of_eager).stretches.back().recorded);
    ASSERT_TRUE(of_recorded && of_eager);
    const Entries entries(bench.backend, of_recorded->cache);
    EXPECT_FALSE(entries.positions.empty());
    EXPECT_EQ(entries, Entries(bench.backend, of_eager->cache));
    const GenerateResult recorded = bench.generate(ask), eager = bench.generate(ask, observers);
    const SourceInfo& info = bench.source.info();
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(recorded.sequences[s].ids, eager.sequences[s].ids);
      EXPECT_EQ(recorded.costs.sequences[s].attended_pairs, eager.costs.sequences[s].attended_pairs);
      EXPECT_EQ(eager.costs.sequences[s].end_entries, recorded.costs.sequences[s].end_entries);
      if (admission.name == "local") {
        EXPECT_EQ(recorded.costs.sequences[s].end_entries, int64_t{4 + 24} * info.layers * info.kv_heads);
      }
    }
    ask.max_new_tokens = 40;
    ask.stop_ids = {recorded.sequences[0].ids[17]};  // ends between two sweeps
    const GenerateResult stopped = bench.generate(ask);
    EXPECT_EQ(stopped.sequences[1].ids, ref::slice(recorded.sequences[1].ids, 0, std::ssize(stopped.sequences[1].ids)));
  }
}

// Holds the host's lengths to those of the backend, at each step.
class LengthChecker final : public Scorer {
 public:
  Needs needs() const override { return {.host_steps = true}; }
  Protection protects(int kept, int) const override { return {.recent = kept}; }
  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.fill_zero(out.scores.data, out.scores.bytes());
  }
  void observe(const LayerView& view) override {
    std::vector<int32_t> lengths(view.lengths.size());
    view.backend.download(lengths.data(), view.cache.lengths, lengths.size() * sizeof(int32_t));
    EXPECT_TRUE(std::equal(lengths.begin(), lengths.end(), view.lengths.begin()));
    ++calls;
  }
  int calls = 0;
};

TEST_P(Generate, APolicyThatWorksOnTheHostSeesEveryStep) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  auto scorer = std::make_unique<LengthChecker>();
  LengthChecker& checker = *scorer;
  Policy policy = policy_of("length-checker", std::move(scorer));
  const Ask ask{.prompts = {text("code0", 0, 50), text("book0", 0, 64)}, .budget = 40, .interval = 20};
  const GenerateResult result = bench.generate(ask, policy);
  for (const auto& stretch : result.stretches) EXPECT_FALSE(stretch.recorded);
  // The prompts take [0, 40), then up to 60 and 64: three blocks; then 39 steps, through eight layers.
  EXPECT_EQ(checker.calls, 8 * (3 + 39));
}

// What local does by an op, decided on the host.
TEST_P(Generate, AnAdmissionThatWorksOnTheHostSeesEveryStep) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  Policy policy = make_policy("full", {});
  policy.admission = std::make_unique<ref::ChosenAdmission>(24, [](int32_t p, int, int) { return p < 4; });
  const Ask ask{.prompts = {text("code0", 0, 50), text("book0", 0, 64)},
                .admission = {"local", {{"sinks", "4", ""}, {"window", "24", ""}}}};
  const GenerateResult on_host = bench.generate(ask, policy), by_ops = bench.generate(ask);
  for (const auto& stretch : on_host.stretches) EXPECT_FALSE(stretch.recorded);
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(on_host.sequences[s].ids, by_ops.sequences[s].ids);
}

// Lets stay the first four positions, by an op, and notes about how many layers it is asked.
class NotingAdmission final : public Admission {
 public:
  int window() const override { return 24; }
  void admit(const LayerView& view, int32_t* expires) override {
    layers.push_back(view.layers);
    ExpiryArgs args{.segments = view.device_segments,
                    .segment_count = std::ssize(view.segments),
                    .max_count = 64,
                    .layers = view.layers,
                    .kv_heads = view.kv_heads,
                    .sinks = 4,
                    .window = window(),
                    .expires = expires};
    for (const Segment& segment : view.segments) args.tokens += segment.count;
    view.backend.expiry(args);
  }
  std::vector<int> layers;
};

// Eight layers; whoever watches wants to see each of them decided before it is read.
TEST_P(Generate, AsksAnAdmissionOnceAStepForAllLayers) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  const Ask ask{.prompts = {text("code0", 0, 50), text("book0", 0, 64)},
                .admission = {"local", {{"sinks", "4", ""}, {"window", "24", ""}}}};
  const GenerateResult expected = bench.generate(ask);
  Watcher watcher;
  Observer* const observers[] = {&watcher};
  for (const bool is_watched : {false, true}) {
    Policy policy = make_policy("full", {});
    auto admission = std::make_unique<NotingAdmission>();
    const NotingAdmission& noting = *admission;
    policy.admission = std::move(admission);
    const GenerateResult result = is_watched ? bench.generate(ask, policy, observers) : bench.generate(ask, policy);
    for (size_t s = 0; s < 2; ++s) EXPECT_EQ(result.sequences[s].ids, expected.sequences[s].ids);
    // Prompts layer by layer; then 39 steps, of which a card records one and repeats it without asking.
    const auto first_step = std::find(noting.layers.begin(), noting.layers.end(), 8);
    EXPECT_EQ(std::count(noting.layers.begin(), first_step, 1), first_step - noting.layers.begin());
    EXPECT_EQ(std::count(first_step, noting.layers.end(), 8), is_watched ? 0 : backend->name() == "cpu" ? 39 : 2);
    EXPECT_EQ(std::count(first_step, noting.layers.end(), 1), 0);
  }
}

TEST_P(Generate, CountsWhatItKeepsAndHowLongItTakes) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend);
  const GenerateResult result =
      bench.generate({.prompts = {text("book0", 0, 100)}, .policy = "streaming", .keep = 0.25, .max_new_tokens = 21});
  EXPECT_EQ(result.costs.sequences[0].events, 1);
  EXPECT_EQ(result.costs.sequences[0].end_entries, (25 + 20) * 8 * 4);
  EXPECT_GT(result.prefill_seconds, 0);
  double seconds = 0;
  for (const auto& stretch : result.stretches) seconds += stretch.seconds;
  EXPECT_DOUBLE_EQ(result.decode_seconds, seconds);
  EXPECT_GE(result.costs.total_seconds, result.prefill_seconds + result.decode_seconds + result.evict_seconds);
  EXPECT_GT(result.peak_bytes, result.costs.peak_kv_bytes);
}

// Naps wherever its scores are not asked for but an event is at work.
constexpr auto kNap = std::chrono::milliseconds(20);

class SlowProtector final : public Scorer {
 public:
  Protection protects(int kept, int) const override {
    std::this_thread::sleep_for(kNap);
    return {.recent = kept};
  }
  void score(const LayerView& view, const ScoreOutput& out) override {
    view.backend.fill_zero(out.scores.data, out.scores.bytes());
  }
};

class SlowWatcher final : public Observer {
 public:
  void evicting(const EvictionView&) override { std::this_thread::sleep_for(kNap); }
};

double seconds_of(int naps) { return std::chrono::duration<double>(kNap).count() * naps; }

// Two cuts, after 64 and 80 tokens.
Ask two_cuts() { return {.prompts = {text("code0", 0, 50)}, .budget = 48, .interval = 16}; }

TEST(GenerateTime, AllThatAnEventDoesIsItsOwn) {
  const auto backend = make_backend("cpu");
  Bench bench(*backend);
  Policy policy = policy_of("slow", std::make_unique<SlowProtector>());
  const GenerateResult result = bench.generate(two_cuts(), policy);
  ASSERT_EQ(result.costs.sequences[0].events, 2);
  EXPECT_GE(result.evict_seconds, seconds_of(2));
  EXPECT_DOUBLE_EQ(result.evict_seconds, result.costs.score_seconds + result.costs.evict_seconds);
  // Every moment is the prompt's, a step's or an event's.
  const double sum = result.prefill_seconds + result.decode_seconds + result.evict_seconds;
  EXPECT_NEAR(result.costs.total_seconds, sum, seconds_of(1) / 2);
}

TEST(GenerateTime, WhatAnObserverTakesIsNotTheEvents) {
  const auto backend = make_backend("cpu");
  Bench bench(*backend);
  Policy policy = make_policy("streaming", {});
  SlowWatcher watcher;
  Observer* const observers[] = {&watcher};
  const GenerateResult result = bench.generate(two_cuts(), policy, observers);
  ASSERT_EQ(result.costs.sequences[0].events, 2);
  EXPECT_LT(result.evict_seconds, seconds_of(2 * 8));  // 8 layers
  EXPECT_GE(result.costs.total_seconds, seconds_of(2 * 8));
}

TEST_P(Generate, EndsWhereALogitIsNotFinite) {
  KV_BACKEND_OR_SKIP(backend);
  Bench bench(*backend, SpoiledWeights());
  for (const float temperature : {0.0f, 1.0f}) {
    try {
      bench.generate({.prompts = {{1, 2, 3}, {4, 5}}, .sampling = {.temperature = temperature, .top_p = 0.9f}});
      ADD_FAILURE() << "no error at temperature " << temperature;
    } catch (const NotFiniteError& error) {
      EXPECT_STREQ(error.what(), "generation: the logit of token id 0 is NaN or infinite (expected a finite number)");
    }
  }
}

TEST(GenerateErrors, NameWhatIsWrong) {
  const auto backend = make_backend("cpu");
  Bench bench(*backend);
  const Ids prompt = {1, 2, 3};
  const auto expect_error = [&](const Ask& ask, const char* message) {
    try {
      bench.generate(ask);
      ADD_FAILURE() << "no error instead of: " << message;
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(), message);
    }
  };
  expect_error({}, "generation: no prompts");
  expect_error({.prompts = {prompt, {}}}, "generation: prompt 1 is empty");
  expect_error({.prompts = {{1, 8192}}}, "qwen3 model: token id 8192 at position 1 is outside the vocabulary of 8192");
  expect_error({.prompts = {prompt}, .max_new_tokens = 0}, "generation: 0 new tokens: expected at least 1");
  expect_error({.prompts = {prompt}, .policy = "h2o"},
               "generation: h2o needs a budget and an interval, or a fraction of the prompt to keep");
  expect_error({.prompts = {prompt}, .budget = 32, .interval = 8},
               "generation: full never evicts (expected no budget and nothing to keep)");
  expect_error({.prompts = {prompt}, .policy = "h2o", .budget = 32},
               "generation: budget 32, interval 0: expected at least 1 each");
  expect_error({.prompts = {prompt}, .policy = "h2o", .budget = 32, .interval = 8, .keep = 0.5},
               "generation: expected either a budget and an interval or a fraction of the prompt to keep");
  expect_error({.prompts = {prompt}, .policy = "h2o", .keep = 1.5},
               "generation: keep 1.5: expected a fraction above 0 and at most 1");
  expect_error({.prompts = {prompt}, .policy = "golden", .budget = 32, .interval = 8},
               "golden: needs the full-cache pass (it is an oracle), which qwen3 model does not offer here");
  expect_error({.prompts = {prompt}, .sampling = {.temperature = -1}},
               "generation: temperature -1: expected 0 (greedy) to 10000");
  expect_error({.prompts = {prompt}, .sampling = {.temperature = 1, .top_k = -1}},
               "generation: top-k -1: expected 0 (all) or more");
  expect_error({.prompts = {prompt}, .sampling = {.temperature = 1, .top_p = 0}},
               "generation: top-p 0: expected above 0 and at most 1");
}

}  // namespace
}  // namespace kv
