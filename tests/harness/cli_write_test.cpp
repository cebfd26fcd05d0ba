#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "harness/folder_lock.h"
#include "harness/host_name.h"
#include "sim/io/hash.h"
#include "sim/io/xz.h"
#include "sim/tasks/own_traces.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/text_model.h"

// kvlab write, and the runs that read what it wrote.

namespace kv {
namespace {

namespace fs = std::filesystem;

class CliWrite : public Cli {
 protected:
  CliWrite() {
    ref::make_text_model(folder_ / "model");
    write_atomically(folder_ / "prompts.jsonl", prompts("abc"));
    write_atomically(own_spec(),
                     "# Who keeps what the model wrote?\n"
                     "model: " +
                         path("model") +
                         "\n"
                         "data: [{task: own, prompts: prompts.jsonl, tokens: 64, temperature: 1, repetition: 0.9}]\n"
                         "policies: [full, streaming]\n"
                         "axes: {budget: 16, interval: 8}\n"
                         "metrics: [loss]\n"
                         "samples: 3\n");
  }

  static std::string prompts(std::string_view names) {
    std::string text;
    for (const char name : names) text += fmt::format("{{\"prompt\": \"Say {0}{0}{0}\"}}\n", name);
    return text;
  }

  fs::path own_spec() const { return folder_ / "own.yaml"; }
  fs::path traces_file() const { return folder_ / "model/own/prompts.jsonl.xz"; }
  fs::path unfinished() const { return folder_ / "model/own/prompts.jsonl.unfinished"; }
  std::string write_command(const std::string& more = "") const {
    return fmt::format("write {} --quiet {}", own_spec().string(), more);
  }
  std::string run_command(const std::string& more = "") const {
    return fmt::format("run {} --quiet --no-draw --out {} {}", own_spec().string(), path("out"), more);
  }
  void write_traces(const std::string& more = "", const char* environment = "") const {
    const Output output = run(write_command(more), environment);
    ASSERT_EQ(output.code, 0) << output.text;
  }
  std::string text_of_file() const { return unxz(read_file(traces_file()), "traces"); }
  void put(const std::string& text) const { write_atomically(traces_file(), xz(text)); }
  std::vector<OwnAttempt> attempts() const { return parse_own_traces(text_of_file(), "traces").attempts; }
  // Rows of a run, by metric.
  std::multimap<std::string, Row> rows() const {
    std::multimap<std::string, Row> found;
    for (Row& row : read_rows(folder_ / "out/rows.csv").rows) found.emplace(row.metric, row);
    return found;
  }
};

TEST_F(CliWrite, TracesThatWereWrittenAreData) {
  const Output output = run(fmt::format("write {}", own_spec().string()));
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("prompts.jsonl.xz: 3 of 3 traces in 3 attempts"), std::string::npos) << output.text;
  EXPECT_FALSE(fs::exists(unfinished()));
  const OwnTraces traces = parse_own_traces(text_of_file(), "traces");
  EXPECT_EQ(traces.recipe.model, "model");
  EXPECT_EQ(traces.recipe.wording, "plain");
  EXPECT_EQ(traces.recipe.tokens, 64);
  EXPECT_NE(traces.origin.find("\"commit\""), std::string::npos);

