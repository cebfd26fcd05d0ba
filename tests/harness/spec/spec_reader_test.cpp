#include "harness/spec/spec_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/spec/component_reader.h"
#include "harness/spec/data_reader.h"
#include "harness/spec/model_reader.h"
#include "kernels/error.h"

namespace kv {
namespace {

constexpr const char* kGood = R"(# Which policy is best?
# And when?

# not part of the question
title: A test
model: m
data:
  - {task: reason, tokens: 64, samples: 2}
  - {name: prose, text: book.txt}
  - ids: some/file.safetensors
policies:
  - full
  - {policy: h2o, label: h2o per step, mode: original, recent: 8}
axes:
  budget: [32, 64]
  setting: [{interval: 8, window: 4}, {interval: 16, window: 8}]
metrics: [loss, {metric: recall, block: 16}]
seed: 7
)";

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_spec(yaml, "s.yaml", overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// A spec that is fine but for the given line, which comes first.
std::string with(const std::string& line) {
  return line + "\nmodel: m\ndata: [{task: reason, tokens: 8}]\npolicies: [full]\n";
}

TEST(Spec, ReadsEveryPart) {
  const Spec spec = parse_spec(kGood, "dir/s.yaml");
  EXPECT_EQ(spec.name, "s");
  EXPECT_EQ(spec.question, "Which policy is best? And when?");
  EXPECT_EQ(spec.title, "A test");
  ASSERT_EQ(spec.data.size(), 3u);
  EXPECT_EQ(spec.data[0].name, "reason");
  EXPECT_EQ(spec.data[0].tokens, 64);
  EXPECT_EQ(spec.data[0].samples, 2);
  EXPECT_EQ(spec.data[1].kind, DataKind::kText);
  EXPECT_EQ(spec.data[1].name, "prose");
  EXPECT_EQ(spec.data[2].kind, DataKind::kIds);
  EXPECT_EQ(spec.data[2].name, "file");
  ASSERT_EQ(spec.policies.size(), 2u);
  EXPECT_EQ(spec.policies[1].label, "h2o per step");
  ASSERT_EQ(spec.policies[1].options.size(), 2u);
  EXPECT_EQ(spec.policies[1].options[0].key, "mode");
  EXPECT_EQ(spec.policies[1].options[0].where, "dir/s.yaml:13:46");
  EXPECT_EQ(spec.axis_columns(), (std::vector<std::string>{"budget", "interval", "window"}));
  EXPECT_EQ(spec.axes[1].points.size(), 2u);
  EXPECT_EQ(spec.metrics[1].options[0].text, "16");
  EXPECT_EQ(spec.seed, 7u);
  EXPECT_EQ(spec.batch, 0);  // auto
  EXPECT_EQ(spec.device, "cpu");
}

TEST(Spec, SuggestsTheNearestKeyForAMisspeltOne) {
  EXPECT_EQ(
      error_of(with("polices: [h2o]")),
      "s.yaml:1:1: unknown key 'polices', did you mean 'policies'? (expected one of: title, like, benchmarks, "
      "model, trace, samples, "
      "data, texts, policies, protocol, sampling, needles, chat, importance, calibration, learn, axes, metrics, seed, "
      "batch, device, "
      "prefill_chunk, tables, "
      "plots, paper, "
      "verdict)");
}

TEST(Spec, RefusesWrongTypesWithTheValueAndWhatWasExpected) {
  EXPECT_EQ(error_of(with("samples: many")), "s.yaml:1:10: samples = many: expected an integer from 1 to 1000000");
  EXPECT_EQ(error_of(with("samples: 0")), "s.yaml:1:10: samples = 0: expected an integer from 1 to 1000000");
  EXPECT_EQ(error_of(with("batch: [1]")), "s.yaml:1:8: batch = a list: expected auto or an integer of at least 1");
  EXPECT_EQ(error_of(with("seed: -1")), "s.yaml:1:7: seed = -1: expected an integer from 0 to 9223372036854775807");
  EXPECT_TRUE(
      error_of(with("protocol: both"))
          .starts_with("s.yaml:1:11: protocol = both: expected answer or decode or latency or one-shot or profile"));
  EXPECT_EQ(error_of(with("axes: [1]")), "s.yaml:1:7: axes: expected a map of name: [values]");
  EXPECT_EQ(error_of(with("axes: {budget: []}")), "s.yaml:1:8: axes: budget: expected at least one value");
  EXPECT_EQ(error_of(with("axes: {budget: [[1]]}")), "s.yaml:1:17: axes: budget: expected a single value a point");
}

TEST(Spec, RefusesDoubledKeysNamesAndPoints) {
  EXPECT_EQ(error_of(with("seed: 1\nseed: 2")), "s.yaml:2:1: the key 'seed' appears twice");
  EXPECT_EQ(error_of("model: m\ndata: [book, book]\npolicies: [h2o]"),
            "s.yaml:2:14: data: 'book' appears twice, expected a name of its own for each");
  EXPECT_EQ(error_of(with("axes: {budget: [64, 64]}")), "s.yaml:1:21: axes: budget: the same point appears twice");
  EXPECT_EQ(error_of(with("axes: {policy: [64]}")),
            "s.yaml:1:16: axes: 'policy' is a column of every result, expected another name");
}

TEST(Spec, RefusesUnevenPointsOfAZippedAxis) {
  EXPECT_EQ(error_of(with("axes: {setting: [{budget: 8, interval: 2}, {budget: 4}]}")),
            "s.yaml:1:44: axes: setting: has the keys budget, expected budget, interval as in its first point");
}

TEST(Spec, NamesWhatIsMissing) {
  EXPECT_EQ(error_of("policies: [full]"), "s.yaml:1:1: expected one of the keys 'model', 'trace' and 'benchmarks'");
  EXPECT_EQ(error_of("model: m\npolicies: [full]"), "s.yaml:1:1: lacks the key 'data': what the model reads");
  EXPECT_EQ(error_of("trace: t"), "s.yaml:1:1: lacks the key 'policies'");
  EXPECT_EQ(error_of("trace: t\npolicies: [full]\ndata: [book]"),
            "s.yaml:3:7: data = a list: a trace brings its own data, expected no such key");
  EXPECT_EQ(error_of("model: m\ndata: [{tokens: 8}]\npolicies: [full]"),
            "s.yaml:2:8: data: expected exactly one of the keys task, text, ids, jsonl");
  EXPECT_EQ(error_of("model: m\ndata: [{text: a, smples: 8}]\npolicies: [full]"),
            "s.yaml:2:18: data: unknown key 'smples', did you mean 'samples'? (expected one of: task, text, ids, "
            "jsonl, name, tokens, samples, subset, metric)");
  EXPECT_EQ(error_of("model: m\ndata: [book]\npolicies: [{label: x}]"), "s.yaml:3:12: policy: lacks the key 'policy'");
}

TEST(Spec, AFileOfTimingsStandsAlone) {
  const Spec spec =
      parse_spec("benchmarks: b.json\ntables: [{name: t, metric: median_time, rows: [kernel, shape, by]}]", "s.yaml");
  EXPECT_EQ(spec.benchmarks.text, "b.json");
  EXPECT_EQ(spec.axis_columns(), (std::vector<std::string>{"kernel", "shape", "by"}));
  EXPECT_EQ(error_of("benchmarks: [a, b]"), "s.yaml:1:13: benchmarks = a list: expected one file");
  EXPECT_EQ(error_of("benchmarks: b.json\npolicies: [full]"),
            "s.yaml:2:11: policies = a list: 'benchmarks' brings its rows, expected no such key");
}

TEST(Spec, GivesThePlaceOfASyntaxError) {
  EXPECT_EQ(error_of("model: [a\n").substr(0, 9), "s.yaml:2:");
  EXPECT_EQ(error_of("just text"), "s.yaml:1:1: expected a map of keys and values");
  EXPECT_EQ(error_of(""), "s.yaml:1:1: expected a map of keys and values");
}

TEST(Spec, RefusesASecondDocument) {
  EXPECT_EQ(error_of(with("seed: 1") + "---\nseed: 2\n"), "s.yaml:6:1: a second document begins here, expected one");
  EXPECT_EQ(error_of("---\n" + with("seed: 1") + "...\n"), "no error");
}

TEST(Spec, RefusesDeepNestingAndAliasBombs) {
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_NE(error_of("title: " + deep).find("nested deeper than 32 levels"), std::string::npos);
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char name = 'b'; name < 'i'; ++name) {
    bomb += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i ? "," : "") + "*" + static_cast<char>(name - 1);
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more than 100000 values"), std::string::npos);
  std::string inline_bomb = "title=[&a [x,x,x,x,x,x,x,x,x,x]";
  for (char name = 'b'; name < 'i'; ++name) {
    inline_bomb += std::string(", &") + name + " [";
    for (int i = 0; i < 10; ++i) inline_bomb += std::string(i ? "," : "") + "*" + static_cast<char>(name - 1);
    inline_bomb += "]";
  }
  EXPECT_NE(error_of(kGood, {inline_bomb + "]"}).find("more than 100000 values"), std::string::npos);
  std::string wide = "title: {";
  for (int i = 0; i < 99000; ++i) wide += "k" + std::to_string(i) + ": 1, ";
  EXPECT_EQ(error_of(with(wide + "z: 1}")), "s.yaml:1:8: title = a map: expected a text");
}

TEST(SpecOverride, GoesBeforeTheFileAndTheFileBeforeTheDefaults) {
  const std::vector<std::string> overrides = {"seed=9",
                                              "batch=2",
                                              "axes.budget=[128]",
                                              "data.0.samples=5",
                                              "data.prose.tokens=77",
                                              "policies.h2o per step.recent=16"};
  const Spec spec = parse_spec(kGood, "s.yaml", overrides);
  EXPECT_EQ(spec.seed, 9u);          // file said 7
  EXPECT_EQ(spec.batch, 2);          // default auto
  EXPECT_EQ(spec.prefill_chunk, 0);  // default auto
  EXPECT_EQ(spec.chunk(), 1024);
  ASSERT_EQ(spec.axes[0].points.size(), 1u);
  EXPECT_EQ(spec.axes[0].points[0][0].text, "128");
  EXPECT_EQ(spec.data[0].samples, 5);
  EXPECT_EQ(spec.data[1].tokens, 77);
  EXPECT_EQ(spec.policies[1].options[1].text, "16");
}

TEST(SpecOverride, ReplacesAnEntryAndGivesOptionsToABareName) {
  const std::vector<std::string> overrides = {"policies.0=streaming", "metrics.loss.detail=head"};
  const Spec spec = parse_spec(kGood, "s.yaml", overrides);
  EXPECT_EQ(spec.policies[0].name, "streaming");
  EXPECT_EQ(spec.metrics[0].name, "loss");
  ASSERT_EQ(spec.metrics[0].options.size(), 1u);
  EXPECT_EQ(spec.metrics[0].options[0].where, "--set metrics.loss.detail=head");
}

// A key with a dot of its own is found before a path that leads inside.
TEST(SpecOverride, ReplacesAnAxisWhoseNameHasADot) {
  const std::string yaml =
      "model: m\npolicies: [{policy: full, admission: local}]\ndata: [{task: kv, tokens: 64}]\n"
      "axes: {local.window: [8, 16]}\n";
  const Spec spec = parse_spec(yaml, "s.yaml", std::vector<std::string>{"axes.local.window=[4]"});
  ASSERT_EQ(spec.axes.size(), 1u);
  EXPECT_EQ(spec.axes[0].columns[0], "local.window");
  EXPECT_EQ(spec.axes[0].points.at(0)[0].text, "4");
  // And an axis that is not there yet is named with its dot.
  const Spec more = parse_spec(yaml, "s.yaml", std::vector<std::string>{"axes.local.sinks=[2]"});
  ASSERT_EQ(more.axes.size(), 2u);
  EXPECT_EQ(more.axes[1].columns[0], "local.sinks");
}

TEST(SpecOverride, IsNamedInItsErrors) {
  EXPECT_EQ(error_of(kGood, {"samples=x"}), "--set samples=x: samples = x: expected an integer from 1 to 1000000");
  EXPECT_EQ(error_of(kGood, {"samples"}), "--set samples: expected key=value");
  EXPECT_EQ(error_of(kGood, {"data.9.tokens=1"}), "--set data.9.tokens=1: no entry '9' in that list of 3");
  EXPECT_EQ(error_of(kGood, {"seed.x=1"}), "--set seed.x=1: 'seed' is a single value, it has no 'x'");
  EXPECT_EQ(error_of(kGood, {"smples=1"}).substr(0, 63),
            "--set smples=1: unknown key 'smples', did you mean 'samples'? (");
}

TEST(SpecOverride, IsPartOfTheResolvedSpec) {
  const std::vector<std::string> overrides = {"seed=9", "policies.full.label=all of it"};
  const Spec spec = parse_spec(kGood, "s.yaml", overrides);
  const Spec again = parse_spec(spec.resolved, "s.yaml");
  EXPECT_EQ(again.seed, 9u);
  EXPECT_EQ(again.question, spec.question);
  EXPECT_EQ(again.policies[0].label, "all of it");
  EXPECT_EQ(again.axis_columns(), spec.axis_columns());
  const std::string none = std::string(kGood) + "tables: []\n";
  EXPECT_EQ(parse_spec(none, "s.yaml").resolved, none);
}

// Keys that a map accepts are those that its error names, and those that are printed.
TEST(Spec, EveryKeyThatIsReadIsPrinted) {
  const auto accepted = [](const std::string& error) {
    const size_t begin = error.find("(expected one of: ");
    return begin == error.npos ? error : error.substr(begin);
  };
  const auto printed = [](const std::vector<DeclaredParam>& keys) {
    std::string names;
    for (const DeclaredParam& key : keys) {
      names += (names.empty() ? "" : ", ") + key.key;
      EXPECT_FALSE(key.help.empty() || key.type.empty() || key.fallback.empty()) << key.key;
    }
    return "(expected one of: " + names + ")";
  };
  EXPECT_EQ(accepted(error_of(with("zzz: 1"))), printed(spec_keys()));
  EXPECT_EQ(accepted(error_of("model: {random: a, zzz: 1}\ndata: [book]\npolicies: [full]")), printed(model_keys()));
  EXPECT_EQ(accepted(error_of("model: m\ndata: [{text: a, zzz: 1}]\npolicies: [full]")), printed(data_keys()[0].keys));
  // Every other key of a policy is an option of its own.
  const std::vector<KeySection> sections = component_keys("policy");
  std::string policy = "policy: h2o";
  for (const DeclaredParam& key : sections[0].keys) {
    if (key.key != "policy") policy += fmt::format(", {}: {}", key.key, key.key == "only" ? "{}" : "uniform");
  }
  EXPECT_TRUE(parse_component("{" + policy + "}", "policy").options.empty()) << policy;
  EXPECT_EQ(parse_component("{policy: h2o, zzz: 1}", "policy").options.size(), 1u);
}

TEST(Component, ComesFromInlineYamlOrABareName) {
  EXPECT_EQ(parse_component("h2o", "policy").name, "h2o");
  const Component component = parse_component("{policy: snapkv, mode: kvpress}", "policy");
  EXPECT_EQ(component.name, "snapkv");
  ASSERT_EQ(component.options.size(), 1u);
  EXPECT_EQ(component.options[0].text, "kvpress");
  EXPECT_THROW(parse_component("[a, b]", "policy"), UserError);
  EXPECT_THROW(parse_component("{mode: kvpress}", "policy"), UserError);
  EXPECT_THROW(parse_component("{policy: [", "policy"), UserError);
}

}  // namespace
}  // namespace kv
