#include "harness/protocols/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "sim/policy/params.h"
#include "sim/replay/prefill.h"
#include "sim/replay/run_footprint.h"
#include "sim/replay/schedule.h"
#include "sim/replay/stopwatch.h"
#include "sim/tasks/output_rates.h"

namespace kv {

namespace {

using Ids = std::vector<int32_t>;

Ids joined(const Ids& a, const Ids& b) {
  Ids all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

std::vector<std::span<const int32_t>> spans(const std::vector<Ids>& ids) { return {ids.begin(), ids.end()}; }

// A sample with fewer questions than others repeats its last one, and the answer is thrown away.
const ExamQuestion& question_of(const Exam& exam, size_t q) {
  return exam.questions[std::min(q, exam.questions.size() - 1)];
}

size_t most_questions(std::span<const Exam> exams) {
  size_t most = 0;
  for (const Exam& exam : exams) most = std::max(most, exam.questions.size());
  return most;
}

// What the sample generates alone: others of its batch may end at other ids, or may take longer.
Ids own_ids(const Ids& all, std::span<const int32_t> stop_ids, const ExamQuestion& question) {
  const auto end = all.begin() + std::min<int64_t>(std::ssize(all), question.max_new_tokens);
  const auto stop = std::find_first_of(all.begin(), end, stop_ids.begin(), stop_ids.end());
  return {all.begin(), stop == end ? end : stop + 1};
}

// Where generation may stop without cutting anyone short: ids that end every sample's answer.
Ids common_ids(const std::vector<Ids>& stop_ids) {
  Ids common = stop_ids.front();
  for (const Ids& own : stop_ids) {
    std::erase_if(common, [&](int32_t id) { return std::find(own.begin(), own.end(), id) == own.end(); });
  }
  return common;
}

void add(std::vector<Row>& rows, const Row& blank, const char* metric, double value, const char* unit) {
  rows.push_back(blank);
  rows.back().metric = metric;
  rows.back().value = value;
  rows.back().unit = unit;
}

LoopState copy_of(Backend& backend, const LoopState& state, std::span<const int32_t> room) {
  const int64_t pages = state.cache.pages_with(room);
  require_memory(backend, {.cache = state.cache.clone_bytes(pages)},
                 "a copy of the compressed contexts for a question");
  return {.cache = state.cache.clone(pages), .done = state.done, .events = state.events};
}

}  // namespace

// What is compressed at once, and what is then asked of it.
struct AnswerRunner::Round {
  bool query_aware = false;
  std::vector<Ids> contexts;      // [samples]
  std::vector<size_t> questions;  // numbers