  const Output ran = run(run_command());
  ASSERT_EQ(ran.code, 0) << ran.text;
  const auto by_metric = rows();
  EXPECT_EQ(by_metric.find("trace_yield")->second.value, 1);
  EXPECT_EQ(by_metric.find("trace_yield")->second.text, "3 of 3 attempts, by model on cpu");
  EXPECT_EQ(by_metric.count("refused_trace"), 0u);
  for (const auto& [metric, row] : by_metric) {
    if (metric != "answer_tokens" && metric != "prompt_tokens") continue;
    const OwnAttempt& trace = traces.attempts[static_cast<size_t>(row.sample.value())];
    // Nothing predicts the first token, which is the prompt's.
    EXPECT_EQ(row.value, metric == "answer_tokens" ? trace.written : 63 - trace.written);
  }
  EXPECT_EQ(by_metric.count("answer_loss_ratio"), 6u);  // two policies, three samples
  EXPECT_EQ(by_metric.count("prompt_loss_ratio"), 6u);
  EXPECT_EQ(by_metric.count("loss_ratio"), 6u);
}

TEST_F(CliWrite, InspectSaysWhatAFileOfTracesHolds) {
  write_traces();
  OwnTraces traces = parse_own_traces(text_of_file(), "traces");
  traces.attempts[1] = {
      .refused = "repeats itself: a rate of 0.950, expected at most 0.9", .repetition = 0.95, .written = 50};
  traces.recipe.prompts = "a\x1b[2Jb";
  traces.origin = R"({"commit":"c0ffee","changes":"none","date":3})";
  put(format_own_traces(traces));
  const OwnAttempt &first = traces.attempts[0], &last = traces.attempts[2];
  const Output output = run("inspect " + traces_file().string());
  EXPECT_EQ(output.code, 0);
  for (const std::string& line :
       {std::string("traces      2 of 3 attempts\n"), std::string("no trace    1: repeats itself\n"),
        "lengths     64 tokens, " +
            (first.written == last.written ? std::to_string(first.written)
                                           : fmt::format("{} to {}", std::min(first.written, last.written),
                                                         std::max(first.written, last.written))) +
            " of them written\n",
        std::string(", at most 64\n"), std::string(", at most 0.9\n"),
        fmt::format("model       model, SHA-256 {}, vocabulary 1024\n", traces.recipe.model_sha256),
        fmt::format("prompts     a?[2Jb, SHA-256 {}, wording plain\n", traces.recipe.prompts_sha256),
        std::string("drawn       temperature 1, top_p 0.95, seed 1, on cpu\n"),
        std::string("commit      c0ffee, changes none, 3\n")}) {
    EXPECT_NE(output.text.find(line), std::string::npos) << line << output.text;
  }
  put("{}\n");
  expect_refused("inspect " + traces_file().string(), "prompts.jsonl.xz: ends before its last line");
  write_atomically(traces_file(), "no xz");
  expect_refused("inspect " + traces_file().string(), "prompts.jsonl.xz");
}

// Whatever its name: a change of it makes results stale.
TEST_F(CliWrite, TheManifestKnowsThePrompts) {
  fs::rename(folder_ / "prompts.jsonl", folder_ / "prompts");
  write_atomically(own_spec(), test::replaced(read_file(own_spec()), "prompts: prompts.jsonl", "prompts: prompts"));
  write_traces();
  ASSERT_EQ(run(run_command()).code, 0);
  const auto manifest = nlohmann::json::parse(read_file(folder_ / "out/manifest.json"));
  EXPECT_EQ(manifest["data_sha256"]["own prompts"], sha256_hex(prompts("abc")));
}

TEST_F(CliWrite, IdsAreTheSameForAnyThreadsAndBatch) {
  write_traces("--batch 1", "OMP_NUM_THREADS=1");
  const std::vector<OwnAttempt> singly = attempts();
  write_traces("--fresh --batch 3", "OMP_NUM_THREADS=2");
  EXPECT_EQ(attempts(), singly);
}

TEST_F(CliWrite, AWriterGoesOnWhereItStopped) {
  write_traces();
  const std::string whole = text_of_file();
  // As if it had been killed after its first batch, and while it wrote the second.
  const size_t second = whole.find("{\"attempt\":1");
  fs::remove(traces_file());
  write_atomically(unfinished(), whole.substr(0, second));
  const Output output = run(fmt::format("write {}", own_spec().string()));
  EXPECT_NE(output.text.find("(1 from an earlier start)"), std::string::npos) << output.text;
  EXPECT_EQ(text_of_file(), whole);
  EXPECT_FALSE(fs::exists(unfinished()));
  // More are wanted, or fewer: what is there stays as it is.
  write_traces("--set samples=4");
  EXPECT_EQ(text_of_file().substr(0, whole.find("{\"end\"")), whole.substr(0, whole.find("{\"end\"")));
  EXPECT_EQ(attempts().size(), 4u);
  const std::string four = text_of_file();
  write_traces();
  EXPECT_EQ(text_of_file(), four);
  // As if it had been killed on the way to a fifth.
  write_atomically(unfinished(), four.substr(0, four.find("{\"end\"")));
  write_traces();
  EXPECT_EQ(text_of_file(), four);
  EXPECT_FALSE(fs::exists(unfinished()));
}

TEST_F(CliWrite, TwoWritersAtOnceAreOneTooMany) {
  const fs::path own = traces_file().parent_path();
  fs::create_directories(own);
  {
    const FolderLock first(own, "test");
    const Output second = run(write_command());
    EXPECT_EQ(second.code, 2);
    EXPECT_EQ(second.text,
              fmt::format("kvlab: '{}' is being written by process {} on {}, another kvlab write; wait for it\n",
                          own.string(), ::getpid(), host_name()));
  }
  write_traces();
}

TEST_F(CliWrite, AttemptsAreCappedAndTheYieldIsReported) {
  const Output output = run(fmt::format("write {} --attempts 2", own_spec().string()));
  EXPECT_EQ(output.code, 0);
  EXPECT_NE(output.text.find("2 of 3 traces in 2 attempts; the attempts are used up"), std::string::npos);
  EXPECT_EQ(run(run_command()).code, 0);
  const auto by_metric = rows();
  const auto skipped = by_metric.find("");
  ASSERT_NE(skipped, by_metric.end());
  EXPECT_EQ(skipped->second.sample, 2);
  EXPECT_NE(skipped->second.skipped.find("2 of 2 attempts became traces, sample 2 needs more"), std::string::npos);
}

// A small model that takes the most likely token each time comes round.
TEST_F(CliWrite, WhatRepeatsItselfIsNoTrace) {
  fs::create_directory(folder_ / "greedy");
  for (const auto& entry : fs::directory_iterator(reference())) {
    if (entry.is_regular_file()) fs::create_symlink(entry.path(), folder_ / "greedy" / entry.path().filename());
  }
  const std::string greedy =
      fmt::format("--set model={} --set data.own.temperature=0 --set data.own.tokens=120", path("greedy"));
  const std::string message =
      expect_refused(write_command(greedy + " --set data.own.repetition=0.2 --attempts 1"), "became a trace");
  EXPECT_NE(message.find("none of 1 attempts became a trace; the first repeats itself: a rate of 0."),
            std::string::npos);
  EXPECT_NE(message.find(", expected at most 0.2\n"), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(folder_ / "greedy/own/prompts.jsonl.xz"));
}

TEST_F(CliWrite, AnAttemptThatIsNoTraceIsARowAndNoSample) {
  write_traces();
  OwnTraces traces = parse_own_traces(text_of_file(), "traces");
  traces.attempts[1] = {
      .refused = "repeats itself: a rate of 0.950, expected at most 0.9", .repetition = 0.95, .written = 50};
  put(format_own_traces(traces));
  EXPECT_EQ(run(run_command("--set samples=2")).code, 0);
  const auto by_metric = rows();
  EXPECT_NEAR(by_metric.find("trace_yield")->second.value.value(), 2.0 / 3, 1e-8);
  const Row& refused = by_metric.find("refused_trace")->second;
  EXPECT_EQ(refused.x, 1);
  EXPECT_EQ(refused.value, 0.95);
  EXPECT_EQ(refused.text, "repeats itself: a rate of 0.950, expected at most 0.9");
  EXPECT_EQ(by_metric.count("loss_ratio"), 4u);  // attempts 0 and 2
}

TEST_F(CliWrite, WhatEndsEarlyIsNoTrace) {
  // Three prompts of 9 bytes, a turn each at most, and every second token ends a turn.
  std::string config = read_file(folder_ / "model/config.json");
  fs::remove(folder_ / "model/config.json");
  std::string stops = "2";
  for (int id = 4; id < 1024; id += 2) stops += fmt::format(", {}", id);
  const size_t at = config.find("\"eos_token_id\": ");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, config.find_first_of(",\n", at) - at, fmt::format("\"eos_token_id\": [{}]", stops));
  write_atomically(folder_ / "model/config.json", config);
  const std::string message = expect_refused(write_command("--attempts 1"), "became a trace");
  EXPECT_NE(message.find("the first ends early: after "), std::string::npos) << message;
  EXPECT_NE(message.find(" of 64 tokens and 3 turns"), std::string::npos) << message;
}

