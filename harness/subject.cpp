#include "harness/subject.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>

#include "harness/files.h"
#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/own_data.h"
#include "harness/protocols/chat_option.h"
#include "harness/shipped.h"
#include "harness/spec/model_choice.h"
#include "kernels/error.h"
#include "sim/io/gguf.h"
#include "sim/io/hash.h"
#include "sim/io/safetensors.h"
#include "sim/model/chat_template.h"
#include "sim/model/model_files.h"
#include "sim/model/named_models.h"
#include "sim/source/model_source.h"
#include "sim/source/trace_source.h"
#include "sim/tasks/draw_task.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShippedText = "experiments/data";

TextData load_text(const fs::path& folder) { return folder.empty() ? TextData{} : TextData::load(folder); }

SubjectIdentity identity_of_model(const Spec& spec, const ModelChoice& choice, const ModelIdentity& identity) {
  if (choice.random) {
    const NamedModel& shape = find_named_model(choice.source.text);
    return {.name = fmt::format("{} (random)", choice.source.text),
            .fingerprint = sha256_hex(fmt::format("random weights, seed {}\n{}", spec.seed, shape.config))};
  }
  SubjectIdentity subject{.name = model_name(identity.files()), .fingerprint = identity.fingerprint()};
  std::error_code error;
  const fs::path file = identity.files() / "tokenizer.json";
  if (fs::exists(file, error)) subject.tokenizer_sha256 = sha256_hex(read_file(file));
  return subject;
}

SubjectIdentity identity_of_traces(const Spec& spec) {
  Sha256 hash;
  for (const Located& path : spec.traces) {
    hash.update(trace_checksum(SafetensorsFile::open(resolve_path(spec, path))));
  }
  const Trace first = Trace::open(resolve_path(spec, spec.traces.front()), Trace::Checksum::kSkip);
  return {.name = first.info().model, .fingerprint = hash.hex()};
}

class ModelSubject final : public Subject {
 public:
  ModelSubject(Backend& backend, const Spec& spec, const ModelChoice& choice, const ModelIdentity& identity)
      : spec_(spec),
        choice_(choice),
        config_(config_of(choice, identity.files())),
        identity_(identity_of_model(spec, choice, identity)) {
    choice.random ? draw_weights(backend) : load_weights(backend, identity);
    // An unsupported tokenizer must stop the experiment, not skip its cases one by one.
    for (const DataSpec& data : spec.data) {
      if (data.kind != DataKind::kIds) tokenizer();
      if (data.kind == DataKind::kOwn) own_traces_.emplace(data.name, load_own_traces(spec, data, identity));
    }
    if (asks_for_chat(spec)) chat_ = stored_chat();  // the same holds for its template
  }

  const std::string& name() const override { return identity_.name; }
  const std::string& fingerprint() const override { return identity_.fingerprint; }
  std::string tokenizer_sha256() const override { return identity_.tokenizer_sha256; }
  Source& source(int, int) override { return *model(); }
  ModelSource* model() override {
    if (!source_) throw MemoryError(unfit_);
    return &*source_;
  }

  std::function<std::string(std::span<const int32_t>)> decoder() override {
    if (choice_.random || !has_tokenizer(files_)) return {};
    return [this](std::span<const int32_t> ids) {
      try {
        return tokenizer().decode(ids);
      } catch (const UserError&) {  // a model may predict an id that its tokenizer does not use
        return fmt::format("<{}>", fmt::join(ids, " "));
      }
    };
  }

  std::vector<Sample> samples(const Workload& workload, int first, int count) override {
    const DataSpec& data = spec_.data[static_cast<size_t>(workload.data)];
    std::vector<Sample> out;
    for (int index = first; index < first + count; ++index) {
      out.push_back(sample(data, workload, index));
      check_ids(out.back(), data);
    }
    return out;
  }

  std::vector<Exam> exams(const Workload& workload, int first, int count) override {
    const DataSpec& data = spec_.data[static_cast<size_t>(workload.data)];
    std::vector<Exam> out;
    for (int index = first; index < first + count; ++index) {
      switch (data.kind) {
        case DataKind::kTask:
          out.push_back(make_exam(request(data, workload, index), tokenizer(), text()));
          break;
        case DataKind::kJsonl:
          out.push_back(exam_of(data, index));
          break;
        case DataKind::kOwn:
        case DataKind::kText:
        case DataKind::kIds:
          throw UserError(fmt::format("{}: data: '{}' asks nothing; protocol answer expects a task or jsonl",
                                      data.source.where, data.source.text));
      }
      if (chat_) put_in_chat(out.back(), *chat_, tokenizer());
    }
    return out;
  }

  std::vector<JsonlProblem> malformed(const Workload& workload) override {
    const DataSpec& data = spec_.data[static_cast<size_t>(workload.data)];
    return data.kind == DataKind::kJsonl ? questions(data).malformed : std::vector<JsonlProblem>{};
  }

