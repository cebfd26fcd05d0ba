// How much attention tokens receive, from whom and for how long (004 Sec. 2.3, Fig. 3), from the full-cache pass.
//
// Let S_b(j) be the attention that the queries of block b (L tokens) put on key j: sum over the queries, mean over the
// group. So heads are KV heads, for which an admission decides; 004 draws query heads. Block b is *far* from key j if
// all of its queries come at least `window` tokens later, b·L − j >= window, else *near*: a near query comes less than
// window + L tokens later, and j's own query is one.
//   N(j) = Σ_{b near} S_b(j)   F(j) = Σ_{b far} S_b(j)   m(j) = F(j) / far queries: the mean weight that they give it
// Measured are the tokens that have far queries for at least half of the text, so that few queries judge none, but not
// the first `sinks`: these draw attention in every head whatever they say, and would make all heads skewed and alike.
// Sums over j are over these.
// U_h are the max(1, round(top · measured tokens)) of the largest m in head h; ties: the older token.
// Rows under `full`, of each (layer, KV head):
//   utility_top_share        Σ_{j in U_h} F(j) / Σ_j F(j)                               skew
//   utility_overlap          mean over the other heads h' of |U_h ∩ U_h'| / |U_h|        1: all use the same tokens
//   utility_transient_share  Σ_{j not in U_h} N(j) / Σ_{j not in U_h} (N(j) + F(j))      1: unused after the window
// A head whose far queries give the measured tokens nothing has no U_h: its rows are skipped, and it is no other head.
//
// The example is the two heads A before B (by layer, then head) and the tokens u in U_A and v in U_B with the largest
//   min(m_A(u) − m_B(u), m_B(v) − m_A(v)) > 0;   ties: lower A, then lower B, then older u and v.
// Rows: utility_used is m_A(u) in the row of head A and m_B(v) in that of B, utility_ignored m_B(u) in B and m_A(v) in
// A; x = the token's position, text = the token as a JSON string, its id where the case cannot decode.
// utility_received_u and utility_received_v, of the first `curves` samples, have a row for A and B and each block that
// sees the token: x = the first query that does, value = mean weight over those that do.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "harness/metrics/metric.h"
#include "kernels/check.h"
#include "sim/cache/to_host.h"

namespace kv {

namespace {

constexpr std::array<const char*, 3> kOfHeads = {"utility_top_share", "utility_overlap", "utility_transient_share"};
constexpr std::array<const char*, 2> kOfExample = {"utility_used", "utility_ignored"};
constexpr std::array<const char*, 2> kCurves = {"utility_received_u", "utility_received_v"};

// The measured tokens [first, end) of a text, and which of its query blocks are far from them.
struct MeasuredTokens {
  int64_t length = 0;  // of the text
  int64_t block = 0;
  int64_t window = 0;
  int64_t first = 0;
  int64_t end = 0;

  MeasuredTokens(int64_t text, int64_t block_tokens, int64_t window_tokens, int64_t sinks)
      : length(text), block(block_tokens), window(window_tokens), first(sinks) {
    // Far queries are half of the text or more where the first of them is no later than this one.
    const int64_t last_start = length / (2 * block) * block;
    end = std::max(first, last_start - window + 1);
  }

