#include "harness/own_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "harness/files.h"
#include "harness/folder_lock.h"
#include "harness/manifest.h"
#include "harness/model_folder.h"
#include "harness/model_tokenizer.h"
#include "harness/own_data.h"
#include "harness/spec/grid.h"
#include "harness/spec/model_choice.h"
#include "harness/spec/own_options.h"
#include "harness/subject.h"
#include "kernels/error.h"
#include "sim/io/xz.h"
#include "sim/model/chat_template.h"
#include "sim/model/model_files.h"
#include "sim/replay/turns.h"
#include "sim/tasks/output_rates.h"
#include "sim/tasks/own_prompts.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

constexpr int kAttemptsATrace = 4;

// What the model wrote, without the prompts between.
std::vector<int32_t> written_ids(const TurnsText& text) {
  std::vector<int32_t> ids;
  auto at = text.ids.begin();
  for (const OwnTurn& turn : text.turns) {
    at += turn.prompt;
    ids.insert(ids.end(), at, at + turn.written);
    at += turn.written;
  }
  return ids;
}

OwnAttempt judged(TurnsText text, const OwnRecipe& recipe) {
  const std::vector<int32_t> written = written_ids(text);
  OwnAttempt attempt{.repetition = repetition_rate(written), .written = static_cast<int>(written.size())};
  if (std::ssize(text.ids) < recipe.tokens) {
    attempt.refused = fmt::format("ends early: after {} of {} tokens and {} turns", text.ids.size(), recipe.tokens,
                                  text.turns.size());
  } else if (attempt.repetition > recipe.repetition) {
    attempt.refused =
        fmt::format("repeats itself: a rate of {:.3f}, expected at most {}", attempt.repetition, recipe.repetition);
  } else {
    attempt.turns = std::move(text.turns);
    attempt.ids = std::move(text.ids);
  }
  return attempt;
}

// The code in an origin (harness/manifest.h).
std::string code_of(const std::string& origin) {
  const nlohmann::json facts = nlohmann::json::parse(origin);
  return facts.value("commit", nlohmann::json()).dump() + facts.value("changes", nlohmann::json()).dump();
}

// The traces of one entry, on disk: finished ones, or those of a writer that was killed.
class OwnStore {
 public:
  OwnStore(fs::path file, const OwnTraces& blank, bool fresh)
      : file_(std::move(file)), fresh_(fresh), code_(code_of(blank.origin)), traces_(blank) {
    unfinished_ = fs::path(file_).replace_extension(".unfinished");
    std::error_code error;  // a folder that cannot be made is one that cannot be written to
    fs::create_directories(file_.parent_path(), error);
    lock_.emplace(file_.parent_path(), "kvlab write; wait for it");
    if (fresh) {
      remove_file(unfinished_);
    } else {
      go_on();
    }
  }

  const fs::path& file() const { return file_; }
  const OwnTraces& traces() const { return traces_; }
  int kept() const { return static_cast<int>(std::ssize(traces_.traces())); }

  // Before more is written: one file is by one version of the code.
  void require_same_code() const {
    if (code_of(traces_.origin) == code_) return;
    throw UserError(fmt::format(
        "{}: holds attempts by another version of the code, and too few; --fresh writes it anew", file_.string()));
  }

  void add(std::vector<OwnAttempt> attempts) {
    std::move(attempts.begin(), attempts.end(), std::back_inserter(traces_.attempts));
    std::string text = own_head(traces_);
    for (size_t i = 0; i < traces_.attempts.size(); ++i) text += own_line(i, traces_.attempts[i]);
    write_atomically(unfinished_, text);
  }

  // Attempts after the last trace that is wanted do not count, but a file that has more traces keeps them.
  void finish(int wanted) {
    wanted = std::max(wanted, std::min(kept(), traces_in_file()));
    int traces = 0;
    size_t count = 0;
    while (count < traces_.attempts.size() && traces < wanted) {
      traces += traces_.attempts[count++].refused.empty() ? 1 : 0;
    }
    traces_.attempts.resize(count);
    write_atomically(file_, xz(format_own_traces(traces_)));
    remove_file(unfinished_);
  }

