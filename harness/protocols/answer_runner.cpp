#include "harness/protocols/answer_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "harness/protocols/pruning.h"
#include "harness/spec/case_policy.h"
#include "sim/io/hash.h"
#include "sim/policy/params.h"
#include "sim/replay/prefill.h"
#include "sim/replay/replay.h"
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
  size_t largest = 0;
  for (const Exam& exam : exams) largest = std::max(largest, exam.questions.size());
  return largest;
}

// What the sample generates alone: others of its batch may end at other ids, or may take longer.
Ids ids_alone(const Ids& all, std::span<const int32_t> stop_ids, const ExamQuestion& question) {
  const auto end = all.begin() + std::min<int64_t>(std::ssize(all), question.max_new_tokens);
  const auto stop = std::find_first_of(all.begin(), end, stop_ids.begin(), stop_ids.end());
  return {all.begin(), stop == end ? end : stop + 1};
}

// Where generation may stop without cutting anyone short: ids that end every sample's answer.
Ids common_stop_ids(const std::vector<Ids>& stop_ids) {
  Ids common = stop_ids.front();
  for (const Ids& ends : stop_ids) {
    std::erase_if(common, [&](int32_t id) { return std::find(ends.begin(), ends.end(), id) == ends.end(); });
  }
  return common;
}

LoopState copy_of(Backend& backend, const LoopState& state, std::span<const int32_t> room) {
  const int64_t pages = state.cache.pages_with(room);
  require_memory(backend, {.cache = state.cache.clone_bytes(pages)},
                 "a copy of the compressed contexts for a question");
  return {.cache = state.cache.clone(pages), .done = state.done, .events = state.events};
}

std::string hash_of_exam(const Exam& exam) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(exam.context)));
  for (const ExamQuestion& question : exam.questions) {
    hash.update(fmt::format("\n{} {} {}\n", question.ids.size(), question.prefix.size(), question.max_new_tokens));
    hash.update(std::as_bytes(std::span(question.ids)));
    hash.update(std::as_bytes(std::span(question.prefix)));
    for (const std::string& answer : question.answers) hash.update(fmt::format("{} {}", answer.size(), answer));
  }
  hash.update(fmt::format("{} {}", metric_name(exam.metric), exam.one_line));
  return hash.hex();
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

// A case that is answered in a round.
struct AnswerRunner::Candidate {
  Outcome* outcome;
  const Case* unit_case;
  Policy policy;
  std::vector<int32_t> keep{};  // of a case that is compressed once, or of the full cache

  bool is_pruned() const { return policy.scorer && kv::is_pruned(*unit_case); }
};

std::vector<AnswerSample> read_answer_samples(const UnitBatch& batch) {
  std::vector<AnswerSample> samples;
  for (int number = batch.first; number < batch.first + batch.count; ++number) {
    AnswerSample& sample = samples.emplace_back(AnswerSample{.number = number});
    try {
      sample.exam = std::move(batch.subject.exams(batch.workload, number, 1).front());
    } catch (const UserError& error) {
      sample.unavailable = error.what();
    }
  }
  return samples;
}

AnswerRunner::AnswerRunner(const UnitBatch& batch, std::vector<AnswerSample> samples)
    : batch_(batch),
      samples_(std::move(samples)),
      sampling_(sampling_of(batch.spec)),
      needles_(needles_of(batch.spec)) {}

std::string AnswerRunner::inputs() const {
  std::string hashes;
  for (const AnswerSample& sample : samples_) {
    hashes += sample.unavailable.empty() ? hash_of_exam(sample.exam) : sample.unavailable;
  }
  return sha256_hex(hashes);
}

std::vector<std::string> AnswerRunner::prompts() const {
  std::vector<std::string> hashes;
  for (const AnswerSample& sample : samples_) {
    if (sample.unavailable.empty()) hashes.push_back(hash_of_exam(sample.exam));
  }
  return hashes;
}