  Ids continuation(const Exam& exam, size_t q) const {
    const ExamQuestion& question = question_of(exam, q);
    return query_aware ? question.prefix : joined(question.ids, question.prefix);
  }
};

AnswerRunner::AnswerRunner(AnswerBatch batch) : batch_(std::move(batch)), sampling_(parse_sampling(batch_.spec)) {
  Ids line_ends;
  for (const AnswerSample& sample : batch_.samples) {
    if (!sample.unavailable.empty()) continue;
    exams_.push_back(sample.exam);
    numbers_.push_back(sample.number);
    stop_ids_.push_back(batch_.subject.stop_ids());
    if (!sample.exam.one_line) continue;
    if (line_ends.empty()) line_ends = line_end_ids(batch_.subject.tokenizer());  // reads the whole vocabulary
    stop_ids_.back().insert(stop_ids_.back().end(), line_ends.begin(), line_ends.end());
  }
  if (!stop_ids_.empty()) common_stop_ids_ = common_ids(stop_ids_);
}

std::vector<Row> AnswerRunner::run(const Case& one) {
  if (outcomes_.empty()) answer_all();
  const auto found =
      std::find_if(batch_.cases.begin(), batch_.cases.end(), [&](const Case& other) { return &other == &one; });
  KV_CHECK(found != batch_.cases.end());
  return rows_of(one, outcomes_[static_cast<size_t>(found - batch_.cases.begin())]);
}

void AnswerRunner::answer_all() {
  outcomes_.resize(batch_.cases.size());
  for (Outcome& outcome : outcomes_) outcome.sheets.resize(exams_.size());
  if (exams_.empty()) return;
  answer_batch();
  std::vector<size_t> failed;
  for (size_t c = 0; c < outcomes_.size(); ++c) {
    if (!outcomes_[c].sheets.front().error.empty()) failed.push_back(c);
  }
  if (!failed.empty() && exams_.size() > 1) answer_alone(failed);
}

// One sample's error must not cost the others their answers.
void AnswerRunner::answer_alone(const std::vector<size_t>& cases) {
  std::vector<Case> own;
  for (const size_t c : cases) own.push_back(batch_.cases[c]);
  for (const size_t c : cases) outcomes_[c] = {.sheets = std::vector<Sheet>(exams_.size())};
  for (size_t s = 0; s < exams_.size(); ++s) {
    const AnswerSample sample{.number = numbers_[s], .exam = exams_[s]};
    AnswerRunner alone({.backend = batch_.backend,
                        .spec = batch_.spec,
                        .subject = batch_.subject,
                        .samples = std::span(&sample, 1),
                        .cases = own,
                        .data = batch_.data});
    alone.answer_all();
    for (size_t i = 0; i < cases.size(); ++i) {
      Outcome& outcome = outcomes_[cases[i]];
      outcome.sheets[s] = std::move(alone.outcomes_[i].sheets.front());
      outcome.prefill_seconds += alone.outcomes_[i].prefill_seconds;
      outcome.compress_seconds += alone.outcomes_[i].compress_seconds;
      outcome.answer_seconds += alone.outcomes_[i].answer_seconds;
    }
  }
}

void AnswerRunner::answer_batch() {
  for (const bool aware : {false, true}) {
    std::vector<size_t> cases;
    for (size_t i = 0; i < batch_.cases.size(); ++i) {
      if (batch_.cases[i].query_aware == aware) cases.push_back(i);
    }
    if (cases.empty()) continue;
    std::vector<size_t> questions(most_questions(exams_));
    std::iota(questions.begin(), questions.end(), size_t{0});
    if (!aware) {
      Round round{.query_aware = false, .contexts = {}, .questions = questions};
      for (const Exam& exam : exams_) round.contexts.push_back(exam.context);
      answer_round(round, cases);
      continue;
    }
    for (const size_t q : questions) {
      Round round{.query_aware = true, .contexts = {}, .questions = {q}};
      for (const Exam& exam : exams_) round.contexts.push_back(joined(exam.context, question_of(exam, q).ids));
      answer_round(round, cases);
    }
  }
}

// Entries a head that a case keeps of each context. Throws UserError where its policy cannot keep so few: before
// anything is ranked, because a scorer may take it for granted.
std::vector<int32_t> AnswerRunner::kept_of(const Round& round, const Case& one, const Policy& policy) {
  std::vector<int32_t> keep;
  for (const Ids& context : round.contexts) {
    const auto tokens = static_cast<int32_t>(context.size());
    keep.push_back(policy.scorer ? kept_tokens(tokens, one.keep) : tokens);
    if (policy.scorer) policy.scorer->check_budget(keep.back(), 0);
  }
  return keep;
}

void AnswerRunner::answer_round(const Round& round, const std::vector<size_t>& cases) {
  struct Asked {
    Outcome* outcome;
    Policy policy;
    std::vector<int32_t> keep;
  };
  const auto fail = [](Outcome& outcome, const UserError& error) {
    for (Sheet& sheet : outcome.sheets) sheet.error = error.what();
  };
  std::vector<Asked> asked;
  for (const size_t c : cases) {
    try {
      Policy policy = load_case_policy(batch_.spec, batch_.cases[c]);
      std::vector<int32_t> keep = kept_of(round, batch_.cases[c], policy);
      asked.push_back({&outcomes_[c], std::move(policy), std::move(keep)});
    } catch (const UserError& error) {
      fail(outcomes_[c], error);
    }
  }
  std::vector<Policy*> policies;
  for (Asked& one : asked) policies.push_back(&one.policy);
  const auto contexts = spans(round.contexts);
  std::optional<Prefill> prefill;
  try {
    batch_.subject.source(numbers_.front(), static_cast<int>(exams_.size()));  // throws where the model does not fit
    prefill.emplace(PrefillArgs{.backend = batch_.backend,
                                .source = *batch_.subject.model(),
                                .contexts = contexts,
                                .policies = policies,
                                .seed = batch_.spec.seed,
                                .sample_numbers = numbers_,
                                .prefill_chunk = batch_.spec.prefill_chunk});
  } catch (const UserError& error) {
    for (Asked& one : asked) fail(*one.outcome, error);
    return;
  }
  std::map<std::string, const Outcome*> without_scorer;  // the full cache answers alike at every point of the axes
  for (size_t i = 0; i < asked.size(); ++i) {
    Outcome& outcome = *asked[i].outcome;
    const Policy& policy = asked[i].policy;
    if (const auto found = without_scorer.find(policy.scorer_name); found != without_scorer.end()) {
      outcome = *found->second;
      continue;
    }
    try {
      outcome.prefill_seconds += prefill->seconds();
      outcome.compress_seconds += prefill->score_seconds(i);
      LoopState state =
          prefill->compressed(i, asked[i].keep, outcome.compress_seconds, room_of(round, round.questions));
      answer_case(round, std::move(state), outcome);
      if (!policy.scorer) without_scorer.emplace(policy.scorer_name, &outcome);
    } catch (const UserError& error) {
      fail(outcome, error);
    }
  }
}

void AnswerRunner::answer_case(const Round& round, LoopState state, Outcome& outcome) {
  note_kept(state, outcome);
  Stopwatch watch(batch_.backend);
  watch.start();
  const size_t last = round.questions.back();
  for (const size_t q : round.questions) {
    if (q != last) mark(q, ask(round, q, copy_of(batch_.backend, state, room_of(round, {&q, 1}))), outcome);
  }
  mark(last, ask(round, last, std::move(state)), outcome);
  watch.stop(outcome.answer_seconds);
}

int AnswerRunner::most_new_tokens(size_t question) const {
  int most = 1;
  for (const Exam& exam : exams_) most = std::max(most, question_of(exam, question).max_new_tokens);
  return most;
}

// Entries that the longest of these questions and its answer add to each context. The last new token is never
// processed.
std::vector<int32_t> AnswerRunner::room_of(const Round& round, std::span<const size_t> questions) const {
  std::vector<int32_t> room(exams_.size(), 0);
  for (const size_t q : questions) {
    for (size_t s = 0; s < exams_.size(); ++s) {
      const auto asked = static_cast<int32_t>(round.continuation(exams_[s], q).size());
      room[s] = std::max(room[s], asked + most_new_tokens(q) - 1);
    }
  }
  return room;
}

void AnswerRunner::mark(size_t q, const GenerateResult& result, Outcome& outcome) {
  for (size_t s = 0; s < exams_.size(); ++s) {
    const Exam& exam = exams_[s];
    if (q >= exam.questions.size()) continue;
    const ExamQuestion& question = exam.questions[q];
    const Ids ids = own_ids(result.sequences[s].ids, stop_ids_[s], question);
    Answer answer{.text = answer_text(exam, ids, stop_ids_[s], batch_.subject.tokenizer()),
                  .repetition = repetition_rate(ids),
                  .truncated = is_truncated(ids, stop_ids_[s]),
                  .tokens = static_cast<int>(ids.size())};
    answer.grade = grade(exam.metric, answer.text, question.answers);
    outcome.sheets[s].answers.push_back(std::move(answer));
  }
}

GenerateResult AnswerRunner::ask(const Round& round, size_t question, LoopState state) {
  std::vector<Ids> prompts;
  for (size_t s = 0; s < exams_.size(); ++s) {
    prompts.push_back(joined(round.contexts[s], round.continuation(exams_[s], question)));
  }
  Policy full = make_policy("full", {});
  const auto sequences = spans(prompts);
  return generate({.backend = batch_.backend,
                   .source = *batch_.subject.model(),
                   .policy = full,
                   .prompts = sequences,
                   .resumed = &state,
                   .max_new_tokens = most_new_tokens(question),
                   .stop_ids = common_stop_ids_,
                   .sampling = sampling_,
                   .seed = batch_.spec.seed,
                   .sample_numbers = numbers_,
                   .prefill_chunk = batch_.spec.prefill_chunk});
}

// Rounds of one case differ by a question's length; their mean would say no more.
void AnswerRunner::note_kept(const LoopState& state, Outcome& outcome) const {
  const CacheShape& shape = state.cache.shape();
  for (size_t s = 0; s < outcome.sheets.size(); ++s) {
    int64_t total = 0;
    Sheet& sheet = outcome.sheets[s];
    sheet.kept_max = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto lengths = state.cache.lengths(layer).subspan(s * static_cast<size_t>(shape.kv_heads),
                                                              static_cast<size_t>(shape.kv_heads));
      total = std::accumulate(lengths.begin(), lengths.end(), total);
      sheet.kept_max = std::max<int64_t>(sheet.kept_max, *std::max_element(lengths.begin(), lengths.end()));
    }
    sheet.kept_mean = static_cast<double>(total) / (shape.layers * shape.kv_heads);
    sheet.kv_bytes = static_cast<double>(state.cache.used_pages(static_cast<int>(s))) *
                     static_cast<double>(state.cache.kv_page_bytes());
  }
}

Row AnswerRunner::blank(const Case& one, int32_t number) const {
  Row row;
  row.experiment = batch_.spec.name;
  row.model = batch_.subject.name();
  row.data = batch_.data;
  row.policy = batch_.spec.policies[static_cast<size_t>(one.policy)].label;
  row.device = batch_.spec.device;
  row.sample = number;
  row.seed = static_cast<int64_t>(batch_.spec.seed);
  row.axes = one.axes;
  return row;
}

std::vector<Row> AnswerRunner::rows_of(const Case& one, const Outcome& outcome) const {
  std::vector<Row> rows;
  const double share = 1.0 / static_cast<double>(std::max<size_t>(1, exams_.size()));
  size_t next = 0;  // among the samples that have an exam
  for (const AnswerSample& sample : batch_.samples) {
    const Row base = blank(one, sample.number);
    const Sheet* found = sample.unavailable.empty() ? &outcome.sheets[next++] : nullptr;
    if (!found || !found->error.empty()) {
      rows.push_back(base);
      rows.back().skipped = found ? found->error : sample.unavailable;
      continue;
    }
    const Sheet& sheet = *found;
    const auto count = static_cast<double>(sheet.answers.size());
    const auto mean = [&](const auto& value) {
      double sum = 0;
      for (const Answer& answer : sheet.answers) sum += static_cast<double>(value(answer));
      return sum / count;
    };
    add(rows, base, "accuracy", mean([](const Answer& answer) { return answer.grade; }), "");
    for (size_t q = 0; q < sheet.answers.size(); ++q) {
      add(rows, base, "answer", sheet.answers[q].grade, "");
      rows.back().x = static_cast<double>(q);
      rows.back().text = sheet.answers[q].text;
    }
    add(rows, base, "answer_tokens", mean([](const Answer& answer) { return answer.tokens; }), "tokens");
    add(rows, base, "repetition_rate", mean([](const Answer& answer) { return answer.repetition; }), "");
    add(rows, base, "truncation_rate", mean([](const Answer& answer) { return answer.truncated ? 1 : 0; }), "");
    add(rows, base, "kept_tokens", sheet.kept_mean, "tokens");
    add(rows, base, "kept_tokens_max", static_cast<double>(sheet.kept_max), "tokens");
    add(rows, base, "kept_kv_bytes", sheet.kv_bytes, "bytes");
    add(rows, base, "prefill_time", outcome.prefill_seconds * share, "s");
    add(rows, base, "compress_time", outcome.compress_seconds * share, "s");
    add(rows, base, "answer_time", outcome.answer_seconds * share, "s");
  }
  return rows;
}

void gate_by_full_cache(const Spec& spec, std::span<const Case> cases, std::span<std::vector<Row>> rows) {
  double sum = 0;
  int64_t samples = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (make_case_policy(spec, cases[i]).scorer) continue;
    for (const Row& row : rows[i]) {
      if (row.metric != "accuracy" || !row.value) continue;
      sum += *row.value;
      ++samples;
    }
  }
  if (samples > 0 && sum >= kLeastFullAccuracy * static_cast<double>(samples)) return;
  const std::string reason = samples == 0
                                 ? "the full cache has no score"
                                 : fmt::format("the full cache scores {:.1f} %, under {:.0f} %",
                                               100 * sum / static_cast<double>(samples), 100 * kLeastFullAccuracy);
  for (std::vector<Row>& own : rows) {
    std::vector<Row> skipped;
    for (const Row& row : own) {
      if (row.metric != "accuracy" && row.skipped.empty()) continue;
      skipped.push_back(row);
      skipped.back().value.reset();
      if (row.skipped.empty()) skipped.back().skipped = reason;
    }
    own = std::move(skipped);
  }
}

Sampling parse_sampling(const Spec& spec) {
  Params params("sampling", spec.sampling);
  Sampling sampling{.seed = spec.seed};
  sampling.temperature = static_cast<float>(params.get("temperature", 0.0, "0: greedy"));
  sampling.top_k = params.get("top_k", 0, "0: all");
  sampling.top_p = static_cast<float>(params.get("top_p", 1.0, "1: all"));
  params.finish();
  check_sampling(sampling);
  return sampling;
}

}  // namespace kv
