#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/io/safetensors.h"
#include "sim/io/stored_file.h"
#include "sim/model/model_files.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/paths.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

TEST_F(Cli, EveryVerbHasHelpWithAnExample) {
  for (const char* verb : {"new", "run", "validate", "list", "describe", "record", "inspect", "report", "compare",
                           "score", "tokenize", "compress", "generate", "write"}) {
    const Output output = run(fmt::format("{} --help", verb));
    EXPECT_EQ(output.code, 0) << verb;
    EXPECT_NE(output.text.find("Example"), std::string::npos) << verb;
  }
  EXPECT_EQ(run("--help").code, 0);
  EXPECT_EQ(run("--version").text.substr(0, 14), "kvlab, commit ");
}

TEST_F(Cli, MistakesGiveOneLineAndCodeTwo) {
  write_atomically(folder_ / "bad.yaml", "model: m\npolices: [full]\n");
  for (const std::string& arguments :
       {std::string("rnu"),
        std::string("run"),
        std::string("run --nonsense x"),
        "run " + path("none.yaml"),
        "run " + path("bad.yaml"),
        "validate " + path("bad.yaml"),
        std::string("describe snapvk"),
        std::string("list nothing"),
        "inspect " + path("none"),
        "score --model " + model() + " --out x",
        "score --model " + path("none") + " --ids " + path("ids.safetensors") + " --out x",
        "tokenize --model " + model() + " --text " + path("tiny.yaml"),
        "generate --model " + model(),
        "generate --model " + path("none") + " --prompt a",
        "generate --model " + reference() + " --prompt a --text " + path("tiny.yaml"),
        "generate --model " + reference() + " --prompt a --policy h2o",
        "generate --model " + reference() + " --prompt a --policy h2o --budget 8 --interval 9",
        "generate --model " + reference() + " --prompt a --budget 8 --interval 4",
        "generate --model " + reference() + " --prompt a --max-new-tokens 2147483647",
        "generate --model " + reference() + " --prompt a --temperature -1",
        "generate --model " + reference() + " --prompt a --policy keydiff --keep 1.5",
        "compress --model " + model() + " --ids " + path("ids.safetensors") + " --policy keydiff --keep 1.5 --out x"}) {
    expect_refused(arguments);
  }
}

// What only the files that a spec names can show to be wrong, or its values.
TEST_F(Cli, SpecsThatCannotRunGiveOneLineAndCodeTwo) {
  const std::string good = read_stored(reference() + "/profiles/keydiff_recent=1_sinks=4.json");
  const std::string print = fingerprint(reference());
  std::string other = good;
  other.replace(other.find(print), print.size(), std::string(64, 'a'));
  write_atomically(folder_ / "good.json", good);
  write_atomically(folder_ / "other_model.json", other);
  write_atomically(folder_ / "unusable.jsonl", "{\"context\": \"c\"}\nno JSON\n");
  struct Mistake {
    const char* name;
    const char* text;    // of a spec, but for its model
    const char* reason;  // part of the line
  };
  const Mistake mistakes[] = {
      {"keep", "data: [{task: kv, tokens: 64}]\npolicies: [keydiff]\nprotocol: one-shot\naxes: {keep: 1.5}\n",
       "axes: keep = 1.5: expected a fraction above 0 and at most 1"},
      {"least",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: keydiff, allocation: {lu-kv: {least: 1.5}}}]\n",
       "lu-kv: least = 1.5: expected a number between 0 and 1"},
      {"missing",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: tova, allocation: lu-kv}]\n",
       "lu-kv: there is no profile of tova"},
      {"no_file",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: keydiff, allocation: {lu-kv: {profile: none.json}}}]\n",
       "'none.json': no such file or folder"},
      {"other_model",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: keydiff, recent: 1, sinks: 4, allocation: {lu-kv: {profile: other_model.json}}}]\n",
       "other_model.json is for model reference with files of SHA-256 aaaaaaaaaaaa"},
      {"other_metric",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: snapkv, allocation: {lu-kv: {profile: good.json}}}]\n",
       "good.json is the profile of keydiff {recent: 1, sinks: 4}, expected snapkv"},
      {"unusable", "data: [{jsonl: unusable.jsonl}]\npolicies: [full, keydiff]\nprotocol: answer\naxes: {keep: 0.5}\n",
       "unusable.jsonl:1: "},
      {"spread",
       "data: [{task: kv, tokens: 64}]\nprotocol: one-shot\naxes: {keep: 0.5}\n"
       "policies: [{policy: keydiff, allocation: {lu-kv: {profile: good.json, spread: yes}}}]\n",
       "lu-kv: with 'spread: yes' only time and memory mean anything"},
  };
  for (const Mistake& mistake : mistakes) {
    write_atomically(folder_ / (std::string(mistake.name) + ".yaml"), "model: " + reference() + "\n" + mistake.text);
    for (const char* verb : {"validate", "run"}) {
      const std::string out = std::string(verb) == "run" ? " --out " + path("out") : "";
      expect_refused(fmt::format("{} {}{}", verb, path(mistake.name) + ".yaml", out), mistake.reason);
    }
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
}

