// Teacher-forced losses under the policy against the full cache (001 Table 2).
//
// Position t in [0, T − 1) predicts token t + 1. All sums are over the sample's predicted tokens, in nats; the tail is
// t >= tokens seen at the first event: the part that a policy can change. Ratios are quotients of sums, so a report
// that wants the pooled ratio divides the pooled sums, which are rows of their own. Samples with answer-labelled
// targets have rows of their answers and of all other targets, the prompt, apart: 001 measures on what a model wrote,
// which is the answer, and a long prompt would water that down. Accuracy is teacher-forced: argmax == the next token.
// With `bin`, loss_increase_at is the mean increase of the targets at positions [x, x + bin), x a multiple of `bin`:
// where in the text a policy pays.

#include <algorithm>
#include <memory>

#include "harness/metrics/token_record.h"
#include "kernels/check.h"

namespace kv {

namespace {

struct LossSums {
  double policy = 0;
  double full = 0;
  int64_t tokens = 0;
};

// A sample's targets by their labels.
struct Parts {
  LossSums answer;
  LossSums prompt;  // all that is no answer
  LossSums right;   // answers that argmax has
};

class Loss : public Metric {
 public:
  explicit Loss(Params& params) : bin_(params.get("bin", 0, "tokens a row of loss_increase_at; 0: no such rows")) {
    if (bin_ < 0) params.fail("bin", "expected at least 0");
  }

  ObserverNeeds observer_needs() const override {
    return {.takes_unseen = true, .takes_unread = true, .takes_capacity = true};
  }
  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline);
    view_ = view;
    record_.begin(view);
  }

