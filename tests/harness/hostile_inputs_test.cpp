// Everything that kvlab reads, changed by a seeded hand and given to the verbs that read it: each either works, with
// finite numbers, or is refused with one line and code 2.

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "harness/cli/verbs.h"
#include "harness/files.h"
#include "harness/rows.h"
#include "harness/rows_file.h"
#include "kernels/cpu/parallel.h"
#include "sim/budget/profile_file.h"
#include "sim/io/finite.h"
#include "sim/io/safetensors.h"
#include "sim/io/stored_file.h"
#include "sim/io/xz.h"
#include "sim/model/model_files.h"
#include "sim/source/trace.h"
#include "tests/support/file_fixtures.h"
#include "tests/support/gguf_model.h"
#include "tests/support/hostile.h"
#include "tests/support/paths.h"
#include "tests/support/text_model.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kSecondsAnInput = 60;  // a thousand times what one takes
constexpr int kSkippedCode = 1;           // of a run in which cases could not run

using Words = std::vector<std::string>;

// What the child that tries the inputs tells its parent, dead or alive.
struct Report {
  bool known_tried = false;
  int next = 0;  // number of the input being tried
  int accepted = 0;
  int refused = 0;
  char command[1000] = {};
  char problems[4000] = {};
};

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

// The sanitizers' build tries every so many-th input only (tests/CMakeLists.txt).
int stride() {
  const char* given = std::getenv("KV_HOSTILE_STRIDE");
  return given ? std::atoi(given) : 1;
}

// stdout and stderr of this process, from here on.
class Captured {
 public:
  Captured() : messages_(::memfd_create("messages", 0)) {
    ::dup2(messages_, STDERR_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
  }
  // What was said on stderr since the last call.
  std::string take() const {
    std::fflush(stdout);
    std::string text(static_cast<size_t>(::lseek(messages_, 0, SEEK_END)), '\0');
    ::lseek(messages_, 0, SEEK_SET);
    const ssize_t size = ::read(messages_, text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    ::lseek(messages_, 0, SEEK_SET);
    (void)!::ftruncate(messages_, 0);
    return text;
  }

 private:
  int messages_;
};

// Why this is no way to end; empty where it is one.
std::string problem_of(int code, const std::string& said, const fs::path& out) {
  const bool controlled = std::any_of(said.begin(), said.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f;
  });
  if (controlled) return "control characters in: " + said;
  if (code == 2) {
    const bool line =
        said.starts_with("kvlab: ") && said.size() > 12 && std::count(said.begin(), said.end(), '\n') == 1;
    return line ? "" : "refused, but not with one line: " + said;
  }
  if (code == kSkippedCode && !fs::exists(out / "rows.csv")) return "code 1 without rows: " + said;
  if (code != 0 && code != kSkippedCode) return fmt::format("code {}: {}", code, said);
  return "";
}

// Throws where what was written holds a number that is not finite.
void check_numbers(const fs::path& out) {
  if (fs::exists(out / "rows.csv")) read_rows(out / "rows.csv");
  if (!fs::is_regular_file(out)) return;
  const SafetensorsFile file = SafetensorsFile::open(out);
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.dtype != Dtype::kF32) continue;
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()));
    file.read_f32(tensor, 0, numbers);
    refuse_non_finite(numbers, 0, tensor, out.string());
  }
}

class HostileInputs : public testing::Test {
 protected:
  using Make = std::function<Words(Random&)>;  // writes an input's files and returns the command line that reads them