TEST_F(CliWrite, ARunWithoutTracesSaysHowToGetThem) {
  expect_refused(run_command(), "there are no traces yet");
  expect_refused(run_command(), fmt::format("`kvlab write {}` lets the model write them", own_spec().string()));
  expect_refused("validate " + own_spec().string(), "prompts.jsonl.xz");
}

TEST_F(CliWrite, TracesOfAnotherModelAreRefusedUnlessAskedFor) {
  write_traces();
  std::string config = read_file(folder_ / "model/config.json");
  fs::remove(folder_ / "model/config.json");
  write_atomically(folder_ / "model/config.json", config + " ");  // another file, the same model
  expect_refused(run_command(), "is by model model with files of SHA-256");
  expect_refused(write_command(), "holds attempts of another recipe");
  EXPECT_EQ(run(run_command("--set data.own.writer=any")).code, 0);
  // Its ids mean nothing where they stand for other texts.
  std::string tokenizer = read_file(folder_ / "model/tokenizer.json");
  const size_t z = tokenizer.find("\"Z\":90");
  ASSERT_NE(z, std::string::npos) << tokenizer;
  write_atomically(folder_ / "model/tokenizer.json", tokenizer.replace(z, 6, "\"Z\":300"));
  expect_refused(run_command("--set data.own.writer=any"), "whose vocabulary is not that of model");
}