  const OwnTraces* own_traces(const Workload& workload) const override {
    const auto found = own_traces_.find(spec_.data[static_cast<size_t>(workload.data)].name);
    return found == own_traces_.end() ? nullptr : &found->second;
  }

  const Tokenizer& tokenizer() override {
    if (choice_.random) refuse_text(choice_);
    if (!tokenizer_) tokenizer_ = load_tokenizer(files_);
    return *tokenizer_;
  }

  std::vector<int32_t> stop_ids() const override { return {config_.eos_ids.begin(), config_.eos_ids.end()}; }

 private:
  void load_weights(Backend& backend, const ModelIdentity& identity) {
    files_ = identity.files();
    open(backend, ModelFiles(files_));
  }

  ChatTemplate stored_chat() const {
    const auto text = choice_.random ? std::nullopt : stored_chat_template(files_);
    if (!text) throw UserError(fmt::format("{}: has no chat template", choice_.source.text));
    return parse_chat_template(*text, files_.string());
  }

  void open(Backend& backend, const Weights& weights) {
    try {
      source_.emplace(backend, weights);
    } catch (const MemoryError& error) {
      unfit_ = error.what();
    }
  }

  void draw_weights(Backend& backend) { open(backend, RandomWeights(config_, spec_.seed)); }

  const JsonlData& questions(const DataSpec& data) {
    const auto found = questions_.find(data.source.text);
    if (found != questions_.end()) return found->second;
    return questions_.emplace(data.source.text, load_jsonl(resolve_path(spec_, data.source))).first->second;
  }

  Exam exam_of(const DataSpec& data, int index) {
    int left = index;
    int count = 0;
    for (const JsonlContext& context : questions(data).contexts) {
      if (!data.subset.empty() && context.task != data.subset) continue;
      ++count;
      if (left-- > 0) continue;
      Exam exam = make_exam(context, first_token_of(config_, tokenizer()), tokenizer());
      if (!data.metric.empty()) exam.metric = find_answer_metric(data.metric);
      return exam;
    }
    const std::string of = data.subset.empty() ? "" : fmt::format(" of the task '{}'", data.subset);
    throw UserError(fmt::format("{}: data: '{}' has {} contexts{}, expected more than {}", data.source.where,
                                data.source.text, count, of, index));
  }

  const TextData& text() {
    if (!text_) text_ = load_text(text_folder(spec_));
    return *text_;
  }

  TaskRequest request(const DataSpec& data, const Workload& workload, int index) {
    return {.task = data.source.text,
            .tokens = workload.tokens,
            .seed = spec_.seed,
            .index = static_cast<uint64_t>(index),
            .options = workload.options,
            .length = {},
            .first_token = first_token_of(config_, tokenizer())};
  }

  Sample sample(const DataSpec& data, const Workload& workload, int index) {
    switch (data.kind) {
      case DataKind::kTask:
        return draw(data, workload, index);
      case DataKind::kOwn:
        return own_sample(data, workload, index);
      default:
        return piece(data, workload, index);
    }
  }

  Sample own_sample(const DataSpec& data, const Workload& workload, int index) {
    const OwnTraces& written = own_traces_.at(data.name);
    const std::vector<const OwnAttempt*> traces = written.traces();
    const auto refuse = [&](const std::string& what) {
      throw UserError(fmt::format("{}: data: '{}': {}", data.source.where, data.name, what));
    };
    if (index >= std::ssize(traces)) {
      refuse(fmt::format("{} of {} attempts became traces, sample {} needs more", traces.size(),
                         written.attempts.size(), index));
    }
    if (workload.tokens > written.recipe.tokens) {
      refuse(fmt::format("its traces have {} tokens, expected {}", written.recipe.tokens, workload.tokens));
    }
    Sample sample = sample_of(*traces[static_cast<size_t>(index)], workload.tokens);
    sample.name = fmt::format("{} {}", data.name, index);
    return sample;
  }

  Sample draw(const DataSpec& data, const Workload& workload, int index) {
    return make_sample(request(data, workload, index), tokenizer(), text());
  }

  // Consecutive pieces of a file; each piece of a text starts with the model's first token.
  Sample piece(const DataSpec& data, const Workload& workload, int index) {
    const bool text = data.kind == DataKind::kText;
    const std::vector<int32_t>& ids = file_ids(data);
    const size_t lead = text ? 1 : 0;
    const size_t take = workload.tokens > 0 ? static_cast<size_t>(workload.tokens) - lead : ids.size();
    const size_t begin = static_cast<size_t>(index) * take;
    if (take == 0 || begin + take > ids.size()) {
      throw UserError(fmt::format("{}: data: '{}' has {} tokens, sample {} of {} tokens needs {}", data.source.where,
                                  data.source.text, ids.size(), index, take + lead, begin + take));
    }
    Sample sample;
    sample.name = fmt::format("{} {}", data.name, index);
    if (text) sample.ids.push_back(first_token_of(config_, tokenizer()));
    sample.ids.insert(sample.ids.end(), ids.begin() + static_cast<int64_t>(begin),
                      ids.begin() + static_cast<int64_t>(begin + take));
    sample.labels.assign(sample.ids.size(), Label::kContext);
    sample.context_tokens = static_cast<int32_t>(sample.ids.size());
    return sample;
  }