  int64_t position(size_t token) const { return first + static_cast<int64_t>(token); }
  size_t count() const { return static_cast<size_t>(end - first); }
  int64_t first_far_block(int64_t position) const { return (position + window + block - 1) / block; }
  int64_t far_queries(int64_t position) const { return length - first_far_block(position) * block; }
};

// What one KV head gives to the measured tokens, which are counted from the first of them.
struct HeadUse {
  int layer = 0;
  int head = 0;
  std::vector<double> near;  // N, [tokens]
  std::vector<double> far;   // F
  std::vector<double> mean;  // m
  std::vector<size_t> used;  // U_h; none where far queries give nothing
};

std::vector<size_t> largest(const std::vector<double>& values, size_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

// [heads]: the mean share of a head's used tokens that another head uses, too; none where no two heads use any.
std::vector<std::optional<double>> overlaps(const std::vector<HeadUse>& heads, size_t tokens) {
  std::vector<int64_t> users(tokens, 0);
  int64_t using_heads = 0;
  for (const HeadUse& head : heads) {
    if (!head.used.empty()) ++using_heads;
    for (const size_t token : head.used) ++users[token];
  }
  std::vector<std::optional<double>> shares(heads.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    if (heads[h].used.empty() || using_heads < 2) continue;
    int64_t others = 0;
    for (const size_t token : heads[h].used) others += users[token] - 1;
    shares[h] = static_cast<double>(others) / static_cast<double>(std::ssize(heads[h].used) * (using_heads - 1));
  }
  return shares;
}

// Sums over the tokens that a head uses and over the others.
struct Shares {
  double far_used = 0;
  double far_other = 0;
  double near_other = 0;

  explicit Shares(const HeadUse& head) {
    std::vector<uint8_t> is_used(head.far.size(), 0);
    for (const size_t token : head.used) is_used[token] = 1;
    for (size_t token = 0; token < head.far.size(); ++token) {
      (is_used[token] ? far_used : far_other) += head.far[token];
      if (!is_used[token]) near_other += head.near[token];
    }
  }
};

// Of two parts, not both 0, the first one's share.
double share(double part, double rest) { return part / (part + rest); }

struct Contrast {
  size_t token = 0;
  double weight = 0;  // m of the user less m of the other
};

// Of the tokens that a head uses, the one that another ignores most.
Contrast largest_contrast(const HeadUse& user, const HeadUse& other) {
  Contrast best;
  for (const size_t token : user.used) {
    const double weight = user.mean[token] - other.mean[token];
    if (weight > best.weight) best = {token, weight};
  }
  return best;
}

struct Example {
  const HeadUse* a = nullptr;
  const HeadUse* b = nullptr;
  size_t u = 0;
  size_t v = 0;
};

std::optional<Example> clearest(const std::vector<HeadUse>& heads) {
  std::optional<Example> best;
  double least = 0;
  for (size_t a = 0; a < heads.size(); ++a) {
    for (size_t b = a + 1; b < heads.size(); ++b) {
      const Contrast u = largest_contrast(heads[a], heads[b]);
      const Contrast v = largest_contrast(heads[b], heads[a]);
      if (std::min(u.weight, v.weight) <= least) continue;
      least = std::min(u.weight, v.weight);
      best = Example{.a = &heads[a], .b = &heads[b], .u = u.token, .v = v.token};
    }
  }
  return best;
}

class TokenUtility : public Metric {
 public:
  explicit TokenUtility(Params& params)
      : block_(params.get("block", 64, "query block in tokens (the case may need a finer one)")),
        window_(params.get("window", 256, "tokens after which a query is far")),
        sinks_(params.get("sinks", 4, "first tokens of the text, which are left out")),
        top_(params.get("top", 0.05, "share of the measured tokens that a head counts as using")),
        curves_(params.get("curves", 1, "samples whose curves are written; every sample has the other rows")) {
    if (block_ < 1) params.fail("block", "expected at least 1");
    if (window_ < 1) params.fail("window", "expected at least 1");
    if (sinks_ < 0) params.fail("sinks", "expected at least 0");
    // With half of them two measured tokens are enough for one that is used and one that is not.
    if (!(top_ > 0 && top_ <= 0.5)) params.fail("top", "expected a share in (0, 0.5]");
  }

  ObserverNeeds observer_needs() const override {
    return {.baseline = {.statistics_block = block_, .block_sums = true}};
  }

  void begin_case(const CaseView& view) override {
    KV_CHECK(view.baseline && view.baseline->has.block_sums && view.baseline->has.statistics_block > 0);
    view_ = view;
    evicted_ = false;
  }

  void evicting(const EvictionView&) override { evicted_ = true; }

  void report(const ReplayResult&, std::vector<Measured>& rows) override {
    for (int s = 0; s < static_cast<int>(view_.samples.size()); ++s) {
      const MeasuredTokens tokens(view_.baseline->lengths[static_cast<size_t>(s)], view_.baseline->has.statistics_block,
                                  window_, sinks_);
      if (evicted_) {
        skip_sample(s, "utility is that of the full cache", rows);
      } else if (tokens.count() < 2) {
        skip_sample(s, "fewer than two tokens have far queries for half of the text", rows);
      } else {
        report_sample(s, tokens, rows);
      }
    }
  }

 private:
  bool has_curves(int s) const { return view_.batch.sample_numbers[static_cast<size_t>(s)] < curves_; }

  void skip_sample(int s, const char* reason, std::vector<Measured>& rows) const {
    for (const char* metric : kOfHeads) rows.push_back({.sample = s, .metric = metric, .skipped = reason});
    skip_example(s, reason, rows);
  }

  void skip_example(int s, const char* reason, std::vector<Measured>& rows) const {
    for (const char* metric : kOfExample) rows.push_back({.sample = s, .metric = metric, .skipped = reason});
    if (!has_curves(s)) return;
    for (const char* metric : kCurves) rows.push_back({.sample = s, .metric = metric, .skipped = reason});
  }

  // S_b of the `count` keys from `first` on.
  std::vector<float> block_sums(int s, const HeadUse& head, int64_t b, int64_t first, int64_t count) const {
    const Baseline& baseline = *view_.baseline;
    const Tensor& sums = baseline.layers[static_cast<size_t>(head.layer)].block_sums;
    const int64_t row = static_cast<int64_t>(s) * view_.batch.source->kv_heads + head.head;
    return to_host(*view_.batch.backend, sums.at((row * baseline.blocks + b) * baseline.max_tokens + first).as<float>(),
                   count);
  }

  HeadUse use_of(int s, int layer, int head, const MeasuredTokens& tokens) const {
    HeadUse use{.layer = layer, .head = head};
    use.near.assign(tokens.count(), 0);
    use.far.assign(tokens.count(), 0);
    for (int64_t b = tokens.first / tokens.block; b * tokens.block < tokens.length; ++b) {
      const int64_t seen = std::min(tokens.end, (b + 1) * tokens.block);
      const auto sums = block_sums(s, use, b, tokens.first, seen - tokens.first);
      for (size_t token = 0; token < sums.size(); ++token) {
        const bool is_far = b >= tokens.first_far_block(tokens.position(token));
        (is_far ? use.far : use.near)[token] += sums[token];
      }
    }
    for (size_t token = 0; token < use.far.size(); ++token) {
      const int64_t queries = tokens.far_queries(tokens.position(token));
      use.mean.push_back(use.far[token] / static_cast<double>(queries));
    }
    if (std::any_of(use.far.begin(), use.far.end(), [](double weight) { return weight > 0; })) {
      const int64_t count = std::lround(top_ * static_cast<double>(tokens.count()));
      use.used = largest(use.mean, static_cast<size_t>(std::max<int64_t>(1, count)));
    }
    return use;
  }

  void report_sample(int s, const MeasuredTokens& tokens, std::vector<Measured>& rows) const {
    const SourceInfo& source = *view_.batch.source;
    std::vector<HeadUse> heads;
    for (int layer = 0; layer < source.layers; ++layer) {
      for (int head = 0; head < source.kv_heads; ++head) heads.push_back(use_of(s, layer, head, tokens));
    }
    const auto shared = overlaps(heads, tokens.count());
    for (size_t h = 0; h < heads.size(); ++h) report_head(s, heads[h], shared[h], rows);
    if (const auto example = clearest(heads)) {
      report_example(s, tokens, *example, rows);
    } else {
      skip_example(s, "no two heads each use a token more than the other does", rows);
    }
  }

  // A row of a head without its value.
  Measured row_of(int s, const HeadUse& head, const char* metric) const {
    return {.sample = s,
            .layer = view_.batch.source->layer_numbers[static_cast<size_t>(head.layer)],
            .head = head.head,
            .metric = metric};
  }

  void report_head(int s, const HeadUse& head, std::optional<double> overlap, std::vector<Measured>& rows) const {
    const auto add = [&](const char* metric, std::optional<double> value, const char* reason) {
      rows.push_back(row_of(s, head, metric));
      if (value) {
        rows.back().value = *value;
      } else {
        rows.back().skipped = reason;
      }
    };
    if (head.used.empty()) {
      for (const char* metric : kOfHeads) add(metric, {}, "far queries give the measured tokens nothing");
      return;
    }
    const Shares sums(head);
    const bool others_receive = sums.near_other + sums.far_other > 0;
    add("utility_top_share", share(sums.far_used, sums.far_other), "");
    add("utility_overlap", overlap, "no other head uses any token");
    add("utility_transient_share",
        others_receive ? std::optional(share(sums.near_other, sums.far_other)) : std::nullopt,
        "the tokens that are not used receive nothing");
  }

  void report_example(int s, const MeasuredTokens& tokens, const Example& example, std::vector<Measured>& rows) const {
    report_contrast(s, tokens, *example.a, *example.b, example.u, rows);
    report_contrast(s, tokens, *example.b, *example.a, example.v, rows);
    if (!has_curves(s)) return;
    for (const HeadUse* head : {example.a, example.b}) {
      report_curve(s, tokens, *head, kCurves[0], example.u, rows);
      report_curve(s, tokens, *head, kCurves[1], example.v, rows);
    }
  }

  void report_contrast(int s, const MeasuredTokens& tokens, const HeadUse& user, const HeadUse& other, size_t token,
                       std::vector<Measured>& rows) const {
    const int64_t position = tokens.position(token);
    const std::string text = text_of(s, position);
    for (const auto& [head, metric] : {std::pair(&user, kOfExample[0]), std::pair(&other, kOfExample[1])}) {
      rows.push_back(row_of(s, *head, metric));
      rows.back().x = static_cast<double>(position);
      rows.back().value = head->mean[token];
      rows.back().text = text;
    }
  }

  void report_curve(int s, const MeasuredTokens& tokens, const HeadUse& head, const char* metric, size_t token,
                    std::vector<Measured>& rows) const {
    const int64_t position = tokens.position(token);
    for (int64_t b = position / tokens.block; b * tokens.block < tokens.length; ++b) {
      const int64_t first = std::max(position, b * tokens.block);
      const int64_t end = std::min(tokens.length, (b + 1) * tokens.block);
      rows.push_back(row_of(s, head, metric));
      rows.back().x = static_cast<double>(first);
      rows.back().value = block_sums(s, head, b, position, 1).front() / static_cast<double>(end - first);
    }
  }

  std::string text_of(int s, int64_t position) const {
    const std::span<const int32_t> ids = view_.samples[static_cast<size_t>(s)]->ids;
    const auto token = ids.subspan(static_cast<size_t>(position), 1);
    if (!view_.decode) return fmt::format("{}", token.front());
    // A token may be a part of a character.
    return nlohmann::json(view_.decode(token)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  int block_;
  int window_;
  int sinks_;
  double top_;
  int curves_;
  CaseView view_;
  bool evicted_ = false;
};

const RegisterMetric kTokenUtility{
    {.name = "token_utility",
     .summary =
         "utility_{top_share, overlap, transient_share} of every head, in [0, 1]: skew, likeness and early end of "
         "the attention that tokens receive; utility_{used, ignored, received_*} of the clearest two tokens; "
         "under `full` only (004 Fig. 3)",
     .make = [](Params& params) -> std::unique_ptr<Metric> { return std::make_unique<TokenUtility>(params); }}};

}  // namespace

}  // namespace kv