void AnswerRunner::begin(std::span<const Case* const> cases) {
  cases_.assign(cases.begin(), cases.end());
  Ids line_ends;
  for (const AnswerSample& sample : samples_) {
    if (!sample.unavailable.empty()) continue;
    exams_.push_back(sample.exam);
    numbers_.push_back(sample.number);
    stop_ids_.push_back(batch_.subject.stop_ids());
    if (!sample.exam.one_line) continue;
    if (line_ends.empty()) line_ends = line_end_ids(batch_.subject.tokenizer());  // reads the whole vocabulary
    stop_ids_.back().insert(stop_ids_.back().end(), line_ends.begin(), line_ends.end());
  }
  if (!stop_ids_.empty()) common_stop_ids_ = common_stop_ids(stop_ids_);
}

std::vector<Row> AnswerRunner::run(const Case& unit_case) {
  if (outcomes_.empty()) answer_all();
  const auto found = std::find(cases_.begin(), cases_.end(), &unit_case);
  KV_CHECK(found != cases_.end());
  const Outcome& outcome = outcomes_[static_cast<size_t>(found - cases_.begin())];
  if (outcome.out_of_memory) throw MemoryError(outcome.sheets.front().error);
  return rows_of(unit_case, outcome);
}

void AnswerRunner::answer_all() {
  outcomes_.resize(cases_.size());
  for (Outcome& outcome : outcomes_) outcome.sheets.resize(exams_.size());
  if (exams_.empty()) return;
  answer_batch();
  std::vector<size_t> failed;
  for (size_t c = 0; c < outcomes_.size(); ++c) {
    if (!outcomes_[c].sheets.front().error.empty() && !outcomes_[c].out_of_memory) failed.push_back(c);
  }
  if (!failed.empty() && exams_.size() > 1) answer_alone(failed);
}

// One sample's error must not cost the others their answers.
void AnswerRunner::answer_alone(const std::vector<size_t>& failed) {
  std::vector<const Case*> again;
  for (const size_t c : failed) again.push_back(cases_[c]);
  for (const size_t c : failed) outcomes_[c] = {.sheets = std::vector<AnswerSheet>(exams_.size())};
  for (size_t s = 0; s < exams_.size(); ++s) {
    AnswerRunner alone(batch_, {{.number = numbers_[s], .exam = exams_[s]}});
    alone.begin(again);
    alone.answer_all();
    for (size_t i = 0; i < failed.size(); ++i) {
      Outcome& outcome = outcomes_[failed[i]];
      outcome.sheets[s] = std::move(alone.outcomes_[i].sheets.front());
      outcome.times.add(alone.outcomes_[i].times);
      outcome.out_of_memory |= alone.outcomes_[i].out_of_memory;
    }
  }
}