 private:
  void go_on() {
    std::error_code error;
    if (fs::exists(unfinished_, error)) {
      take(parse_own_traces(read_file(unfinished_), unfinished_.string(), OwnFile::kPartial), unfinished_);
    } else if (fs::exists(file_, error)) {
      take(read_whole(), file_);
    }
  }

  OwnTraces read_whole() const { return parse_own_traces(unxz(read_file(file_), file_.string()), file_.string()); }

  int traces_in_file() const {
    std::error_code error;
    if (fresh_ || !fs::exists(file_, error)) return 0;
    const OwnTraces whole = read_whole();
    return whole.recipe == traces_.recipe ? static_cast<int>(std::ssize(whole.traces())) : 0;
  }

  void take(OwnTraces found, const fs::path& file) {
    if (found.recipe != traces_.recipe) {
      throw UserError(
          fmt::format("{}: holds attempts of another recipe (model, prompts, sampling, length or device); --fresh "
                      "writes it anew",
                      file.string()));
    }
    traces_ = std::move(found);
  }

  fs::path file_, unfinished_;
  std::optional<FolderLock> lock_;
  bool fresh_;
  std::string code_;
  OwnTraces traces_;
};

// One model with all that its texts are written with.
class OwnWriter {
 public:
  OwnWriter(const Spec& spec, Backend& backend, const ModelIdentity& model, const OwnWriterOptions& options)
      : spec_(spec),
        backend_(backend),
        model_(model),
        options_(options),
        config_(load_model_config(model.files())),
        tokenizer_(load_tokenizer(model.files())) {}

  OwnWritten write(const DataSpec& data, int tokens) {
    choice_ = parse_own_options(data);
    if (choice_.prompts.text.empty()) {
      throw UserError(fmt::format("{}: data: '{}' lacks the key 'prompts': what the model writes from",
                                  data.source.where, data.name));
    }
    const PromptFile file = load_prompts(resolve_path(spec_, choice_.prompts));
    const OwnPrompts prompts(file, choice_.seed, chat(), first_token_of(config_, tokenizer_), tokenizer_);
    OwnStore store(target(data), {.recipe = recipe(file, prompts, tokens), .origin = origin()}, options_.fresh);
    OwnWritten result{.file = store.file(), .wanted = data.samples};
    result.written_before = static_cast<int>(store.traces().attempts.size());
    Progress progress(options_.verbosity, data.samples);
    progress.reused(std::min(store.kept(), data.samples));
    const bool complete = store.kept() >= data.samples && result.written_before > 0;
    if (!complete || !is_whole(store.file())) {
      if (store.kept() < data.samples) store.require_same_code();
      while (store.kept() < data.samples && next(store) < cap(data)) {
        const int missing = std::min(data.samples - store.kept(), cap(data) - next(store));
        write_batch(store, prompts, std::min(batch(), missing), progress);
      }
      require_some(store);
      store.finish(data.samples);
    }
    result.traces = store.kept();
    result.attempts = static_cast<int>(store.traces().attempts.size());
    return result;
  }

 private:
  static int next(const OwnStore& store) { return static_cast<int>(store.traces().attempts.size()); }
  int cap(const DataSpec& data) const {
    return options_.attempts > 0 ? options_.attempts : kAttemptsATrace * data.samples;
  }

  static bool is_whole(const fs::path& file) {
    std::error_code error;
    return fs::exists(file, error) && !fs::exists(fs::path(file).replace_extension(".unfinished"), error);
  }

  // Where another model's traces are asked for, or a file by name, that is what exists already.
  fs::path target(const DataSpec& data) const {
    if (choice_.traces.text.empty() && !choice_.any_writer) return own_traces_file(spec_, data, model_);
    throw UserError(
        fmt::format("{}: data: '{}' reads given traces, expected neither traces nor writer where a model is to "
                    "write",
                    data.source.where, data.name));
  }

  std::optional<ChatTemplate> chat() const {
    if (!choice_.stored_template) return std::nullopt;
    const auto text = stored_chat_template(model_.files());
    if (!text) return std::nullopt;
    return parse_chat_template(*text, model_.files().string());
  }