TEST_F(CliWrite, TracesOfAnotherRecipeAreRefused) {
  write_traces();
  for (const auto& [set, reason] :
       std::map<std::string, std::string>{{"temperature=0.5", "was written with temperature 1, expected 0.5"},
                                          {"top_p=1", "was written with top_p 0.95, expected 1"},
                                          {"seed=2", "was written with seed 1, expected 2"},
                                          {"turns=3", "was written with turns 64, expected 3"},
                                          {"repetition=0.5", "was written with repetition 0.9, expected 0.5"},
                                          {"tokens=65", "has traces of 64 tokens, expected 65"}}) {
    expect_refused(run_command("--set data.own." + set), reason);
    expect_refused(write_command("--set data.own." + set), "holds attempts of another recipe");
  }
  write_atomically(folder_ / "prompts.jsonl", prompts("abd"));
  expect_refused(run_command(), "was written from other prompts (prompts.jsonl, SHA-256");
  // A file that is named stands for itself; a shorter sample is its beginning.
  fs::remove(folder_ / "prompts.jsonl");
  const std::string given = "--set data.own.traces=" + traces_file().string();
  expect_refused(run_command(given), "prompts.jsonl");
  write_atomically(own_spec(), test::replaced(read_file(own_spec()), "prompts: prompts.jsonl",
                                              "traces: model/own/prompts.jsonl.xz"));
  EXPECT_EQ(run(run_command("--set data.own.tokens=32")).code, 0);
  expect_refused(write_command(), "lacks the key 'prompts'");
}