void AnswerRunner::answer_batch() {
  for (const bool aware : {false, true}) {
    std::vector<size_t> cases;
    for (size_t i = 0; i < cases_.size(); ++i) {
      if ((cases_[i]->word("query") == "aware") == aware) cases.push_back(i);
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
// anything is ranked, because scorers assume it.
std::vector<int32_t> AnswerRunner::kept_of(const Round& round, const Case& unit_case, const Policy& policy) {
  std::vector<int32_t> keep;
  for (const Ids& context : round.contexts) {
    const auto tokens = static_cast<int32_t>(context.size());
    keep.push_back(policy.scorer ? kept_tokens(tokens, unit_case.fraction("keep")) : tokens);
    if (policy.scorer) policy.scorer->check_budget(keep.back(), 0);
  }
  return keep;
}

void AnswerRunner::fail(Outcome& outcome, const UserError& error) {
  for (AnswerSheet& sheet : outcome.sheets) sheet.error = error.what();
  outcome.out_of_memory = dynamic_cast<const MemoryError*>(&error) != nullptr;
}

void AnswerRunner::answer_round(const Round& round, const std::vector<size_t>& cases) {
  std::map<std::string, std::vector<Candidate>> compressed;  // by how they read
  std::vector<Candidate> pruned;
  for (const size_t c : cases) {
    try {
      Candidate candidate{&outcomes_[c], cases_[c], load_case_policy(batch_.spec, *cases_[c])};
      const bool is_pruned = candidate.is_pruned();
      if (!is_pruned) candidate.keep = kept_of(round, *cases_[c], candidate.policy);
      (is_pruned ? pruned : compressed[reading_of(*cases_[c])]).push_back(std::move(candidate));
    } catch (const UserError& error) {
      fail(outcomes_[c], error);
    }
  }
  for (auto& [reading, candidates] : compressed) answer_compressed(round, candidates);
  // After the others, whose shared passes hold memory no longer, and each gone before the next.
  for (Candidate& candidate : pruned) answer_pruned(round, std::move(candidate));
}

void AnswerRunner::answer_compressed(const Round& round, std::vector<Candidate>& candidates) {
  std::vector<Policy*> policies;
  for (Candidate& candidate : candidates) policies.push_back(&candidate.policy);
  const auto contexts = spans(round.contexts);
  Policy reader = load_reader(batch_.spec, *candidates.front().unit_case);
  std::optional<Prefill> prefill;
  try {
    batch_.subject.source(numbers_.front(), static_cast<int>(exams_.size()));  // throws where the model does not fit
    prefill.emplace(PrefillArgs{.backend = batch_.backend,
                                .source = *batch_.subject.model(),
                                .contexts = contexts,
                                .policies = policies,
                                .reader = &reader,
                                .seed = batch_.spec.seed,
                                .sample_numbers = numbers_,
                                .prefill_chunk = batch_.spec.chunk()});
  } catch (const UserError& error) {
    for (Candidate& candidate : candidates) fail(*candidate.outcome, error);
    return;
  }
  std::map<std::string, const Outcome*> without_scorer;  // the full cache answers alike at every point of the axes
  for (size_t i = 0; i < candidates.size(); ++i) {
    Outcome& outcome = *candidates[i].outcome;
    const Policy& policy = candidates[i].policy;
    if (const auto found = without_scorer.find(policy.scorer_name); found != without_scorer.end()) {
      outcome = *found->second;
      continue;
    }
    try {
      outcome.times.prefill_seconds += prefill->seconds();
      outcome.times.compress_seconds += prefill->score_seconds(i);
      LoopState state =
          prefill->compressed(i, candidates[i].keep, outcome.times.compress_seconds, room_of(round, round.questions));
      note_learned(policy, outcome);
      // Nothing scores any more, so that neither columns nor queries are kept.
      outcome.entry_bytes =
          static_cast<double>(state.cache.kv_page_bytes() + state.cache.bound_page_bytes()) / kPageTokens;
      answer_case(round, std::move(state), reader, outcome);
      if (!policy.scorer) without_scorer.emplace(policy.scorer_name, &outcome);
    } catch (const UserError& error) {
      fail(outcome, error);
    }
  }
}

void AnswerRunner::answer_pruned(const Round& round, Candidate candidate) {
  try {
    LoopState state = read_pruned(round, candidate);
    note_learned(candidate.policy, *candidate.outcome);
    candidate.policy.scorer.reset();  // what it admits and selects it goes on with, as it has begun; nothing evicts now
    answer_case(round, std::move(state), candidate.policy, *candidate.outcome);
  } catch (const UserError& error) {
    fail(*candidate.outcome, error);
  }
}

// What is left of the contexts when they have been read.
LoopState AnswerRunner::read_pruned(const Round& round, Candidate& candidate) {
  const Pruning pruning = pruning_of(*candidate.unit_case, candidate.policy);
  const auto contexts = spans(round.contexts);
  std::vector<int32_t> lengths;
  for (const Ids& context : round.contexts) lengths.push_back(static_cast<int32_t>(context.size()));
  const Schedule schedule = schedule_of(pruning, lengths, Follows::kMore, batch_.spec.chunk());
  std::optional<LoopState> left;
  const ReplayResult costs = replay({.backend = batch_.backend,
                                     .source = batch_.subject.source(numbers_.front(), static_cast<int>(exams_.size())),
                                     .policy = candidate.policy,
                                     .sequences = contexts,
                                     .schedule = schedule,
                                     .budget = pruning.budget,
                                     .interval = pruning.interval,
                                     .capacity = pruning.capacity ? &*pruning.capacity : nullptr,
                                     .seed = batch_.spec.seed,
                                     .sample_numbers = numbers_,
                                     .left = &left});
  candidate.outcome->entry_bytes = costs.entry_bytes;
  candidate.outcome->query_bytes = costs.query_bytes;
  AnswerTimes& times = candidate.outcome->times;
  times.prefill_seconds += costs.total_seconds - costs.evict_seconds;
  times.compress_seconds += costs.score_seconds + costs.evict_seconds;
  return std::move(*left);
}

void AnswerRunner::answer_case(const Round& round, LoopState state, Policy& reader, Outcome& outcome) {
  note_kept(round, state, outcome);
  if (needles_) note_needles(round, state, outcome);
  Stopwatch watch(batch_.backend);
  watch.start();
  const size_t last = round.questions.back();
  for (const size_t q : round.questions) {
    if (q == last) continue;
    LoopState copy = copy_of(batch_.backend, state, room_of(round, {&q, 1}));
    grade_answers(q, ask(round, q, std::move(copy), reader), outcome);
  }
  grade_answers(last, ask(round, last, std::move(state), reader), outcome);
  watch.stop(outcome.times.answer_seconds);
}

int AnswerRunner::most_new_tokens(size_t question) const {
  int largest = 1;
  for (const Exam& exam : exams_) largest = std::max(largest, question_of(exam, question).max_new_tokens);
  return largest;
}

// Entries that the longest of these questions and its answer add to each context. The last new token is never
// processed.
std::vector<int32_t> AnswerRunner::room_of(const Round& round, std::span<const size_t> questions) const {
  std::vector<int32_t> room(exams_.size(), 0);
  for (const size_t q : questions) {
    for (size_t s = 0; s < exams_.size(); ++s) {
      const auto question = static_cast<int32_t>(round.continuation(exams_[s], q).size());
      room[s] = std::max(room[s], question + most_new_tokens(q) - 1);
    }
  }
  return room;
}

void AnswerRunner::grade_answers(size_t q, const GenerateResult& result, Outcome& outcome) {
  for (size_t s = 0; s < exams_.size(); ++s) {
    const Exam& exam = exams_[s];
    if (q >= exam.questions.size()) continue;
    const ExamQuestion& question = exam.questions[q];
    const Ids ids = ids_alone(result.sequences[s].ids, stop_ids_[s], question);
    Answer answer{.text = answer_text(exam, ids, stop_ids_[s], batch_.subject.tokenizer()),
                  .repetition = repetition_rate(ids),
                  .truncated = is_truncated(ids, stop_ids_[s]),
                  .tokens = static_cast<int>(ids.size())};
    answer.grade = grade(exam.metric, answer.text, question.answers);
    outcome.sheets[s].answers.push_back(std::move(answer));
  }
}

GenerateResult AnswerRunner::ask(const Round& round, size_t question, LoopState state, Policy& reader) {
  std::vector<Ids> prompts;
  for (size_t s = 0; s < exams_.size(); ++s) {
    prompts.push_back(joined(round.contexts[s], round.continuation(exams_[s], question)));
  }
  const auto sequences = spans(prompts);
  return generate({.backend = batch_.backend,
                   .source = *batch_.subject.model(),
                   .policy = reader,
                   .prompts = sequences,
                   .resumed = &state,
                   .max_new_tokens = most_new_tokens(question),
                   .stop_ids = common_stop_ids_,
                   .sampling = sampling_,
                   .seed = batch_.spec.seed,
                   .sample_numbers = numbers_,
                   .prefill_chunk = batch_.spec.chunk()});
}

void AnswerRunner::note_learned(const Policy& policy, Outcome& outcome) const {
  outcome.learned_bytes = policy.learned_bytes(batch_.subject.model()->info(), batch_.backend.activation_type());
}

// Rounds of one case differ by a question's length; their mean would say no more.
void AnswerRunner::note_kept(const Round& round, const LoopState& state, Outcome& outcome) const {
  const CacheShape& shape = state.cache.shape();
  for (size_t s = 0; s < outcome.sheets.size(); ++s) {
    int64_t total = 0;
    AnswerSheet& sheet = outcome.sheets[s];
    sheet.kept_max = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto lengths = state.cache.lengths(layer).subspan(s * static_cast<size_t>(shape.kv_heads),
                                                              static_cast<size_t>(shape.kv_heads));
      total = std::accumulate(lengths.begin(), lengths.end(), total);
      sheet.kept_max = std::max<int64_t>(sheet.kept_max, *std::max_element(lengths.begin(), lengths.end()));
    }
    sheet.kept_mean = static_cast<double>(total) / (shape.layers * shape.kv_heads);
    const auto full = static_cast<double>(round.contexts[s].size()) * shape.layers * shape.kv_heads;
    const size_t plain = plain_entry_bytes(shape.head_dim, batch_.backend.activation_type());
    const double bytes = static_cast<double>(total) * outcome.entry_bytes + static_cast<double>(outcome.query_bytes);
    sheet.cache_bytes = bytes / (full * static_cast<double>(plain));
    sheet.kv_bytes = static_cast<double>(state.cache.used_pages(static_cast<int>(s))) *
                     static_cast<double>(state.cache.kv_page_bytes());
  }
}

void AnswerRunner::note_needles(const Round& round, const LoopState& state, Outcome& outcome) const {
  for (size_t s = 0; s < outcome.sheets.size(); ++s) {
    const std::vector<NeedleShare> shares = needle_shares(batch_.backend, batch_.subject.model()->info(), state,
                                                          static_cast<int>(s), exams_[s], round.questions);
    outcome.sheets[s].needles.insert(outcome.sheets[s].needles.end(), shares.begin(), shares.end());
  }
}

std::vector<Row> AnswerRunner::rows_of(const Case& unit_case, const Outcome& outcome) const {
  std::vector<Row> rows;
  const double share = 1.0 / static_cast<double>(std::max<size_t>(1, exams_.size()));
  size_t next = 0;  // among the samples that have an exam
  for (const AnswerSample& sample : samples_) {
    const Row blank = batch_.blank(unit_case, sample.number);
    const AnswerSheet* sheet = sample.unavailable.empty() ? &outcome.sheets[next++] : nullptr;
    if (sheet && sheet->error.empty()) {
      add_document(rows, blank, sample.exam.document);
      add_answer_rows(rows, blank, *sheet, outcome.times, share);
      if (outcome.learned_bytes > 0) {
        add_row(rows, blank, "learned_bytes", static_cast<double>(outcome.learned_bytes), "bytes");
      }
      continue;
    }
    rows.push_back(blank);
    rows.back().skipped = sheet ? sheet->error : sample.unavailable;
  }
  return rows;
}

bool needles_of(const Spec& spec) { return spec.read_options("needles", asks_for_needles); }

Sampling sampling_of(const Spec& spec) {
  Sampling sampling = spec.read_options("sampling", read_sampling);
  sampling.seed = spec.seed;
  check_sampling(sampling);
  return sampling;
}

Sampling read_sampling(Params& params) {
  Sampling sampling;
  sampling.temperature = static_cast<float>(params.get("temperature", 0.0, "0: greedy"));
  sampling.top_k = params.get("top_k", 0, "0: all");
  sampling.top_p = static_cast<float>(params.get("top_p", 1.0, "1: all"));
  return sampling;
}

}  // namespace kv