  HostileInputs() {
    ref::make_text_model(model());
    Random random(3);
    std::vector<int32_t> ids(150);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.below(256));
    const std::vector<TensorData> tensors = {
        {.name = "input_ids", .dtype = Dtype::kI32, .shape = {150}, .data = ids.data()}};
    write_safetensors(path("ids.safetensors"), tensors);
    test::write_file(path("text.txt"), "It was the best of times, it was the worst of times, it was 1775.");
  }

  // Two inputs whose end is known beforehand: every share of the inputs begins with them, so that it asserts something.
  struct Known {
    std::function<Words()> good, bad;  // each writes its files
  };

  // Tries the known inputs and `count` others in a child; where one kills it, another goes on after it.
  void attack(uint64_t kind, int count, const Known& known, const Make& make) {
    void* const shared = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    Report& report = *new (shared) Report;
    for (int deaths = 0; report.next < count && deaths < 5; ++deaths) {
      std::fflush(nullptr);
      const pid_t child = ::fork();
      if (child == 0) try_inputs(kind, count, known, make, report);
      int status = 0;
      ::waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
      ADD_FAILURE() << "input " << report.next << " of kind " << kind << " ended the process ("
                    << (WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit") << "): kvlab " << report.command;
      report.next += stride();
    }
    EXPECT_STREQ(report.problems, "");
    EXPECT_TRUE(report.known_tried);
    if (stride() == 1) {  // a share of the inputs need not hold both
      EXPECT_GT(report.refused, 0);
      EXPECT_GT(report.accepted, 0);
    }
    RecordProperty("accepted", report.accepted);
    RecordProperty("refused", report.refused);
    ::munmap(shared, sizeof(Report));
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string model() const { return path("model"); }
  std::string out() const { return path("out"); }
  std::string write(const std::string& name, const std::string& content) const {
    test::write_file(path(name), content);
    return path(name);
  }
  // A copy of the tiny model with one file replaced.
  std::string model_with(const std::string& file, const std::string& content) const {
    const fs::path copy = folder_ / "changed";
    fs::remove_all(copy);
    fs::create_directories(copy);
    for (const char* linked : {"config.json", "model.safetensors", "tokenizer.json"}) {
      const fs::path stored = stored_file(fs::path(model()) / linked);
      if (linked != file) fs::create_symlink(stored, copy / stored.filename());
    }
    test::write_file(copy / file, content);
    return copy.string();
  }
  Words run(const std::string& spec) const {
    return {"run", "--quiet", "--no-draw", "--fresh", "--out", out(), spec, "--set", "samples=1"};
  }
  Words score(const std::string& model, const std::string& ids) const {
    return {"score", "--model", model, "--ids", ids, "--out", out()};
  }
  std::string decode_spec(const std::string& source) const {
    return fmt::format(
        "# Does it run?\n{}\npolicies: [full, {{policy: streaming, sinks: 2}}, h2o, {{policy: snapkv, window: 4}}]\n"
        "axes: {{budget: [16], interval: 8}}\nseed: 5\n",
        source);
  }
  std::string ids_spec() const {
    return decode_spec("model: " + model() +
                       "\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\nmetrics: [loss]\nsamples: 1");
  }
  // The verb's own tool makes what is changed afterwards; in a child, too, so that no thread is there before a fork.
  void prepare(const Words& words) const {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run_words(words));
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }

  test::TempFolder folder_;

 private:
  static int run_words(const Words& words) {
    cpu::set_thread_count(1);
    std::vector<const char*> arguments = {"kvlab"};
    for (const std::string& word : words) arguments.push_back(word.c_str());
    return run_program(static_cast<int>(arguments.size()), arguments.data());
  }

  // How `words` end, and why that is no way to end; empty where it is one.
  struct End {
    int code = 0;
    std::string problem;
  };
  End try_words(const Words& words, const Captured& captured, Report& report) const {
    put(report.command, fmt::format("{}", fmt::join(words, " ")));
    ::alarm(kSecondsAnInput);
    End end{.code = run_words(words)};
    ::alarm(0);
    end.problem = problem_of(end.code, captured.take(), out());
    try {
      check_numbers(out());
    } catch (const std::exception& error) {
      end.problem += error.what();
    }
    return end;
  }

  // What is wrong with how the known inputs end.
  std::string try_known(const Known& known, const Captured& captured, Report& report) const {
    std::string problems;
    for (const auto& [input, name, code] : {std::tuple(&known.good, "good", 0), std::tuple(&known.bad, "bad", 2)}) {
      fs::remove_all(out());
      const End end = try_words((*input)(), captured, report);
      if (end.code == code && end.problem.empty()) continue;
      problems += fmt::format("the {} input: kvlab {}: code {}: {}\n", name, report.command, end.code, end.problem);
    }
    report.known_tried = true;
    return problems;
  }

  [[noreturn]] void try_inputs(uint64_t kind, int count, const Known& known, const Make& make, Report& report) const {
    (void)!::chdir(folder_.path().c_str());
    const Captured captured;
    std::string problems = report.problems;
    if (!report.known_tried) problems += try_known(known, captured, report);
    put(report.problems, problems);
    for (; report.next < count; report.next += stride()) {
      Random random(kind, static_cast<uint64_t>(report.next));
      fs::remove_all(out());
      const End end = try_words(make(random), captured, report);
      ++(end.code == 2 ? report.refused : report.accepted);
      if (end.problem.empty()) continue;
      problems += fmt::format("input {} of kind {}: kvlab {}: {}\n", report.next, kind, report.command, end.problem);
      put(report.problems, problems);
    }
    ::_exit(0);
  }
};

