#include "harness/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "sim/params.h"
#include "sim/prefill.h"
#include "sim/schedule.h"
#include "sim/stopwatch.h"
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

void add(std::vector<Row>& rows, const Row& blank, const char* metric, double value, const char* unit) {
  rows.push_back(blank);
  rows.back().metric = metric;
  rows.back().value = value;
  rows.back().unit = unit;
}

LoopState copy_of(const LoopState& state) {
  return {.cache = state.cache.clone(), .done = state.done, .events = state.events};
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
  for (size_t s = 0; s < batch_.exams.size(); ++s) numbers_.push_back(batch_.first + static_cast<int32_t>(s));
}

std::vector<Row> AnswerRunner::run(const Case& one) {
  std::vector<Row> rows;
  if (!batch_.unavailable.empty()) {
    rows.push_back(blank(one, 0));
    rows.back().skipped = batch_.unavailable;
    return rows;
  }
  if (outcomes_.empty()) answer_all();
  const auto found =
      std::find_if(batch_.cases.begin(), batch_.cases.end(), [&](const Case& other) { return &other == &one; });
  KV_CHECK(found != batch_.cases.end());
  return rows_of(one, outcomes_[static_cast<size_t>(found - batch_.cases.begin())]);
}

void AnswerRunner::answer_all() {
  outcomes_.resize(batch_.cases.size());
  for (Outcome& outcome : outcomes_) outcome.sheets.resize(batch_.exams.size());
  for (const bool aware : {false, true}) {
    std::vector<size_t> cases;
    for (size_t i = 0; i < batch_.cases.size(); ++i) {
      if (batch_.cases[i].query_aware == aware) cases.push_back(i);
    }
    if (cases.empty()) continue;
    std::vector<size_t> questions(most_questions(batch_.exams));
    std::iota(questions.begin(), questions.end(), size_t{0});
    if (!aware) {
      Round round{.query_aware = false, .contexts = {}, .questions = questions};
      for (const Exam& exam : batch_.exams) round.contexts.push_back(exam.context);
      answer_round(round, cases);
      continue;
    }
    for (const size_t q : questions) {
      Round round{.query_aware = true, .contexts = {}, .questions = {q}};
      for (const Exam& exam : batch_.exams) round.contexts.push_back(joined(exam.context, question_of(exam, q).ids));
      answer_round(round, cases);
    }
  }
}

void AnswerRunner::answer_round(const Round& round, std::vector<size_t> cases) {
  std::vector<Policy> policies;
  for (const size_t i : cases) policies.push_back(make_case_policy(batch_.spec, batch_.cases[i]));
  std::vector<Policy*> pointers;
  for (Policy& policy : policies) pointers.push_back(&policy);
  const auto contexts = spans(round.contexts);
  const auto fail = [&](size_t c, const UserError& error) { outcomes_[cases[c]].error = error.what(); };
  std::optional<Prefill> prefill;
  try {
    batch_.subject.source(batch_.first, static_cast<int>(batch_.exams.size()));  // throws where the model does not fit
    prefill.emplace(PrefillArgs{.backend = batch_.backend,
                                .source = *batch_.subject.model(),
                                .contexts = contexts,
                                .policies = pointers,
                                .seed = batch_.spec.seed,
                                .sample_numbers = numbers_,
                                .prefill_chunk = batch_.spec.prefill_chunk});
  } catch (const UserError& error) {
    for (size_t c = 0; c < cases.size(); ++c) fail(c, error);
    return;
  }
  std::map<std::string, size_t> without_scorer;  // the full cache answers alike at every point of the axes
  for (size_t c = 0; c < cases.size(); ++c) {
    Outcome& outcome = outcomes_[cases[c]];
    if (!policies[c].scorer) {
      const auto [found, fresh] = without_scorer.emplace(policies[c].scorer_name, cases[c]);
      if (!fresh) {
        outcome = outcomes_[found->second];
        continue;
      }
    }
    try {
      outcome.prefill_seconds += prefill->seconds();
      std::vector<int32_t> keep;
      for (const Ids& context : round.contexts) {
        const auto tokens = static_cast<int32_t>(context.size());
        keep.push_back(policies[c].scorer ? kept_tokens(tokens, batch_.cases[cases[c]].keep) : tokens);
      }
      answer_case(round, prefill->compressed(c, keep, outcome.compress_seconds), outcome);
    } catch (const UserError& error) {
      fail(c, error);
    }
  }
}