// Verbs without a protocol say the same of an option that one of them alone has a use for.
TEST_F(Cli, AnOptionForTimingsIsRefusedByVerbsThatTimeNothing) {
  const std::string policy =
      fmt::format(" --policy '{{policy: keydiff, allocation: {{lu-kv: {{profile: {}, spread: yes}}}}}}'",
                  path("tiny.yaml"));  // which is not even looked at
  for (const std::string& arguments :
       {"generate --model " + reference() + " --prompt a --keep 0.5" + policy,
        "score --model " + model() + " --budget 32 --interval 8 --out x --ids " + path("ids.safetensors") + policy,
        "compress --model " + model() + " --keep 0.5 --out x --ids " + path("ids.safetensors") + policy}) {
    EXPECT_EQ(expect_refused(arguments),
              "kvlab: lu-kv: with 'spread: yes' only time and memory mean anything, and only a spec with 'protocol: "
              "latency' measures those\n");
  }
}

TEST_F(Cli, AnOutThatIsNoFileIsRefusedAndStays) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string ids = " --ids " + path("ids.safetensors") + " --out " + path("pipe");
  for (const std::string& arguments : {"score --model " + model() + ids, "record --model " + model() + ids,
                                       "compress --policy tova --keep 0.5 --model " + model() + ids}) {
    const Output output = run(arguments);
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(output.text, "kvlab: " + path("pipe") +
                               ": cannot create: it is a device, pipe or socket, expected a file or a new name\n");
    EXPECT_TRUE(fs::is_fifo(path("pipe")));
  }
}

TEST_F(Cli, ALimitOfFileSizesIsAWriteErrorThatLeavesNothing) {
  const std::string inputs = " --model " + model() + " --ids " + path("ids.safetensors") + " --out " + path("x");
  for (const std::string& arguments : {"run --quiet " + path("tiny.yaml") + " --out " + path("x"), "record" + inputs}) {
    const Output output = run(arguments, "ulimit -f 64;");
    EXPECT_EQ(output.code, 2) << arguments;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
    EXPECT_NE(output.text.find("File too large"), std::string::npos) << output.text;
    EXPECT_FALSE(fs::exists(path("x")));
  }
}

