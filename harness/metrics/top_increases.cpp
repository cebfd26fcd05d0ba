// The worst damage, token by token (001 Table 8): the `count` largest loss increases at low-entropy positions where the
// policy changed the most likely next token. One row each: x = position of the predicted token, value = ℓ' − ℓ in nats,
// text = JSON {"context", "expected", "predicted"}: strings where the case can decode, token ids otherwise. Equal
// increases: the older position first. A sample without such a position gives one skipped row.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "harness/metrics/entropy_rank.h"
#include "harness/metrics/token_record.h"
#include "kernels/check.h"

namespace kv {

namespace {

struct Increase {
  int32_t position = 0;  // of the predicting token
  double nats = 0;
};

class TopIncreases : public Metric {
 public:
  explicit TopIncreases(Params& params)
      : split_(EntropySplit::from(params)),
        count_(params.get("count", 10, "rows a sample")),
        context_(params.get("context", 24, "tokens of text before the predicted one")) {
    if (count_ < 1) params.fail("count", "expected at least 1");
    if (context_ < 1) params.fail("context", "expected at least 1");
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
      const char* reason = !record_.has_losses() ? kNoLosses : split_.first(view_, s) < 0 ? kNoEvent : nullptr;
      std::vector<Increase> worst;
      if (!reason) worst = largest(s);
      if (!reason && worst.empty()) reason = "no low-entropy prediction changed for the worse";
      if (reason) rows.push_back({.sample = s, .metric = "top_increase", .skipped = reason});
      for (const Increase& increase : worst) {
        rows.push_back({.sample = s,
                        .x = increase.position + 1,
                        .metric = "top_increase",
                        .value = increase.nats,
                        .unit = "nats",
                        .text = describe(s, increase.position)});
      }
    }
  }

 private:
  std::vector<Increase> largest(int s) const {
    const Baseline& baseline = *view_.baseline;
    const size_t index = static_cast<size_t>(s);
    const auto policy = record_.nll(s);
    const int32_t last = static_cast<int32_t>(policy.size()) - 1;
    const int32_t first = std::min(split_.first(view_, s), last);
    const auto high = high_entropy(baseline.entropy[index], first, last, split_.fraction);
    std::vector<Increase> found;
    for (int32_t t = first; t < last; ++t) {
      const size_t at = static_cast<size_t>(t);
      const double nats = static_cast<double>(policy[at]) - baseline.nll[index][at];
      if (!high[at] && nats > 0 && record_.argmax(s)[at] != baseline.argmax[index][at]) found.push_back({t, nats});
    }
    std::stable_sort(found.begin(), found.end(), [](const Increase& a, const Increase& b) { return a.nats > b.nats; });
    found.resize(std::min(found.size(), static_cast<size_t>(count_)));
    return found;
  }

  nlohmann::json text_of(std::span<const int32_t> ids) const {
    if (view_.decode) return view_.decode(ids);
    return std::vector<int32_t>(ids.begin(), ids.end());
  }

  std::string describe(int s, int32_t position) const {
    const std::span<const int32_t> ids = view_.samples[static_cast<size_t>(s)]->ids;
    const int32_t first = std::max(0, position + 1 - context_);
    const int32_t predicted = record_.argmax(s)[static_cast<size_t>(position)];
    nlohmann::ordered_json text;
    text["context"] = text_of(ids.subspan(static_cast<size_t>(first), static_cast<size_t>(position + 1 - first)));
    text["expected"] = text_of(ids.subspan(static_cast<size_t>(position + 1), 1));
    text["predicted"] = text_of(std::span(&predicted, 1));
    // A context may begin in the middle of a character.
    return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  EntropySplit split_;
  int count_;
  int context_;
  CaseView view_;
  TokenRecord record_;
};

const RegisterMetric kTopIncreases{
    {.name = "top_increases",
     .summary = "top_increase [nats]: the largest loss increases at low-entropy tokens whose prediction changed, with "
                "their text (001 Table 8)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<TopIncreases>(params); }}};

}  // namespace

}  // namespace kv
