#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/spec/case.h"
#include "harness/spec/spec.h"
#include "kernels/backend.h"
#include "sim/model/model_config.h"
#include "sim/model/model_identity.h"
#include "sim/model/tokenizer/tokenizer.h"
#include "sim/source/model_source.h"
#include "sim/source/source.h"
#include "sim/tasks/exam.h"
#include "sim/tasks/jsonl.h"
#include "sim/tasks/own_traces.h"
#include "sim/tasks/sample.h"
#include "sim/tasks/text_data.h"

namespace kv {

// What an experiment runs on: a model that reads drawn or given texts, or recorded traces.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual const std::string& name() const = 0;         // the `model` column
  virtual const std::string& fingerprint() const = 0;  // SHA-256 of the model's or the traces' files
  // SHA-256 of the file beside the model that turns text to ids and back; empty where there is none.
  virtual std::string tokenizer_sha256() const { return ""; }
  // Samples [first, first + count) of the workload, a pure function of the spec. Throws UserError where the data does
  // not offer them.
  virtual std::vector<Sample> samples(const Workload& workload, int first, int count) = 0;
  // The same as questions on contexts, for protocol answer; throws UserError as samples(), and where nothing is asked.
  virtual std::vector<Exam> exams(const Workload& workload, int first, int count) = 0;
  // Lines of the workload's data set that are no questions.
  virtual std::vector<JsonlProblem> malformed(const Workload& workload) = 0;
  // Of a workload whose texts a model wrote itself, what it wrote; null for other data.
  virtual const OwnTraces* own_traces(const Workload&) const { return nullptr; }
  // UserError where there is none.
  virtual const Tokenizer& tokenizer() = 0;
  virtual std::vector<int32_t> stop_ids() const = 0;  // the model's own ends of text
  // For those samples; valid until the next call. Throws UserError where the model does not fit the device.
  virtual Source& source(int first, int count) = 0;
  // The model itself, null for traces; throws as source() does.
  virtual ModelSource* model() = 0;
  // Text of token ids; empty where no tokenizer is known. Must not outlive the subject.
  virtual std::function<std::string(std::span<const int32_t>)> decoder() = 0;
};

// What tells a subject from others, without opening it: as Subject's members of these names.
struct SubjectIdentity {
  std::string name{}, fingerprint{}, tokenizer_sha256{};
};
SubjectIdentity subject_identity(const Spec& spec, int model, const ModelIdentity& identity);

// Loads the model (or opens the traces) that `model` names in the spec, whose identity the grid has. A model too large
// for the device is no error yet: each of its cases will say so.
std::unique_ptr<Subject> open_subject(Backend& backend, const Spec& spec, int model, const ModelIdentity& identity);

// Throws the UserError for data that needs the tokenizer of a model without one.
[[noreturn]] void refuse_text(const ModelChoice& choice);

// The folder that a spec's tasks draw from: its own, or experiments/data; empty where that is not here. UserError where
// the spec's is not.
std::filesystem::path text_folder(const Spec& spec);

// Text of the tasks; without the shipped folder it holds no documents, and tasks that need some say so.
TextData load_shipped_text();

// ids of the tensor input_ids, of shape [T] or [1, T].
std::vector<int32_t> read_ids(const std::filesystem::path& file);

}  // namespace kv