  const std::vector<int32_t>& file_ids(const DataSpec& data) {
    const auto [found, fresh] = ids_.try_emplace(data.source.text);
    if (!fresh) return found->second;
    const fs::path file = resolve_path(spec_, data.source);
    found->second = data.kind == DataKind::kIds ? read_ids(file) : tokenizer().encode(read_file(file));
    return found->second;
  }

  void check_ids(const Sample& sample, const DataSpec& data) const {
    for (size_t i = 0; i < sample.ids.size(); ++i) {
      if (sample.ids[i] >= 0 && sample.ids[i] < config_.vocab_size) continue;
      throw UserError(fmt::format("{}: data: '{}': token {} at {} is outside the vocabulary of {} ({} tokens)",
                                  data.source.where, data.source.text, sample.ids[i], i, name(), config_.vocab_size));
    }
  }

  const Spec& spec_;
  ModelChoice choice_;
  ModelConfig config_;
  SubjectIdentity identity_;
  fs::path files_;  // empty for random weights
  std::optional<ModelSource> source_;
  std::string unfit_;  // why there is no source
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;  // of exams, where the spec asks for it
  std::optional<TextData> text_;
  std::map<std::string, std::vector<int32_t>> ids_;
  std::map<std::string, JsonlData> questions_;   // by file
  std::map<std::string, OwnTraces> own_traces_;  // by the data's name
};

class TraceSubject final : public Subject {
 public:
  TraceSubject(Backend& backend, const Spec& spec) : backend_(backend) {
    for (const Located& path : spec.traces) traces_.push_back(Trace::open(resolve_path(spec, path)));
    identity_ = identity_of_traces(spec);
    for (const Trace& trace : traces_) views_.push_back(&trace);
    source(0, static_cast<int>(views_.size()));  // refuses traces of different shapes now, not in the middle of a run
  }

  const std::string& name() const override { return identity_.name; }
  const std::string& fingerprint() const override { return identity_.fingerprint; }

  std::vector<Sample> samples(const Workload&, int first, int count) override {
    std::vector<Sample> out;
    for (int i = first; i < first + count; ++i) out.push_back(traces_[static_cast<size_t>(i)].sample());
    return out;
  }

  std::function<std::string(std::span<const int32_t>)> decoder() override { return {}; }
  std::vector<Exam> exams(const Workload&, int, int) override { throw UserError("a trace asks nothing"); }
  std::vector<JsonlProblem> malformed(const Workload&) override { return {}; }
  const Tokenizer& tokenizer() override { throw UserError("a trace has no tokenizer"); }
  std::vector<int32_t> stop_ids() const override { return {}; }
  ModelSource* model() override { return nullptr; }

  Source& source(int first, int count) override {
    if (source_ && first == first_ && count == count_) return *source_;
    first_ = first;
    count_ = count;
    source_.emplace(backend_, std::span(views_).subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
    return *source_;
  }

 private:
  Backend& backend_;
  std::vector<Trace> traces_;
  std::vector<const Trace*> views_;
  SubjectIdentity identity_;
  std::optional<TraceSource> source_;
  int first_ = 0, count_ = 0;  // what source_ holds
};

}  // namespace

SubjectIdentity subject_identity(const Spec& spec, int model, const ModelIdentity& identity) {
  if (!spec.traces.empty()) return identity_of_traces(spec);
  return identity_of_model(spec, spec.models[static_cast<size_t>(model)], identity);
}

std::unique_ptr<Subject> open_subject(Backend& backend, const Spec& spec, int model, const ModelIdentity& identity) {
  if (!spec.traces.empty()) return std::make_unique<TraceSubject>(backend, spec);
  return std::make_unique<ModelSubject>(backend, spec, spec.models[static_cast<size_t>(model)], identity);
}

void refuse_text(const ModelChoice& choice) {
  throw UserError(
      fmt::format("{}: {} with random weights has no tokenizer; expected data with ids, or protocol latency",
                  choice.source.where, choice.source.text));
}

fs::path text_folder(const Spec& spec) {
  if (!spec.texts.text.empty()) return resolve_path(spec, spec.texts);
  return find_shipped(kShippedText, fs::path(spec.file).parent_path());
}

TextData load_shipped_text() { return load_text(find_shipped(kShippedText)); }

std::vector<int32_t> read_ids(const fs::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorInfo& tensor = file.require("input_ids");
  const bool row = tensor.shape.size() == 1 || (tensor.shape.size() == 2 && tensor.shape[0] == 1);
  if (!row || tensor.elements() == 0) {
    throw UserError(fmt::format("{}: input_ids has the shape {}, expected [T] with T >= 1", path.string(),
                                shape_text(tensor.shape)));
  }
  return file.read_i32(tensor);
}

}  // namespace kv