TEST_F(HostileInputs, SpecsRunOrAreRefused) {
  write("q.jsonl", R"({"context": "a b", "question": "c?", "answer_prefix": "", "answers": ["d"], "max_new_tokens": 2})"
                   "\n");
  const std::string head = "model: " + model() + "\n";
  const std::vector<std::string> specs = {
      ids_spec(),
      head +
          "protocol: one-shot\ndata: [{task: kv, tokens: 600, questions: 2}]\npolicies: [full, {policy: keydiff, "
          "label: mine, allocation: {ada: {safeguard: 0.2}}}]\naxes: {keep: [0.2, 0.5]}\nmetrics: [loss]\nsamples: 2\n",
      head + "protocol: answer\ndata: [{jsonl: q.jsonl, name: qa}]\npolicies: [full, tova]\naxes: {keep: [0.5]}\n",
      ("model: {random: tiny}\nprotocol: latency\npolicies: [full, keydiff]\naxes: {context: [64], keep: 0.5, "
       "batch: [1, 2]}\nsamples: 3\n"),
      head +
          "protocol: profile\ndata: [{task: kv, tokens: 600, questions: 3}]\npolicies: [{policy: keydiff, sinks: 4}]\n",
      ids_spec() +
          "tables: [{name: t, rows: [policy], columns: [budget], metric: nll_mean}]\n"
          "plots: [{name: p, kind: curve, metric: nll_mean, x: budget, series: [policy], x_scale: log2}]\n",
      test::replaced(test::read_file(ref::source_path("experiments/quickstart.yaml")), "experiments/models/reference",
                     model()),
  };
  for (const std::string& spec : specs) prepare({"validate", write("spec.yaml", spec)});
  const Known known = {.good = [&] { return run(write("spec.yaml", specs[0])); },
                       .bad = [&] { return run(write("spec.yaml", specs[0] + "polices: [full]\n")); }};
  attack(1, 300, known, [&](Random& random) -> Words {
    if (random.chance(0.3)) return run(write("spec.yaml", ref::hostile_text(specs[0], random)));
    return {"validate", write("spec.yaml", ref::hostile_text(random.choice(specs), random))};
  });
}

TEST_F(HostileInputs, OverridesRunOrAreRefused) {
  write("spec.yaml", ids_spec());
  const std::vector<std::string> sets = {"samples=2", "data.noise.tokens=32", "policies.h2o.recent=4",
                                         "axes.budget=[16, 24]", "policies=[full, {policy: h2o, label: a}]"};
  for (const std::string& set : sets) prepare({"validate", path("spec.yaml"), "--set", set});
  const auto with = [&](const char* set) { return Words{"validate", path("spec.yaml"), "--set", set}; };
  const Known known = {.good = [&] { return with("samples=2"); }, .bad = [&] { return with("sample=2"); }};
  attack(2, 60, known, [&](Random& random) -> Words {
    std::string set = ref::hostile_text(random.choice(sets), random);
    std::erase(set, '\0');  // no command line can hold one
    return {"validate", path("spec.yaml"), "--set", set};
  });
}