TEST_F(Cli, EveryVerbThatReadsAModelNamesItsBrokenFile) {
  fs::copy(reference(), folder_ / "missing");
  for (const std::string end : {"", ".xz"}) fs::remove(folder_ / ("missing/model-00002-of-00003.safetensors" + end));
  fs::copy(model(), folder_ / "cut");
  const std::string weights = read_stored(folder_ / "cut/model.safetensors");
  write_atomically(folder_ / "cut/model.safetensors", weights.substr(0, 10'000));
  for (const auto& [folder, file] : {std::pair("missing", "model-00002-of-00003.safetensors: the shard is missing"),
                                     std::pair("cut", "model.safetensors: ")}) {
    const std::string runs = path("tiny.yaml") + " --set model=" + path(folder);
    for (const std::string& arguments :
         {"inspect " + path(folder), "validate " + runs, "run --out " + path("a ") + runs,
          "score --out x --model " + path(folder) + " --ids " + path("ids.safetensors")}) {
      const Output output = run(arguments);
      EXPECT_EQ(output.code, 2) << arguments;
      EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
      EXPECT_TRUE(output.text.starts_with("kvlab: " + path(folder) + "/" + file)) << output.text;
      EXPECT_FALSE(fs::exists(folder_ / "a"));
    }
  }
}

TEST_F(Cli, OutputThatNobodyGetsIsNoSuccess) {
  for (const char* arguments : {"validate tiny.yaml", "describe h2o", "--version", "--help", "list policies"}) {
    // The fixture's own redirection of stderr is behind the '#'.
    const Output output = run(fmt::format("{} > /dev/full 2> said; code=$?; cat said; exit $code #", arguments),
                              ("cd " + folder_.string() + ";").c_str());
    EXPECT_EQ(output.code, 1) << arguments;
    EXPECT_EQ(std::count(output.text.begin(), output.text.end(), '\n'), 1) << output.text;
  }
}

// Its number would be given to the next file, and messages be written there.
TEST_F(Cli, StreamsThatAreClosedChangeNothing) {
  const std::string start = "run --no-draw " + path("tiny.yaml") + " --out ";
  ASSERT_EQ(run(start + path("open")).code, 0);
  EXPECT_EQ(run(start + path("closed") + " --quiet <&- >&- 2>&- #").code, 0);
  EXPECT_EQ(rows_of("closed"), rows_of("open"));
  EXPECT_EQ(run(start + path("full") + " --quiet 2> /dev/full #").code, 0);
  EXPECT_EQ(rows_of("full"), rows_of("open"));
  EXPECT_EQ(run("run " + path("none.yaml") + " 2> /dev/full #").code, 2);
}

TEST_F(Cli, MessagesAreOneLineWhateverTheyQuote) {
  write_atomically(folder_ / "newline.yaml", yaml() + "device: \"c\\npu\\e[31m\"\n");
  EXPECT_NE(expect_refused("validate " + path("newline.yaml")).find("'c?pu?[31m'"), std::string::npos);
  expect_refused("run \"$(printf 'a\\nb')\"", "a?b");
}

TEST_F(Cli, AnAbsurdNumberOfThreadsIsRefused) {
  const Output output = run("list policies", "OMP_NUM_THREADS=2000;");
  EXPECT_EQ(output.code, 2);
  EXPECT_EQ(output.text, "kvlab: OMP_NUM_THREADS asks for 2000 threads, expected at most 1024\n");
}

// All that is in the file is finite; the model's numbers are not.
TEST_F(Cli, AModelWhoseNumbersOverflowHasNoScores) {
  fs::create_directories(folder_ / "huge");
  fs::copy(model() + "/config.json", folder_ / "huge/config.json");
  std::string weights = read_stored(model() + "/model.safetensors");
  const auto file = SafetensorsFile::from_bytes(std::as_bytes(std::span(weights)), "weights");
  const TensorInfo& norm = file.require("model.layers.0.input_layernorm.weight");
  ASSERT_EQ(norm.dtype, Dtype::kBF16);
  const std::vector<uint16_t> largest(static_cast<size_t>(norm.elements()), 0x7f7f);  // 3.39e38
  const auto place = reinterpret_cast<const char*>(file.bytes(norm).data()) - weights.data();
  std::memcpy(weights.data() + place, largest.data(), largest.size() * sizeof(uint16_t));
  write_atomically(folder_ / "huge/model.safetensors", weights);
  const std::string inputs = " --model " + path("huge") + " --ids " + path("ids.safetensors") + " --out " + path("x");
  for (const char* verb : {"score", "record"}) {
    expect_refused(verb + inputs, "overflow");
    EXPECT_FALSE(fs::exists(folder_ / "x"));
  }
}

TEST_F(Cli, SuggestsTheNearestVerbAndName) {
  EXPECT_EQ(run("rnu").text.substr(0, 50), "kvlab: unknown verb 'rnu', did you mean 'run'? (ex");
  EXPECT_NE(run("describe snapvk").text.find("did you mean 'snapkv'?"), std::string::npos);
  for (const auto& [word, kinds] :
       {std::pair("admission", "admissions"), std::pair("policies", "policies"), std::pair("selection", "selections"),
        std::pair("allocations", "allocations"), std::pair("experiment", "experiments")}) {
    expect_refused(
        std::string("describe ") + word,
        fmt::format("describe: '{}' is a kind, expected the name of one; kvlab list {} prints them", word, kinds));
    EXPECT_EQ(run(std::string("list ") + kinds).code, 0);
  }
}

TEST_F(Cli, NamesTheMisspeltOptionWordOrSpecAndWhatIsNear) {
  expect_refused("run --quite " + path("tiny.yaml"),
                 "kvlab run: unknown option '--quite', did you mean '--quiet'?; see kvlab run --help");
  expect_refused("train " + path("tiny.yaml") + " --weight here",
                 "kvlab train: unknown option '--weight', did you mean '--weights'?; see kvlab train --help");
  expect_refused("--verion", "kvlab: unknown option '--verion', did you mean '--version'?; see kvlab --help");
  expect_refused("describe h2o more", "kvlab describe: unexpected argument 'more'; see kvlab describe --help");
  expect_refused("run", "kvlab run: SPEC is required; see kvlab run --help");
  expect_refused("", "kvlab: expected a verb: new, run, validate, ");
  expect_refused("list polices", "'polices', did you mean 'policies'? (expected one of: protocols, ");
  expect_refused("run qucikstart", "qucikstart: no such file, did you mean '");
  expect_refused("validate " + path("tiny.yaml") + " --set policies.h3o.recent=1",
                 "--set policies.h3o.recent=1: no entry 'h3o' in that list of 4, did you mean 'h2o'?");
  expect_refused("report " + folder_.string(), "no result folder, it has no spec.yaml; kvlab run writes one");
  expect_refused("generate --model " + reference() + " --prompt a --policy h2oo --budget 4 --interval 4",
                 "--policy: unknown policy 'h2oo', did you mean 'h2o'?");
  expect_refused("generate --model " + reference() +
                     " --prompt a --policy '{policy: h2o, admision: local}' --budget 4 --interval 4",
                 "--policy:1:25: h2o: admision = local: unknown option, did you mean 'admission'?");
  expect_refused("score --model " + reference() + " --out " + path("x") + " --text " + path("tiny.yaml") +
                     " --policy '{policy: h2o, admission: local}' --budget 8 --interval 4",
                 "--policy:1:1: admission 'local': expected none here yet; kvlab run takes it (docs/admissions.md)");
  expect_refused("generate --model " + reference(), "expected one of --prompt TEXT, --text FILE and --ids FILE");
}

TEST_F(Cli, HelpIsAVerbToo) {
  EXPECT_EQ(run("help").text, run("--help").text);
  EXPECT_EQ(run("help run").text, run("run --help").text);
  EXPECT_EQ(run("help").code, 0);
}

TEST_F(Cli, AShippedModelIsFoundFromAnyFolder) {
  const Output output =
      run(fmt::format("tokenize --model experiments/models/reference --text {}", path("tiny.yaml")), "cd /;");
  EXPECT_EQ(output.code, 0) << output.text;
  const Output spec = run("validate " + path("tiny.yaml") + " --set model=experiments/models/reference", "cd /;");
  EXPECT_EQ(spec.code, 0) << spec.text;
}

TEST_F(Cli, GenerateWritesTextAndIds) {
  const std::string common =
      "generate --model " + reference() + " --prompt 'It was the best of times' --max-new-tokens 12";
  const Output greedy = run(common);
  EXPECT_EQ(greedy.code, 0) << greedy.text;
  EXPECT_NE(greedy.text.find("kvlab: 12 tokens after "), std::string::npos) << greedy.text;
  // Slots that let all in and read all change nothing.
  const Output open = run(common + " --policy '{policy: full, admission: {local: {sinks: 4096}}, selection: quest}'");
  EXPECT_EQ(open.code, 0) << open.text;
  EXPECT_EQ(open.text.substr(open.text.find('\n')), greedy.text.substr(greedy.text.find('\n')));
  EXPECT_EQ(run(common +
                " --temperature 0.8 --top-k 40 --top-p 0.9 --seed 3 --policy '{policy: streaming}' --keep 0.8 "
                "--out " +
                path("made.safetensors"))
                .code,
            0);
  const auto file = SafetensorsFile::open(folder_ / "made.safetensors");
  EXPECT_EQ(file.read_i32(file.require("output_ids")).size(), 12u);
}

TEST_F(Cli, ListWithoutAKindListsEveryKind) {
  const Output output = run("list");
  EXPECT_EQ(output.code, 0) << output.text;
  for (const char* expected :
       {"protocols:\n", "policies:\n", "allocations:\n", "admissions:\n", "selections:\n", "metrics:\n", "tasks:\n",
        "models:\n", "experiments:\n", "snapkv ", "quest ", "recall ", "quickstart "}) {
    EXPECT_NE(output.text.find(expected), std::string::npos) << expected;
  }
}

TEST_F(Cli, NamesAndDescribesSelections) {
  const std::string list = run("list selections").text;
  EXPECT_TRUE(list.starts_with("all ")) << list;
  EXPECT_NE(list.find("\nquest "), std::string::npos) << list;
  const Output output = run("describe quest");
  EXPECT_EQ(output.code, 0) << output.text;
  for (const char* expected : {"selection", "pages", "64", "mode", "wg-kv", "official"}) {
    EXPECT_NE(output.text.find(expected), std::string::npos) << expected << "\n" << output.text;
  }
}

TEST_F(Cli, NamesAndDescribesModelShapes) {
  EXPECT_NE(run("list models").text.find("qwen3-4b "), std::string::npos);
  const std::string text = run("describe llama-3.1-8b").text;
  EXPECT_NE(text.find("8.03 billion"), std::string::npos) << text;
  EXPECT_NE(text.find("32 query, 8 KV, dimension 128"), std::string::npos) << text;
  EXPECT_NE(text.find("131072 bytes a token in bf16"), std::string::npos) << text;
}

TEST_F(Cli, RunsReportsInspectsAndCompares) {
  const Output first = run(fmt::format("run {} --out {} --quiet", path("tiny.yaml"), path("a")));
  EXPECT_EQ(first.code, 0) << first.text;
  EXPECT_EQ(first.text, "");
  const std::string rows = rows_of("a");
  fs::remove(folder_ / "a" / "index.html");
  EXPECT_EQ(run("report " + path("a")).code, 0);
  EXPECT_TRUE(fs::exists(folder_ / "a" / "index.html"));
  EXPECT_EQ(run("inspect " + path("a")).code, 0);
  EXPECT_EQ(run(fmt::format("run {} --out {} --set seed=6 --quiet", path("tiny.yaml"), path("b"))).code, 0);
  EXPECT_NE(rows_of("b"), rows);
  const Output compared = run(fmt::format("compare {} {}", path("a"), path("b")));
  EXPECT_EQ(compared.code, 0) << compared.text;
}

TEST_F(Cli, PackedResultsServeEveryVerbThatReadsRows) {
  const std::string run_tiny = fmt::format("run {} --quiet --out {}", path("tiny.yaml"), path("a"));
  ASSERT_EQ(run(run_tiny).code, 0);
  const std::string rows = rows_of("a"), inspected = run("inspect " + path("a")).text;
  const Output plain = run("report " + path("a")), packed = run(fmt::format("report {} --pack", path("a")));
  EXPECT_EQ(packed.code, 0) << packed.text;
  EXPECT_EQ(packed.text, plain.text);
  EXPECT_FALSE(fs::exists(folder_ / "a" / "rows.csv"));
  EXPECT_EQ(rows_of("a"), rows);
  EXPECT_EQ(run("inspect " + path("a")).text, inspected);
  EXPECT_EQ(run(fmt::format("compare {0} {0}", path("a"))).code, 0);
  const std::string page = read_file(folder_ / "a" / "index.html");
  EXPECT_NE(page.find("<a href=\"columns.csv.xz\">columns.csv.xz</a>"), page.npos);
  EXPECT_EQ(run("report " + path("a")).text, plain.text);
  EXPECT_EQ(read_file(folder_ / "a" / "index.html"), page);

  EXPECT_EQ(run(fmt::format("report {} --unpack", path("a"))).text, plain.text);
  EXPECT_TRUE(fs::exists(folder_ / "a" / "rows.csv"));
  EXPECT_EQ(rows_of("a"), rows);
  ASSERT_EQ(run(fmt::format("report {} --pack", path("a"))).code, 0);

  ASSERT_EQ(run(run_tiny + " --set seed=6").code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "a" / "columns.csv.xz"));
  EXPECT_NE(rows_of("a"), rows);
}

TEST_F(Cli, BrokenPackedRowsAreOneLine) {
  fs::create_directories(folder_ / "a");
  write_atomically(folder_ / "a" / "columns.csv.xz", "rows, but not packed");
  const Output output = run("inspect " + path("a"));
  EXPECT_EQ(output.code, 2);
  EXPECT_EQ(output.text, fmt::format("kvlab: {}/a/columns.csv.xz: broken xz: no xz file\n", folder_.string()));
}

TEST_F(Cli, ARunWithoutDrawingIsDrawnLater) {
  const Output output = run(fmt::format("run {} --no-draw --out {}", plotted(), path("a")));
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_TRUE(output.text.ends_with(
      fmt::format("24 cases (0 from an earlier start), 0 skipped, 0 failed; {}/a/rows.csv\n", folder_.string())))
      << output.text;
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ / "a")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json", "rows.csv", "spec.yaml", "units"}));

  ASSERT_EQ(run("report " + path("a")).code, 0);
  ASSERT_EQ(run(fmt::format("run {} --quiet --out {}", plotted(), path("b"))).code, 0);
  for (const char* file : {"losses.svg", "losses.pdf"})
    EXPECT_EQ(read_file(folder_ / "a" / file), read_file(folder_ / "b" / file)) << file;
}