  OwnRecipe recipe(const PromptFile& file, const OwnPrompts& prompts, int tokens) const {
    return {.model = model_name(model_.files()),
            .model_sha256 = model_.fingerprint(),
            .vocabulary = config_.vocab_size,
            .vocabulary_sha256 = vocabulary_sha256(tokenizer_),
            .prompts = fs::path(choice_.prompts.text).filename().string(),
            .prompts_sha256 = file.sha256,
            .wording = std::string(prompts.wording()),
            .temperature = choice_.temperature,
            .top_p = choice_.top_p,
            .seed = choice_.seed,
            .tokens = tokens,
            .turns = choice_.turns,
            .repetition = choice_.repetition,
            .device = spec_.device};
  }

  std::string origin() const { return origin_json(spec_, backend_.accelerator()); }

  ModelSource& source() {
    if (!source_) source_.emplace(backend_, load_model(model_.files()));
    return *source_;
  }

  int batch() const {
    if (options_.batch > 0) return options_.batch;
    return backend_.accelerator().empty() ? 8 : 64;
  }

  void write_batch(OwnStore& store, const OwnPrompts& prompts, int count, Progress& progress) {
    const OwnRecipe& recipe = store.traces().recipe;
    std::vector<int32_t> numbers(static_cast<size_t>(count)), stop_ids = prompts.stop_ids();
    std::iota(numbers.begin(), numbers.end(), next(store));
    stop_ids.insert(stop_ids.end(), config_.eos_ids.begin(), config_.eos_ids.end());
    const auto said = [&](int64_t written) {
      progress.going_on(fmt::format("attempts {} to {}: {} tokens", numbers.front(), numbers.back(), written));
    };
    std::vector<TurnsText> texts =
        write_turns({.backend = backend_,
                     .source = source(),
                     .numbers = numbers,
                     .sampling = {.temperature = static_cast<float>(choice_.temperature),
                                  .top_p = static_cast<float>(choice_.top_p),
                                  .seed = static_cast<uint64_t>(choice_.seed)},
                     .stop_ids = stop_ids,
                     .tokens = recipe.tokens,
                     .turns = recipe.turns,
                     .prompt = [&](int32_t number, int turn, int32_t last) { return prompts.turn(number, turn, last); },
                     .progress = said});
    const int kept = store.kept();
    std::vector<OwnAttempt> attempts;
    for (TurnsText& text : texts) attempts.push_back(judged(std::move(text), recipe));
    store.add(std::move(attempts));
    progress.done(store.kept() - kept);
  }

  static void require_some(const OwnStore& store) {
    if (store.kept() > 0) return;
    const std::vector<OwnAttempt>& attempts = store.traces().attempts;
    throw UserError(fmt::format("{}: none of {} attempts became a trace; the first {}", store.file().string(),
                                attempts.size(), attempts.front().refused));
  }

  const Spec& spec_;
  Backend& backend_;
  const ModelIdentity& model_;
  const OwnWriterOptions& options_;
  ModelConfig config_;
  Tokenizer tokenizer_;
  OwnOptions choice_;
  std::optional<ModelSource> source_;  // once something is to be written
};

// The longest that any point of the axes reads; the others read its beginning.
int longest(const Grid& grid, int model, int data) {
  int tokens = 0;
  for (const Workload& workload : grid.workloads) {
    if (workload.model == model && workload.data == data) tokens = std::max(tokens, workload.tokens);
  }
  return tokens;
}

}  // namespace

std::vector<OwnWritten> write_own_traces(const Spec& spec, const OwnWriterOptions& options) {
  const Grid grid = make_grid(spec);
  const auto is_own = [](const DataSpec& data) { return data.kind == DataKind::kOwn; };
  if (std::none_of(spec.data.begin(), spec.data.end(), is_own)) {
    throw UserError(fmt::format("{}: no entry of data is a 'task: own', so there is nothing to write", spec.file));
  }
  for (const ModelChoice& choice : spec.models) {
    if (choice.random) refuse_text(choice);
    find_model_files(spec, choice);
  }
  const auto backend = make_backend(spec.device);
  std::vector<OwnWritten> all;
  for (int model = 0; model < static_cast<int>(spec.models.size()); ++model) {
    OwnWriter writer(spec, *backend, grid.models[static_cast<size_t>(model)], options);
    for (int data = 0; data < static_cast<int>(spec.data.size()); ++data) {
      const DataSpec& entry = spec.data[static_cast<size_t>(data)];
      if (is_own(entry)) all.push_back(writer.write(entry, longest(grid, model, data)));
    }
  }
  return all;
}

}  // namespace kv