TEST_F(HostileInputs, ConfigurationsOfAModelRunOrAreRefused) {
  std::vector<std::string> configs = {test::read_file(fs::path(model()) / "config.json")};
  for (const char* scaling : {R"({"rope_type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": 1})",
                              R"({"rope_type": "linear", "factor": 2})",
                              R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                  "original_max_position_embeddings": 512})"}) {
    std::string config = configs[0];
    const size_t begin = config.find("\"rope_parameters\": {");
    const size_t value = config.find('{', begin);
    configs.push_back(config.replace(value, config.find('}', value) + 1 - value, scaling));
  }
  const auto with = [&](const std::string& config) {
    return score(model_with("config.json", config), path("ids.safetensors"));
  };
  for (const std::string& config : configs) prepare(with(config));
  const Known known = {.good = [&] { return with(configs[0]); }, .bad = [&] { return with("{}"); }};
  attack(3, 150, known, [&](Random& random) -> Words {
    const std::string changed = ref::hostile_text(random.choice(configs), random);
    if (random.chance(0.3)) return {"inspect", model_with("config.json", changed)};
    return with(changed);
  });
}

TEST_F(HostileInputs, TokenIdsRunOrAreRefused) {
  const std::string ids = test::read_file(path("ids.safetensors"));
  const auto with = [&](const std::string& changed) { return score(model(), write("changed.safetensors", changed)); };
  const Known known = {.good = [&] { return with(ids); }, .bad = [&] { return with(ids.substr(0, ids.size() - 1)); }};
  attack(4, 80, known, [&](Random& random) { return with(ref::hostile_safetensors(ids, random)); });
}

TEST_F(HostileInputs, WeightsRunOrAreRefused) {
  const std::string weights = read_stored(fs::path(model()) / "model.safetensors");
  const SafetensorsFile file = SafetensorsFile::from_bytes(std::as_bytes(std::span(weights)), "weights");
  const auto with = [&](const std::string& changed) {
    return score(model_with("model.safetensors", changed), path("ids.safetensors"));
  };
  const Known known = {.good = [&] { return with(weights); },
                       .bad = [&] { return with(weights.substr(0, weights.size() / 2)); }};
  attack(5, 80, known, [&](Random& random) {
    const auto& tensors = file.tensors();
    const std::string& tensor = tensors[random.below(tensors.size())].name;
    return with(random.chance(0.5) ? ref::hostile_safetensors(weights, random)
                                   : ref::with_hostile_numbers(weights, tensor, random));
  });
}

TEST_F(HostileInputs, GgufFilesRunOrAreRefused) {
  ref::GgufBuilder builder = ref::gguf_of(load_model(model()));
  ref::put_byte_tokenizer(builder, "smollm");
  builder.put_text("general.license", "none");
  const std::string good = builder.bytes();
  size_t data = 0;
  for (const ref::GgufBuilder::TensorEntry& tensor : builder.tensors) data += (tensor.bytes.size() + 31) / 32 * 32;
  prepare(score(write("good.gguf", good), path("ids.safetensors")));
  prepare({"tokenize", "--model", path("good.gguf"), "--text", path("text.txt")});
  prepare({"inspect", path("good.gguf")});
  const auto scored = [&](const std::string& bytes) {
    return score(write("changed.gguf", bytes), path("ids.safetensors"));
  };
  const Known known = {.good = [&] { return scored(good); },
                       .bad = [&] { return scored(good.substr(0, good.size() / 2)); }};
  attack(12, 160, known, [&](Random& random) -> Words {
    const std::string changed = write("changed.gguf", ref::hostile_gguf(good, good.size() - data, random));
    if (random.chance(0.3)) return {"inspect", changed};
    if (random.chance(0.3)) return {"tokenize", "--model", changed, "--text", path("text.txt")};
    return score(changed, path("ids.safetensors"));
  });
}