// Timings made up for the test.
TEST_F(Cli, TabulatesAndDrawsBenchmarks) {
  const std::string entry = R"({"by": "cuda", "kernel": "k", "shape": "8K", "median_s": 2e-3, "low_s": 1e-3,
                                "high_s": 3e-3, "samples": 10, "bytes": 4e9, "flops": 4e11})";
  const std::string file = R"({"manifest": {"gpu": "made up"},
                               "peaks": {"copy_bytes_per_s": 4e12, "gemm_flops_per_s": 8e14}, "benchmarks": [)";
  write_atomically(folder_ / "b.json", file + entry + "]}");
  write_atomically(folder_ / "kernels.yaml",
                   "# Fast?\nbenchmarks: b.json\n"
                   "tables: [{name: t, metric: [median_time, bound_share], rows: [kernel, shape], interval: no}]\n"
                   "plots: [{name: roof, kind: roofline, metric: [intensity, compute], ceilings: [copy_peak, "
                   "gemm_peak], series: [kernel], label: [shape]}]\n");
  const std::string command = fmt::format("run {} --out {}", path("kernels.yaml"), path("k"));
  const Output output = run(command);
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("| k | 8K | 2000.000 | 50.000 |"), std::string::npos) << output.text;
  for (const char* name : {"rows.csv", "spec.yaml", "manifest.json", "index.html", "roof.svg"}) {
    EXPECT_TRUE(fs::exists(folder_ / "k" / name)) << name;
  }
  EXPECT_NE(read_file(folder_ / "k" / "manifest.json").find("made up"), std::string::npos);
  const std::string svg = read_file(folder_ / "k" / "roof.svg");
  fs::remove(folder_ / "b.json");
  EXPECT_EQ(run("report " + path("k")).code, 0);
  EXPECT_EQ(read_file(folder_ / "k" / "roof.svg"), svg);

  const Output missing = run(command);
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(missing.text.starts_with("kvlab: ")) << missing.text;
  EXPECT_EQ(std::count(missing.text.begin(), missing.text.end(), '\n'), 1) << missing.text;
  write_atomically(folder_ / "b.json", file + entry);  // cut off
  const Output torn = run(command);
  EXPECT_EQ(torn.code, 2);
  EXPECT_TRUE(torn.text.starts_with("kvlab: " + path("b.json"))) << torn.text;
  EXPECT_EQ(std::count(torn.text.begin(), torn.text.end(), '\n'), 1) << torn.text;
}

