#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/headline.h"
#include "harness/rows.h"
#include "sim/policy/baseline.h"
#include "sim/policy/params.h"

namespace kv {

struct Case;
struct CaseCheck;
struct Grid;
struct InputFile;
struct Spec;
struct UnitBatch;
class ModelIdentity;
class UnitRunner;

// An axis that belongs to a protocol: what it sets reaches the cases as Case::settings.
struct ProtocolAxis {
  std::string name;
  std::string help;
  std::function<void(const GivenParam&)> check;  // UserError where its value means nothing
  // It says nothing to a policy that never evicts: that one runs once, its column empty, and not at every value. Where
  // it also shapes what every policy is given (decode: where the statistics are taken), it says something to all.
  bool cuts = false;
};

// A key of the spec that belongs to a protocol: a map of options, which reading declares.
struct ProtocolKey {
  std::string name;
  std::string help;
  std::function<void(Params&)> read;
  bool as_axes = false;  // each option may be an axis instead; its value reaches the cases as a ProtocolAxis's does

  std::vector<DeclaredParam> options() const;
};

// What a protocol says of a workload as a whole, before its units.
struct Remarks {
  std::vector<Row> rows{};
  std::vector<std::string> problems{};  // a line each
};

// How policies are tried and what is measured, by name: what a spec must and may say for it, which cases are sound, and
// how one unit of work, a case and a batch of samples, becomes rows. Spec, grid and run know protocols through this
// alone. A function that is null has nothing to say.
struct Protocol {
  std::string name;
  std::string summary;            // one line
  bool is_default = false;        // runs where a spec names none
  bool reads_data = true;         // a model needs the key `data`; without, the protocol draws its own tokens
  bool takes_questions = false;   // data sets of questions
  bool learns = false;            // makes the files that slots read, which need not be there (harness/train.h)
  bool judges_answers = true;     // false: time and memory alone, so an allocation that means nothing else will do
  bool takes_every_slot = false;  // policies may have an admission and a selection, too
  bool samples_repeat = false;    // one unit a case measures all samples: they are repetitions
  std::string verb = "run";  // the command that runs it; `open` is null where that is not `run`, or where it learns
  std::vector<ProtocolAxis> axes{};
  std::vector<ProtocolKey> keys{};
  // Rows of its own that hold one number of a whole sample, as Metric::numbers.
  std::vector<std::string> numbers{};
  std::vector<Headline> headlines{};  // what a spec without tables and plots shows, beside its metrics' own
  // More of them, where it depends on the spec what its rows are about. UserError where the spec is refused later.
  std::function<std::vector<Headline>(const Spec&)> headlines_of{};
  std::string starter{};           // data, axes and metrics of the spec that kvlab new writes, with their comments
  std::string starter_policies{};  // of that spec, as a YAML list
  std::function<void(const Spec&)> check{};            // UserError where the spec cannot be meant for it
  std::function<void(const CaseCheck&)> check_case{};  // UserError where a policy cannot run at a point of the axes
  // Files that a case reads where those of its slots are what it makes (`learns`), once it is found sound. UserError
  // where one is missing or does not fit.
  std::function<std::vector<InputFile>(const CaseCheck&, const ModelIdentity&)> files{};
  // What the full-cache pass must keep for a case, beside what its policy and metrics need.
  std::function<BaselineNeeds(const Case&)> needs{};
  std::function<std::string(const Spec&, const Grid&)> plan{};  // one line: what would run
  // The memory of a workload, whose samples are all in the batch, by how many run together: what `batch: auto` counts
  // with. Throws UserError where samples cannot be had. Null only where samples never run together: where `open` is, or
  // samples_repeat.
  std::function<std::function<size_t(int samples)>(const UnitBatch&)> memory{};
  std::function<Remarks(const UnitBatch&)> remarks{};  // of a workload, whose samples are all in the batch
  // Throws for nothing that is one sample's fault: a sample that cannot be had is a row of run() with its reason, and
  // that reason belongs to inputs().
  std::function<std::unique_ptr<UnitRunner>(const UnitBatch&)> open{};
  // Sees the rows of a workload once all its units are there: [cases], each in the order of the samples.
  std::function<void(const Spec&, std::span<const Case>, std::span<std::vector<Row>>)> finish{};

  const ProtocolAxis* find_axis(std::string_view axis) const;  // null: none of its own
  std::vector<std::string> axis_names() const;
  // The key that has this axis among its options; null: none.
  const ProtocolKey* find_key_of_axis(std::string_view axis) const;
};

// Registers from a static object in the protocol's .cpp.
struct RegisterProtocol {
  explicit RegisterProtocol(Protocol protocol);
};

// Sorted by name.
std::vector<const Protocol*> protocols();
// Null: there is none of that name.
const Protocol* find_protocol(std::string_view name);
// The one that runs where a spec names none.
const Protocol& default_protocol();

// Axes by the kind of their values.
ProtocolAxis token_axis(std::string name, std::string help);
ProtocolAxis fraction_axis(std::string name, std::string help);
ProtocolAxis word_axis(std::string name, std::vector<std::string> words, std::string help);
// Those of decode-time pruning to a budget.
ProtocolAxis budget_axis();
ProtocolAxis interval_axis();
// Applies to policies that evict alone.
ProtocolAxis cutting(ProtocolAxis axis);

// The value of an axis; UserError with its place and what was expected where it is none.
int whole_number(const GivenParam& param, int low, int high, std::string_view expected);
int number_of_tokens(const GivenParam& param);
double fraction(const GivenParam& param);

}  // namespace kv