TEST_F(HostileInputs, TokenizersAndTextsRunOrAreRefused) {
  std::vector<std::string> tokenizers = {test::read_file(fs::path(model()) / "tokenizer.json")};
  for (const char* name : {"digits", "nfc", "split", "backtrack"}) {
    tokenizers.push_back(test::read_file(ref::source_path(fmt::format("tests/fuzz/corpus/tokenizer/{}.json", name))));
  }
  const std::string text = test::read_file(path("text.txt"));
  const auto with = [&](const std::string& tokenizer, const std::string& changed) {
    return Words{"tokenize", "--model", model_with("tokenizer.json", tokenizer), "--text",
                 write("changed.txt", changed)};
  };
  const Known known = {.good = [&] { return with(tokenizers[0], text); },  // the others know few bytes
                       .bad = [&] { return with("{}", text); }};
  attack(6, 130, known, [&](Random& random) {
    const std::string changed = ref::hostile_text(random.choice(tokenizers), random);
    return with(changed, ref::hostile_text(text, random));
  });
}

TEST_F(HostileInputs, TracesRunOrAreRefused) {
  prepare({"record", "--model", model(), "--ids", path("ids.safetensors"), "--tokens", "40", "--layers", "0,2", "--out",
           path("good.safetensors")});
  const std::string trace = test::read_file(path("good.safetensors"));
  const std::string checksum = trace_checksum(SafetensorsFile::open(path("good.safetensors")));
  write("trace.yaml", decode_spec("trace: changed.safetensors") + "metrics: [recall, cosine]\n");
  const auto with = [&](const std::string& changed) {
    write("changed.safetensors", changed);
    return run(path("trace.yaml"));
  };
  const Known known = {.good = [&] { return with(trace); }, .bad = [&] { return with(trace.substr(0, 1000)); }};
  attack(7, 130, known, [&](Random& random) -> Words {
    std::string changed = trace;
    if (random.chance(0.5)) {
      changed = ref::hostile_safetensors(trace, random);
    } else {  // with a checksum that holds
      const std::vector<std::string> tensors = {"layers.0.queries", "layers.2.keys", "layers.0.values", "nll",
                                                "layers.2.pre_rope_queries"};
      changed = ref::with_hostile_numbers(trace, random.choice(tensors), random);
      const auto parsed = SafetensorsFile::from_bytes(std::as_bytes(std::span(changed)), "changed");
      changed = test::replaced(changed, checksum, trace_checksum(parsed));
    }
    if (random.chance(0.4)) return {"inspect", write("changed.safetensors", changed)};
    return with(changed);
  });
}

TEST_F(HostileInputs, QuestionsRunOrAreRefused) {
  std::string lines;
  for (const char* colour : {"blue", "green"}) {
    lines += fmt::format(
        R"({{"task": "qa_1", "context": "The sky is {0}.", "question": " What?", "answer_prefix": " It is",)"
        R"( "answers": ["{0}"], "max_new_tokens": 2}})"
        "\n",
        colour);
  }
  write("spec.yaml",
        "model: " + model() +
            "\ndata: [{jsonl: q.jsonl}]\nprotocol: answer\npolicies: [full, keydiff]\naxes: {keep: 0.5}\n");
  const auto with = [&](const std::string& changed) {
    write("q.jsonl", changed);
    return run(path("spec.yaml"));
  };
  const Known known = {.good = [&] { return with(lines); }, .bad = [&] { return with("{\n"); }};
  attack(8, 110, known, [&](Random& random) { return with(ref::hostile_text(lines, random)); });
}