TEST_F(Cli, ARunThatIsKilledEndsWithTheSameRows) {
  const std::string arguments = fmt::format("run {} --set samples=3 --quiet --out ", path("tiny.yaml"));
  ASSERT_EQ(run(arguments + path("whole")).code, 0);
  for (const char* seconds : {"0.05", "0.15", "0.3"}) {
    run(fmt::format("list tasks >/dev/null; timeout -s KILL {} '{}' {}{}", seconds, ref::binary_path(), arguments,
                    path("killed")));
    const Output output = run(arguments + path("killed"));
    EXPECT_EQ(output.code, 0) << output.text;
    EXPECT_EQ(rows_of("killed"), rows_of("whole"));
    fs::remove_all(folder_ / "killed");
  }
}

TEST_F(Cli, ScoresLikeTheFullPassAndUnderAPolicy) {
  const std::string base = fmt::format("score --model {} --ids {} --out ", model(), path("ids.safetensors"));
  ASSERT_EQ(run(base + path("full.safetensors") + " --logits-tail 2").code, 0);
  const SafetensorsFile full = SafetensorsFile::open(folder_ / "full.safetensors");
  EXPECT_EQ(full.require("input_ids").shape, (std::vector<int64_t>{kTokens}));
  EXPECT_EQ(full.require("nll").shape, (std::vector<int64_t>{kTokens - 1}));
  EXPECT_EQ(full.require("entropy").shape, (std::vector<int64_t>{kTokens}));
  EXPECT_EQ(full.require("logits_tail").shape, (std::vector<int64_t>{2, 1024}));

  ASSERT_EQ(run(base + path("h2o.safetensors") + " --policy '{policy: h2o}' --budget 32 --interval 8").code, 0);
  const SafetensorsFile h2o = SafetensorsFile::open(folder_ / "h2o.safetensors");
  const std::vector<float> a = full.read_f32(full.require("nll")), b = h2o.read_f32(h2o.require("nll"));
  // Tokens up to the first event, after 40 of them, see the full cache.
  for (size_t t = 0; t < 40; ++t) EXPECT_NEAR(a[t], b[t], 1e-4) << t;
  double difference = 0;
  for (size_t t = 40; t < a.size(); ++t) difference += std::abs(a[t] - b[t]);
  EXPECT_GT(difference, 0);
}

