// Where the loss increase falls: on tokens that the full-cache model was sure of, or on the uncertain ones (001 Table
// 1).
//
// high = the `fraction` of predicting positions with the highest full-cache entropy (ties to the newer), low = the
// rest. loss_increase_x = (Σ_x ℓ' − Σ_x ℓ) / Σ_x ℓ, ℓ' under the policy, ℓ under the full cache. 001 ranks over the
// sequence (its RL code over the tail: range=tail). nll_x and nll_x_full are the sums, for pooling.

#include <algorithm>
#include <memory>

#include "harness/metrics/entropy_rank.h"
#include "harness/metrics/token_record.h"
#include "kernels/check.h"

namespace kv {

namespace {

class EntropySplitMetric : public Metric {
 public:
  explicit EntropySplitMetric(Params& params) : split_(EntropySplit::from(params)) {}

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
      const char* reason = !record_.has_losses() ? kNoLosses : split_.first(view_, s) < 0 ? kNoEvent : nullptr;
      if (reason) {
        rows.push_back({.sample = s, .metric = "loss_increase_low", .skipped = reason});
        rows.push_back({.sample = s, .metric = "loss_increase_high", .skipped = reason});
      } else {
        report_sample(s, rows);
      }
    }
  }

  std::vector<std::string> numbers() const override {
    return {"loss_increase_low", "loss_increase_high", "nll_low", "nll_low_full", "nll_high", "nll_high_full"};
  }

  std::vector<Headline> headlines() const override {
    return {{.name = "loss-increase-low",
             .title = "Relative loss increase on low-entropy tokens",
             .metric = "loss_increase_low",
             .better = "lower"},
            {.name = "loss-increase-high",
             .title = "Relative loss increase on high-entropy tokens",
             .metric = "loss_increase_high",
             .better = "lower"}};
  }

 private:
  void report_sample(int s, std::vector<Measured>& rows) const {
    const Baseline& baseline = *view_.baseline;
    const size_t index = static_cast<size_t>(s);
    const auto policy = record_.nll(s);
    const int32_t last = static_cast<int32_t>(policy.size()) - 1;
    const int32_t first = std::min(split_.first(view_, s), last);
    const auto high = high_entropy(baseline.entropy[index], first, last, split_.fraction);
    double sums[2] = {0, 0};
    double sums_full[2] = {0, 0};
    for (int32_t t = first; t < last; ++t) {
      const size_t at = static_cast<size_t>(t);
      sums[high[at]] += policy[at];
      sums_full[high[at]] += baseline.nll[index][at];
    }
    const char* names[2] = {"low", "high"};
    for (int side = 0; side < 2; ++side) {
      const std::string name = names[side];
      rows.push_back({.sample = s, .metric = "nll_" + name, .value = sums[side], .unit = "nats"});
      rows.push_back({.sample = s, .metric = "nll_" + name + "_full", .value = sums_full[side], .unit = "nats"});
      if (sums_full[side] > 0) {
        const double increase = (sums[side] - sums_full[side]) / sums_full[side];
        rows.push_back({.sample = s, .metric = "loss_increase_" + name, .value = increase});
      } else {
        rows.push_back({.sample = s, .metric = "loss_increase_" + name, .skipped = "no loss on these tokens"});
      }
    }
  }

  EntropySplit split_;
  CaseView view_;
  TokenRecord record_;
};

const RegisterMetric kEntropySplit{
    {.name = "entropy_split",
     .summary = "loss_increase_low, loss_increase_high: relative loss increase on low- and high-entropy tokens "
                "(001 Table 1)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<EntropySplitMetric>(params); }}};

}  // namespace

}  // namespace kv