TEST_F(HostileInputs, ResultsAreReadOrRefused) {
  prepare(run(write("spec.yaml", ids_spec() + "tables: [{name: t, rows: [policy], columns: [budget], metric: nll_mean}]"
                                              "\nplots: [{name: p, kind: curve, metric: nll_mean, x: budget}]\n")));
  fs::rename(out(), path("good"));
  const std::string rows = test::read_file(folder_ / "good/rows.csv");
  const std::string manifest = test::read_file(folder_ / "good/manifest.json");
  const std::string columns = transpose_csv(rows, "rows.csv"), packed = xz(columns);
  const Known known = {.good =
                           [&] {
                             return Words{"inspect", path("good")};
                           },
                       .bad =
                           [&] {
                             return Words{"inspect", path("text.txt")};
                           }};
  attack(9, 170, known, [&](Random& random) -> Words {
    const fs::path changed = folder_ / "changed";
    fs::remove_all(changed);
    fs::copy(path("good"), changed);
    if (random.chance(0.2)) {
      test::write_file(changed / "manifest.json", ref::hostile_text(manifest, random));
    } else if (random.chance(0.3)) {
      fs::remove(changed / "rows.csv");
      test::write_file(changed / "columns.csv.xz",
                       random.chance(0.5) ? ref::hostile_text(packed, random) : xz(ref::hostile_text(columns, random)));
    } else {
      test::write_file(changed / "rows.csv", ref::hostile_text(rows, random));
    }
    switch (random.below(3)) {
      case 0:
        return {"compare", path("good"), changed.string()};
      case 1:
        return {"report", changed.string()};
      default:
        return {"inspect", changed.string()};
    }
  });
}

TEST_F(HostileInputs, BudgetProfilesRunOrAreRefused) {
  const ModelConfig config = load_model_config(model());
  BudgetProfile profile{.model = "model",
                        .fingerprint = fingerprint(model()),
                        .scorer = "keydiff {recent: 1, sinks: 4}",
                        .protection = {.sinks = 4, .recent = 1},
                        .calibration = {.data = {"kv"}, .samples = 1, .questions = 2, .tokens = 100, .seed = 1},
                        .losses = {},
                        .layers = config.layers,
                        .kv_heads = config.kv_heads};
  const std::vector<double> curve(kProfileRatios, 0.25);
  profile.losses = {.uniform = curve, .profile = curve, .greedy = curve, .bound = curve};
  for (int percent = 1; percent <= kProfileRatios; ++percent)
    profile.removed.insert(profile.removed.end(), profile.heads(), static_cast<float>(percent) / 100);
  const std::string good = format_profile(profile);
  write("spec.yaml", "model: " + model() +
                         "\ndata: [{name: noise, ids: ids.safetensors, tokens: 48}]\nprotocol: one-shot\n"
                         "policies: [{policy: keydiff, recent: 1, sinks: 4, allocation: {lu-kv: {profile: p.json}}}]\n"
                         "axes: {keep: 0.5}\nmetrics: [loss]\n");
  const auto with = [&](const std::string& changed) {
    write("p.json", changed);
    return run(path("spec.yaml"));
  };
  const Known known = {.good = [&] { return with(good); }, .bad = [&] { return with("{}"); }};
  attack(10, 80, known, [&](Random& random) { return with(ref::hostile_text(good, random)); });
}

TEST_F(HostileInputs, BenchmarksAreTabulatedOrRefused) {
  const std::string good =
      R"({"manifest": {"gpu": "none"}, "peaks": {"copy_bytes_per_s": 1e12, "gemm_flops_per_s": 1e14}, "benchmarks": [
{"by": "cpu", "kernel": "k", "shape": "s", "median_s": 0.002, "low_s": 0.001, "high_s": 0.003, "bytes": 10, "flops": 7, "samples": 3},
{"by": "cuda", "kernel": "k", "shape": "s", "median_s": 0.002, "low_s": 0.001, "high_s": 0.003, "bytes": 10, "flops": 7, "samples": 3}]})";
  write("spec.yaml", "benchmarks: b.json\n");
  const auto with = [&](const std::string& changed) {
    write("b.json", changed);
    return Words{"run", "--quiet", "--no-draw", "--out", out(), path("spec.yaml")};
  };
  const Known known = {.good = [&] { return with(good); }, .bad = [&] { return with("{}"); }};
  attack(11, 80, known, [&](Random& random) { return with(ref::hostile_text(good, random)); });
}

}  // namespace
}  // namespace kv
