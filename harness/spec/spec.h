#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/report/plan.h"
#include "sim/policy/params.h"
#include "sim/policy/policy.h"

namespace kv {

struct Protocol;

struct Located {
  std::string text{};
  std::string where{};  // "file:line:column" or "--set …"
};

// A policy, metric or task by name, with its options as written.
struct Component {
  std::string name{};
  std::string label{};  // what the rows call it
  std::vector<GivenParam> options{};
  std::string where{};
  std::map<std::string, std::vector<std::string>> only{};  // a policy's: values of axes at which it runs; else at all
  SlotChoices slots{};                                     // a policy's: what fills those beside its scorer
};

enum class DataKind { kTask, kOwn, kText, kIds, kJsonl };

// More than any machine answers in a year.
inline constexpr int kMostSamples = 1'000'000;

struct DataSpec {
  DataKind kind = DataKind::kTask;
  std::string name{};                 // the `data` column
  Located source{};                   // task name, text file, safetensors file with input_ids, JSON lines of questions
  std::optional<int> tokens{};        // a sample's length; files: all of it without
  int samples = 1;                    // files: consecutive pieces of `tokens`
  std::vector<GivenParam> options{};  // of the task, or of own traces (harness/spec/own_options.h)
  std::string subset{};               // JSON lines: the value of `task`; all where empty
  std::string metric{};               // JSON lines: how answers are graded; the data set's own where empty
};

// A Hugging Face folder or a .gguf file, or the shape of a named model with weights drawn from the spec's seed.
struct ModelChoice {
  Located source{};
  bool random = false;
};

// One axis: its points, each a value a column. A plain axis has one column; a zipped one several that move together.
struct Axis {
  std::vector<std::string> columns{};
  std::vector<std::vector<GivenParam>> points{};  // [point][column]
  std::string where{};
};

// An experiment as data. Holds names only; whether they exist is for harness/spec/grid.h to check.
struct Spec {
  std::string file{};      // as the user named it
  std::string name{};      // its stem: the `experiment` column
  std::string question{};  // the file's first comment
  std::string title{};
  std::vector<ModelChoice> models{};  // exactly one of models, traces and benchmarks is given
  std::vector<Located> traces{};
  Located benchmarks{};          // a file of timings (harness/benchmarks.h), which brings its rows: nothing runs
  std::vector<DataSpec> data{};  // empty for traces, which bring their own
  Located texts{};               // the folder that tasks draw from; the shipped one where empty
  std::vector<Component> policies{};
  const Protocol* protocol = nullptr;  // never null once parsed (harness/protocols/protocol.h)
  std::vector<Axis> axes{};
  std::vector<Component> metrics{};
  std::map<std::string, std::vector<GivenParam>> protocol_options{};  // by the protocol's own keys, as written
  uint64_t seed = 0;
  int samples = 1;
  int batch = 0;  // samples that run together; 0 = auto (harness/auto_batch.h)
  std::string device = "cpu";
  int prefill_chunk = 0;  // 0: what the protocol chooses, in most of them chunk()
  ReportPlan report{};
  std::string resolved{};  // the YAML with every override applied; parses to the same Spec
  // The keys that rows depend on, each with its value in one spelling: all but title, tables, plots, paper and verdict.
  std::map<std::string, std::string> row_keys{};
  std::vector<GivenParam> written{};  // its keys, each with its value as a complaint shows it

  // The columns of the rows beside the standard ones.
  std::vector<std::string> axis_columns() const;
  // Options of one of the protocol's own keys; none where the spec does not have it.
  std::vector<GivenParam> options_of(std::string_view protocol_key) const;
  // What `read` returns for that key's options, and those that axes set in its place. `read` has to ask its Params for
  // every option that the key has: one that it did not ask for is a UserError (Params::finish), as is a value that it
  // does not take.
  template <typename Read>
  auto read_options(std::string_view protocol_key, Read read, std::vector<GivenParam> of_axes = {}) const {
    std::vector<GivenParam> given = options_of(protocol_key);
    given.insert(given.end(), of_axes.begin(), of_axes.end());
    Params params(std::string(protocol_key), std::move(given));
    auto options = read(params);
    params.finish();
    return options;
  }
  // UserError at that key, if the spec has it: "<where>: <key> = <value>: <message>".
  void refuse_key(std::string_view key, std::string_view message) const;
  // Tokens of a step of the prefill.
  int chunk() const { return prefill_chunk > 0 ? prefill_chunk : 1024; }
};

// A path of a spec: absolute, or relative to the spec's folder, the current one, the program's, or one above these.
// Throws UserError where nothing is there. What is read by read_stored() may lie packed (sim/io/stored_file.h); its
// path is that of the file itself.
enum class Packed : uint8_t { kNo, kMayBe };
std::filesystem::path resolve_path(const Spec& spec, const Located& path, Packed packed = Packed::kNo);

}  // namespace kv