TEST_F(CliWrite, HostileTracesAreOneLineAndCodeTwo) {
  write_traces();
  const std::string packed = read_file(traces_file()), text = text_of_file();
  for (const size_t size : {size_t{0}, size_t{5}, packed.size() / 2, packed.size() - 1}) {
    write_atomically(traces_file(), packed.substr(0, size));
    expect_refused(run_command(), "prompts.jsonl.xz");
  }
  put(text.substr(0, text.find("{\"end\"")));
  expect_refused(run_command(), "prompts.jsonl.xz:4: ");
  put(test::replaced(text, "\"traces\":3", "\"traces\":9"));
  expect_refused(run_command(), "the end counts 3 attempts and 9 traces, the file holds 3 and 3");
  const size_t ids = text.find("\"ids\":[") + 7;
  put(text.substr(0, ids) + "1024" + text.substr(text.find(',', ids)));
  expect_refused(run_command(), "ids[0] is 1024, expected a token id below 1024");
  put(test::replaced(text, "\"tokens\":1024", "\"tokens\":2048"));
  expect_refused(run_command(), "has ids of a vocabulary of 2048 tokens, expected 1024");
  put("\n");
  expect_refused(run_command());
  put(text + "{}\n");
  expect_refused(run_command());
}

TEST_F(CliWrite, MistakesAreOneLineAndCodeTwo) {
  const auto refused_with = [&](const std::string& from, const std::string& to, const std::string& reason) {
    const std::string before = read_file(own_spec());
    write_atomically(own_spec(), test::replaced(before, from, to));
    expect_refused(write_command(), reason);
    write_atomically(own_spec(), before);
  };
  refused_with("prompts: prompts.jsonl, ", "", "lacks the key 'prompts'");
  refused_with("prompts: prompts.jsonl", "prompts: none.jsonl", "none.jsonl");
  refused_with("temperature: 1", "temperature: -1", "expected 0 to 10000");
  refused_with("temperature: 1", "temperature: 1, top_p: 0", "expected above 0 and at most 1");
  refused_with("temperature: 1", "temperature: 1, turns: 0", "expected 1 to");
  refused_with("temperature: 1", "temperature: 1, seed: -1", "expected at least 0");
  refused_with("temperature: 1", "temperatur: 1", "did you mean 'temperature'");
  refused_with("repetition: 0.9", "repetition: 1.5", "expected above 0 and at most 1");
  refused_with("tokens: 64, ", "", "lacks the key 'tokens'");
  refused_with("tokens: 64", "tokens: 8", "which leave nothing of 8 to write");
  refused_with("model: " + path("model"), "model: {random: tiny}", "has no tokenizer");
  refused_with("{task: own, prompts: prompts.jsonl, tokens: 64, temperature: 1, repetition: 0.9}",
               "{task: book, tokens: 64}", "no entry of data is a 'task: own'");
  refused_with("policies: [full, streaming]\naxes: {budget: 16, interval: 8}\nmetrics: [loss]",
               "policies: [full]\nprotocol: answer", "asks nothing");
  write_atomically(folder_ / "prompts.jsonl", "{\"prompt\": 3}\n");
  expect_refused(write_command(), "prompts.jsonl:1: \"prompt\" is 3");
  write_atomically(folder_ / "prompts.jsonl", prompts("abc"));
  write_atomically(folder_ / "model/tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
  expect_refused(write_command(), "is not known (expected ChatML");
  write_traces("--set data.own.template=none");
  EXPECT_EQ(run(run_command("--set data.own.template=none")).code, 0);
  expect_refused(write_command("--batch 0"));
  expect_refused(write_command("--attempts 0"));
}

TEST_F(CliWrite, TheTaskIsListedAndDescribed) {
  EXPECT_NE(run("list tasks").text.find("\nown"), std::string::npos);
  const Output output = run("describe own");
  EXPECT_EQ(output.code, 0);
  for (const char* option :
       {"tokens", "prompts", "temperature", "top_p", "turns", "repetition", "template", "traces", "writer"}) {
    EXPECT_NE(output.text.find(fmt::format("\n  {} ", option)), std::string::npos) << option;
  }
}

}  // namespace
}  // namespace kv
