#include "sim/replay/turns.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sim/model/model_files.h"
#include "sim/policy/policy.h"
#include "sim/replay/generate.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/paths.h"
#include "tests/support/slices.h"
#include "tests/support/threads.h"

namespace kv {
namespace {

using Ids = std::vector<int32_t>;

// The tiny Llama of tests/data, vocabulary 1024.
struct TurnsBench {
  explicit TurnsBench(Backend& backend)
      : backend(backend), source(backend, load_model(ref::source_path("tests/data/llama"))) {}

  // A prompt of some tokens that name the text and the turn.
  static std::optional<Ids> prompt(int32_t number, int turn, int32_t) {
    Ids ids(static_cast<size_t>(3 + (number + 2 * turn) % 5));
    std::iota(ids.begin(), ids.end(), 100 * number + 10 * turn);
    return ids;
  }

  std::vector<TurnsText> write(const Ids& numbers, const Ids& stop_ids, int tokens, int turns = 1000) {
    return write_turns({.backend = backend,
                        .source = source,
                        .numbers = numbers,
                        .sampling = {.temperature = 1.0F, .top_p = 0.95F, .seed = 7},
                        .stop_ids = stop_ids,
                        .tokens = tokens,
                        .turns = turns,
                        .prompt = prompt});
  }

  Backend& backend;
  ModelSource source;
};

// Every id is a stop id with a chance of an eighth, about.
Ids some_stop_ids() {
  Ids ids;
  for (int32_t id = 0; id < 1024; id += 8) ids.push_back(id);
  return ids;
}

bool is_stop(int32_t id) { return id % 8 == 0; }

KV_OVER_BACKENDS(Runs, TurnsOverBackends);

TEST_P(TurnsOverBackends, APromptFollowsEveryEndUntilTheTextIsLongEnough) {
  KV_BACKEND_OR_SKIP(backend);
  TurnsBench bench(*backend);
  const std::vector<TurnsText> texts = bench.write({0, 1, 2}, some_stop_ids(), 120);
  ASSERT_EQ(texts.size(), 3u);
  for (int32_t number = 0; number < 3; ++number) {
    const TurnsText& text = texts[static_cast<size_t>(number)];
    EXPECT_EQ(text.ids.size(), 120u);
    ASSERT_GE(text.turns.size(), 3u);
    size_t at = 0;
    for (int turn = 0; turn < static_cast<int>(text.turns.size()); ++turn) {
      const OwnTurn& spans = text.turns[static_cast<size_t>(turn)];
      const Ids expected = *TurnsBench::prompt(number, turn, 0);
      const bool is_last = turn + 1 == static_cast<int>(text.turns.size());
      ASSERT_TRUE(is_last || spans.prompt == std::ssize(expected));
      EXPECT_EQ(ref::slice(text.ids, static_cast<int64_t>(at), spans.prompt), ref::slice(expected, 0, spans.prompt));
      at += static_cast<size_t>(spans.prompt);
      for (int32_t i = 0; i < spans.written; ++i, ++at) {
        const bool ends = i + 1 == spans.written;
        // The text may end with anything.
        EXPECT_TRUE(is_stop(text.ids[at]) == ends || (ends && is_last)) << number << " " << turn;
      }
    }
    EXPECT_EQ(at, text.ids.size());
  }
}

// Each turn is what generate() writes after all that stands before it, read anew.
TEST(Turns, GoOnAsIfEverythingBeforeHadBeenReadAtOnce) {
  const auto backend = make_backend("cpu");
  TurnsBench bench(*backend);
  const Ids stop_ids = some_stop_ids();
  const TurnsText text = bench.write({0, 1, 2}, stop_ids, 100)[1];
  Policy full = policy_of("full", nullptr);
  size_t begin = 0;
  for (const OwnTurn& turn : text.turns) {
    const size_t end = begin + static_cast<size_t>(turn.prompt);
    const Ids before(text.ids.begin(), text.ids.begin() + static_cast<int64_t>(end));
    const std::span<const int32_t> prompts[] = {before};
    const int32_t numbers[] = {1};
    if (turn.written == 0) break;
    const GenerateResult again = generate({.backend = *backend,
                                           .source = bench.source,
                                           .policy = full,
                                           .prompts = prompts,
                                           .max_new_tokens = 100 - static_cast<int>(end),
                                           .stop_ids = stop_ids,
                                           .sampling = {.temperature = 1.0F, .top_p = 0.95F, .seed = 7},
                                           .sample_numbers = numbers});
    EXPECT_EQ(again.sequences[0].ids, ref::slice(text.ids, static_cast<int64_t>(end), turn.written));
    begin = end + static_cast<size_t>(turn.written);
  }
  EXPECT_GE(text.turns.size(), 3u);
}

TEST(Turns, IdsAreTheSameForAnyThreadsAndBatchOnTheCpu) {
  const auto backend = make_backend("cpu");
  TurnsBench bench(*backend);
  const auto ids_of = [&](const Ids& numbers) {
    std::vector<Ids> ids;
    for (const TurnsText& text : bench.write(numbers, some_stop_ids(), 90)) ids.push_back(text.ids);
    return ids;
  };
  const auto with_threads = [&](int threads) {
    const ref::Threads set(threads);
    return ids_of({0, 1, 2, 3});
  };
  const std::vector<Ids> together = with_threads(1);
  EXPECT_EQ(with_threads(2), together);
  for (int32_t number = 0; number < 4; ++number) {
    EXPECT_EQ(ids_of({number})[0], together[static_cast<size_t>(number)]) << number;
  }
  EXPECT_NE(together[0], together[1]);
}

TEST(Turns, ATextEndsEarlyWithoutMoreTurnsOrPrompts) {
  const auto backend = make_backend("cpu");
  TurnsBench bench(*backend);
  const TurnsText text = bench.write({0}, some_stop_ids(), 400, 2)[0];
  EXPECT_LT(text.ids.size(), 400u);
  EXPECT_EQ(text.turns.size(), 2u);
  EXPECT_TRUE(is_stop(text.ids.back()));
  const Ids all = some_stop_ids();
  const int32_t numbers[] = {0, 1};
  const std::vector<TurnsText> texts =
      write_turns({.backend = *backend,
                   .source = bench.source,
                   .numbers = numbers,
                   .sampling = {.temperature = 1.0F, .seed = 7},
                   .stop_ids = all,
                   .tokens = 60,
                   .turns = 1000,
                   .prompt = [](int32_t number, int turn, int32_t last) -> std::optional<Ids> {
                     if (number == 0 && turn == 1) return std::nullopt;
                     return TurnsBench::prompt(number, turn, last);
                   }});
  EXPECT_EQ(texts[0].turns.size(), 1u);
  EXPECT_LT(texts[0].ids.size(), 60u);
  EXPECT_EQ(texts[1].ids.size(), 60u);  // goes on while the other rests
}

TEST(Turns, APromptMustLeaveSomethingToWrite) {
  const auto backend = make_backend("cpu");
  TurnsBench bench(*backend);
  EXPECT_EQ(test::user_error([&] { bench.write({4}, {}, 7); }),
            "the prompt of attempt 4 has 7 tokens, which leave nothing of 7 to write");
  EXPECT_EQ(bench.write({4}, {}, 8)[0].turns, (std::vector<OwnTurn>{{7, 1}}));
}

}  // namespace
}  // namespace kv