void AnswerRunner::answer_case(const Round& round, LoopState state, Outcome& outcome) {
  note_kept(state, outcome);
  Stopwatch watch(batch_.backend);
  watch.start();
  const size_t last = round.questions.back();
  for (const size_t q : round.questions) {
    if (q != last) mark(q, ask(round, q, copy_of(state)), outcome);
  }
  mark(last, ask(round, last, std::move(state)), outcome);
  watch.stop(outcome.answer_seconds);
}

void AnswerRunner::mark(size_t q, const GenerateResult& result, Outcome& outcome) {
  for (size_t s = 0; s < batch_.exams.size(); ++s) {
    const Exam& exam = batch_.exams[s];
    if (q >= exam.questions.size()) continue;
    const ExamQuestion& question = exam.questions[q];
    Ids ids = result.sequences[s].ids;
    ids.resize(std::min(ids.size(), static_cast<size_t>(question.max_new_tokens)));
    Answer answer{.text = answer_text(exam, ids, stop_ids_, batch_.subject.tokenizer()),
                  .repetition = repetition_rate(ids),
                  .truncated = is_truncated(ids, stop_ids_),
                  .tokens = static_cast<int>(ids.size())};
    answer.grade = grade(exam.metric, answer.text, question.answers);
    outcome.sheets[s].answers.push_back(std::move(answer));
  }
}

GenerateResult AnswerRunner::ask(const Round& round, size_t question, LoopState state) {
  std::vector<Ids> prompts;
  int most_new = 1;
  bool one_line = true;
  for (size_t s = 0; s < batch_.exams.size(); ++s) {
    const Exam& exam = batch_.exams[s];
    prompts.push_back(joined(round.contexts[s], round.continuation(exam, question)));
    most_new = std::max(most_new, question_of(exam, question).max_new_tokens);
    one_line = one_line && exam.one_line;
  }
  stop_ids_ = batch_.subject.stop_ids();
  if (one_line) {
    const Ids line_ends = line_end_ids(batch_.subject.tokenizer());
    stop_ids_.insert(stop_ids_.end(), line_ends.begin(), line_ends.end());
  }
  Policy full = make_policy("full", {});
  const auto sequences = spans(prompts);
  return generate({.backend = batch_.backend,
                   .source = *batch_.subject.model(),
                   .policy = full,
                   .prompts = sequences,
                   .resumed = &state,
                   .max_new_tokens = most_new,
                   .stop_ids = stop_ids_,
                   .sampling = sampling_,
                   .seed = batch_.spec.seed,
                   .sample_numbers = numbers_,
                   .prefill_chunk = batch_.spec.prefill_chunk});
}

// Rounds of one case differ by a question's length; their mean would say no more.
void AnswerRunner::note_kept(const LoopState& state, Outcome& outcome) const {
  const CacheShape& shape = state.cache.shape();
  const double entry_bytes = 2.0 * shape.head_dim * static_cast<double>(bytes_of(batch_.backend.activation_type()));
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
    sheet.kv_bytes = static_cast<double>(total) * entry_bytes;
  }
}

Row AnswerRunner::blank(const Case& one, int sample) const {
  Row row;
  row.experiment = batch_.spec.name;
  row.model = batch_.subject.name();
  row.data = batch_.data;
  row.policy = batch_.spec.policies[static_cast<size_t>(one.policy)].label;
  row.device = batch_.spec.device;
  row.sample = batch_.first + sample;
  row.seed = static_cast<int64_t>(batch_.spec.seed);
  row.axes = one.axes;
  return row;
}

std::vector<Row> AnswerRunner::rows_of(const Case& one, const Outcome& outcome) const {
  std::vector<Row> rows;
  const double share = 1.0 / static_cast<double>(batch_.exams.size());
  for (size_t s = 0; s < batch_.exams.size(); ++s) {
    const Row base = blank(one, static_cast<int>(s));
    if (!outcome.error.empty()) {
      rows.push_back(base);
      rows.back().skipped = outcome.error;
      continue;
    }
    const Sheet& sheet = outcome.sheets[s];
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
    add(rows, base, "kv_bytes", sheet.kv_bytes, "bytes");
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
  if (samples == 0 || sum >= kLeastFullAccuracy * static_cast<double>(samples)) return;
  for (std::vector<Row>& own : rows) {
    std::vector<Row> skipped;
    for (const Row& row : own) {
      if (row.metric != "accuracy") continue;
      skipped.push_back(row);
      skipped.back().value.reset();
      skipped.back().skipped = fmt::format("the full cache scores {:.1f} %, under {:.0f} %",
                                           100 * sum / static_cast<double>(samples), 100 * kLeastFullAccuracy);
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
  return sampling;
}

}  // namespace kv
