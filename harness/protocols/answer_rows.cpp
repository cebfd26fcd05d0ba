#include "harness/protocols/answer_rows.h"

#include <fmt/format.h>

#include "harness/spec/case_policy.h"

namespace kv {

void AnswerTimes::add(const AnswerTimes& other) {
  prefill_seconds += other.prefill_seconds;
  compress_seconds += other.compress_seconds;
  answer_seconds += other.answer_seconds;
}

void add_answer_rows(std::vector<Row>& rows, const Row& blank, const AnswerSheet& sheet, const AnswerTimes& times,
                     double share) {
  const auto count = static_cast<double>(sheet.answers.size());
  const auto mean = [&](const auto& value) {
    double sum = 0;
    for (const Answer& answer : sheet.answers) sum += static_cast<double>(value(answer));
    return sum / count;
  };
  add_row(rows, blank, "accuracy", mean([](const Answer& answer) { return answer.grade; }), "");
  for (size_t q = 0; q < sheet.answers.size(); ++q) {
    Row& row = add_row(rows, blank, "answer", sheet.answers[q].grade, "");
    row.x = static_cast<double>(q);
    row.text = sheet.answers[q].text;
  }
  add_row(rows, blank, "answer_tokens", mean([](const Answer& answer) { return answer.tokens; }), "tokens");
  add_row(rows, blank, "repetition_rate", mean([](const Answer& answer) { return answer.repetition; }), "");
  add_row(rows, blank, "truncation_rate", mean([](const Answer& answer) { return answer.truncated ? 1 : 0; }), "");
  add_row(rows, blank, "kept_tokens", sheet.kept_mean, "tokens");
  add_row(rows, blank, "kept_tokens_max", static_cast<double>(sheet.kept_max), "tokens");
  add_row(rows, blank, "kept_kv_bytes", sheet.kv_bytes, "bytes");
  add_row(rows, blank, "cache_bytes", sheet.cache_bytes, "");
  add_row(rows, blank, "prefill_time", times.prefill_seconds * share, "s");
  add_row(rows, blank, "compress_time", times.compress_seconds * share, "s");
  add_row(rows, blank, "answer_time", times.answer_seconds * share, "s");
  add_needle_rows(rows, blank, sheet.needles);
}

void gate_by_full_cache(const Spec& spec, std::span<const Case> cases, std::span<std::vector<Row>> rows) {
  double sum = 0;
  int64_t samples = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!cases[i].slots.show_all() || make_case_policy(spec, cases[i]).scorer) continue;
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
  for (std::vector<Row>& case_rows : rows) {
    std::vector<Row> skipped;
    for (const Row& row : case_rows) {
      if (row.metric != "accuracy" && row.skipped.empty()) continue;
      skipped.push_back(row);
      skipped.back().value.reset();
      if (row.skipped.empty()) skipped.back().skipped = reason;
    }
    case_rows = std::move(skipped);
  }
}

}  // namespace kv