  void block_done(const Block& block, const TokenLosses& losses) override { record_.add(block, losses); }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      if (!record_.has_losses()) {
        rows.push_back({.sample = s, .metric = "loss_ratio", .skipped = kNoLosses});
        continue;
      }
      totals(s, rows);
      tail(s, rows);
      answers(s, rows);
      if (bin_ > 0) bins(s, rows);
    }
  }

  std::vector<std::string> numbers() const override {
    return {
        "nll_sum",           "nll_sum_full",      "predicted_tokens",     "loss_ratio",          "loss_increase",
        "nll_sum_tail",      "nll_sum_tail_full", "loss_ratio_tail",      "answer_tokens",       "answer_nll",
        "answer_nll_full",   "answer_accuracy",   "answer_accuracy_full", "answer_nll_sum",      "answer_nll_sum_full",
        "answer_loss_ratio", "prompt_tokens",     "prompt_nll_sum",       "prompt_nll_sum_full", "prompt_loss_ratio"};
  }

  std::vector<Headline> headlines() const override {
    return {{.name = "answer-loss-ratio",
             .title = "Loss under the policy over the full cache's on the answers, pooled over samples",
             .metric = "answer_nll_sum",
             .over = "answer_nll_sum_full",
             .better = "lower",
             .of_answers = true},
            {.name = "loss-ratio",
             .title = "Loss under the policy over the full cache's, pooled over samples",
             .metric = "nll_sum",
             .over = "nll_sum_full",
             .better = "lower"}};
  }

 private:
  LossSums sum_from(int s, size_t first) const { return sum_of(s, first, record_.nll(s).size()); }

  // Sums over the positions [first, end) that predict a token.
  LossSums sum_of(int s, size_t first, size_t end) const {
    const auto policy = record_.nll(s);
    const auto& full = view_.baseline->nll[static_cast<size_t>(s)];
    KV_CHECK(full.size() == policy.size());
    LossSums sums;
    for (size_t t = first; t < end && t + 1 < policy.size(); ++t) {
      sums.policy += policy[t];
      sums.full += full[t];
      ++sums.tokens;
    }
    return sums;
  }

  static void ratio(int s, const char* name, const LossSums& sums, std::vector<Measured>& rows) {
    if (sums.full > 0) {
      rows.push_back({.sample = s, .metric = name, .value = sums.policy / sums.full});
    } else {
      rows.push_back({.sample = s, .metric = name, .skipped = "no token is predicted with a loss above zero"});
    }
  }

  void totals(int s, std::vector<Measured>& rows) const {
    const LossSums sums = sum_from(s, 0);
    rows.push_back({.sample = s, .metric = "nll_sum", .value = sums.policy, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "nll_sum_full", .value = sums.full, .unit = "nats"});
    rows.push_back(
        {.sample = s, .metric = "predicted_tokens", .value = static_cast<double>(sums.tokens), .unit = "tokens"});
    ratio(s, "loss_ratio", sums, rows);
    if (sums.tokens == 0) return;
    const double increase = (sums.policy - sums.full) / static_cast<double>(sums.tokens);
    rows.push_back({.sample = s, .metric = "loss_increase", .value = increase, .unit = "nats"});
  }

  void tail(int s, std::vector<Measured>& rows) const {
    const int32_t first = view_.first_event[static_cast<size_t>(s)];
    if (first < 0) {
      rows.push_back({.sample = s, .metric = "loss_ratio_tail", .skipped = kNoEvent});
      return;
    }
    const LossSums sums = sum_from(s, static_cast<size_t>(first));
    rows.push_back({.sample = s, .metric = "nll_sum_tail", .value = sums.policy, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "nll_sum_tail_full", .value = sums.full, .unit = "nats"});
    ratio(s, "loss_ratio_tail", sums, rows);
  }

  void answers(int s, std::vector<Measured>& rows) const {
    const Parts parts = parts_of(s);
    if (parts.answer.tokens == 0) return;
    const double count = static_cast<double>(parts.answer.tokens);
    rows.push_back({.sample = s, .metric = "answer_tokens", .value = count, .unit = "tokens"});
    rows.push_back({.sample = s, .metric = "answer_nll", .value = parts.answer.policy / count, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "answer_nll_full", .value = parts.answer.full / count, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "answer_accuracy", .value = parts.right.policy / count});
    rows.push_back({.sample = s, .metric = "answer_accuracy_full", .value = parts.right.full / count});
    rows.push_back({.sample = s, .metric = "answer_nll_sum", .value = parts.answer.policy, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "answer_nll_sum_full", .value = parts.answer.full, .unit = "nats"});
    ratio(s, "answer_loss_ratio", parts.answer, rows);
    const double prompt_tokens = static_cast<double>(parts.prompt.tokens);
    rows.push_back({.sample = s, .metric = "prompt_tokens", .value = prompt_tokens, .unit = "tokens"});
    rows.push_back({.sample = s, .metric = "prompt_nll_sum", .value = parts.prompt.policy, .unit = "nats"});
    rows.push_back({.sample = s, .metric = "prompt_nll_sum_full", .value = parts.prompt.full, .unit = "nats"});
    ratio(s, "prompt_loss_ratio", parts.prompt, rows);
  }

  // Binned by the target's position, t + 1.
  void bins(int s, std::vector<Measured>& rows) const {
    const size_t tokens = record_.nll(s).size();
    const auto bin = static_cast<size_t>(bin_);
    for (size_t x = 0; x < tokens; x += bin) {
      const LossSums sums = sum_of(s, std::max<size_t>(x, 1) - 1, x + bin - 1);
      if (sums.tokens == 0) continue;
      rows.push_back({.sample = s,
                      .x = static_cast<double>(x),
                      .metric = "loss_increase_at",
                      .value = (sums.policy - sums.full) / static_cast<double>(sums.tokens),
                      .unit = "nats"});
    }
  }

  Parts parts_of(int s) const {
    const size_t index = static_cast<size_t>(s);
    const Sample& sample = *view_.samples[index];
    const Baseline& baseline = *view_.baseline;
    Parts parts;
    for (size_t t = 0; t + 1 < sample.ids.size() && t + 1 < sample.labels.size(); ++t) {
      const bool is_answer = sample.labels[t + 1] == Label::kAnswer;
      LossSums& part = is_answer ? parts.answer : parts.prompt;
      ++part.tokens;
      part.policy += record_.nll(s)[t];
      part.full += baseline.nll[index][t];
      if (!is_answer) continue;
      parts.right.policy += record_.argmax(s)[t] == sample.ids[t + 1] ? 1 : 0;
      parts.right.full += baseline.argmax[index][t] == sample.ids[t + 1] ? 1 : 0;
    }
    return parts;
  }

  int bin_;
  CaseView view_;
  TokenRecord record_;
};

const RegisterMetric kLoss{
    {.name = "loss",
     .summary =
         "loss_ratio, loss_ratio_tail, loss_increase [nats]; of answers and prompts apart answer_loss_ratio, "
         "prompt_loss_ratio, answer_nll, answer_accuracy; and the sums behind them, teacher-forced, against the full "
         "cache (001 Table 2)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<Loss>(params); }}};

}  // namespace

}  // namespace kv