// Budget 32 every 8 tokens: 4 sinks and the 28 newest stay, from the event after 40 tokens on.
TEST_F(Cli, ScoreWritesThePositionsThatStay) {
  const std::string arguments = fmt::format("score --model {} --ids {} --out {} --keeps {}", model(),
                                            path("ids.safetensors"), path("s.safetensors"), path("kept.jsonl"));
  const Output output = run(arguments + " --policy streaming --budget 32 --interval 8");
  ASSERT_EQ(output.code, 0) << output.text;
  std::istringstream lines(read_file(folder_ / "kept.jsonl"));
  std::string line;
  int64_t count = 0;
  for (; std::getline(lines, line); ++count) {
    const auto kept = nlohmann::json::parse(line);
    const int64_t event = count / 6, tokens = 40 + 8 * event;
    std::vector<int64_t> expected = {0, 1, 2, 3};
    for (int64_t p = tokens - 28; p < tokens; ++p) expected.push_back(p);
    EXPECT_EQ(kept, (nlohmann::json{{"event", event},
                                    {"tokens", tokens},
                                    {"layer", count / 2 % 3},
                                    {"head", count % 2},
                                    {"positions", expected}}));
  }
  EXPECT_EQ(count, 3 * 2 * ((kTokens - 40) / 8 + 1));
  EXPECT_EQ(expect_refused(arguments), "kvlab: --keeps: without --policy everything stays, expected --policy, too\n");
  expect_refused(
      fmt::format("score --model {} --ids {} --out {} --keeps {} --policy streaming --budget 32 --interval 8", model(),
                  path("ids.safetensors"), path("same"), path("./same")),
      "is the file of --out, expected another one");
  EXPECT_FALSE(fs::exists(path("same")));
}

TEST_F(Cli, CompressKeepsTheAskedFraction) {
  const Output output = run(fmt::format("compress --model {} --ids {} --policy keydiff --keep 0.3 --out {}", model(),
                                        path("ids.safetensors"), path("keep.safetensors")));
  ASSERT_EQ(output.code, 0) << output.text;
  const SafetensorsFile file = SafetensorsFile::open(folder_ / "keep.safetensors");
  const TensorInfo& keep = file.require("keep");
  EXPECT_EQ(keep.shape, (std::vector<int64_t>{3, 2, kTokens}));
  int64_t kept = 0;
  for (const std::byte byte : file.bytes(keep)) kept += static_cast<int>(byte);
  EXPECT_EQ(kept, 3 * 2 * 45);
  EXPECT_EQ(file.require("score").shape, keep.shape);
}

// A folder of one's own in place of the shipped one: what tasks draw comes from there, and the manifest's hash says so.
TEST_F(Cli, TasksDrawFromTheFolderThatIsNamed) {
  const fs::path texts = folder_ / "texts";
  fs::create_directories(texts);
  std::string words;
  for (int i = 0; i < 4000; ++i) words += fmt::format("word{} ", i);
  for (const char* name : {"books", "code", "gsm8k"}) {
    write_atomically(texts / fmt::format("{}.jsonl", name),
                     fmt::format("{{\"text\":\"{}\",\"source\":\"{}\",\"license\":\"none\"}}\n", words, name));
  }
  write_atomically(folder_ / "s.yaml", fmt::format("# Whose text?\nmodel: {}\ndata: [{{task: book, tokens: 60}}]\n"
                                                   "policies: [full]\nmetrics: [loss]\ntables: []\n",
                                                   reference()));
  const auto loss_of = [&](const std::string& options, const std::string& out) {
    EXPECT_EQ(run(fmt::format("run {} --quiet --out {} {}", path("s.yaml"), (folder_ / out).string(), options)).code,
              0);
    for (const Row& row : read_rows(folder_ / out / "rows.csv").rows) {
      if (row.metric == "nll_sum") return *row.value;
    }
    return 0.0;
  };
  const std::string by_option = "--data " + texts.string(), by_set = "--set texts=" + texts.string();
  const double shipped = loss_of("", "shipped"), own = loss_of(by_option, "own");
  EXPECT_GT(own, 0);
  EXPECT_NE(own, shipped);
  EXPECT_EQ(loss_of(by_set, "set"), own);
  EXPECT_NE(read_file(folder_ / "own" / "manifest.json").find("\"texts=" + texts.string() + "\""), std::string::npos);
  expect_refused(fmt::format("run {} {} {}", path("s.yaml"), by_option, by_set), "expected one of them");
  for (const char* verb : {"run", "validate"}) {
    expect_refused(fmt::format("{} {} --set texts={}", verb, path("s.yaml"), path("absent")), "absent");
  }
  expect_refused(fmt::format("run {} --quiet --data {}", path("s.yaml"), path("absent")), "absent");
}

// Neither its profiles nor what they are for is looked at first.
TEST_F(Cli, AModelThatIsNotThereIsWhatIsMissing) {
  const std::string spec =
      "# Is it there?\ndata: [{task: kv, tokens: 256}]\npolicies: [full, keydiff]\nprotocol: answer\n"
      "axes: {keep: 0.5, allocation: lu-kv}\nmodel: ";
  write_atomically(folder_ / "gguf.yaml", spec + path("absent/x.gguf") + "\n");
  write_atomically(folder_ / "name.yaml", spec + "owner/none\n");
  expect_refused("validate " + path("gguf.yaml"), "absent/x.gguf': no such file");
  expect_refused("validate " + path("name.yaml"), "model 'owner/none': no such folder");
}

TEST_F(Cli, TokenizePrintsAJsonArray) {
  write_atomically(folder_ / "t.txt", "Work modulo 1000.\n");
  const Output output = run(
      fmt::format("tokenize --model {} --text {}", ref::source_path("experiments/models/reference"), path("t.txt")));
  EXPECT_EQ(output.code, 0);
  EXPECT_GT(nlohmann::json::parse(output.text).get<std::vector<int>>().size(), 4u);
}

}  // namespace
}  // namespace kv
