#include "kernels/eviction_surrogate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// What one dropped entry adds, before the mean: slope is ∂loss/∂l.
struct Term {
  double loss = 0;
  double kl = 0;
  double slope = 0;
  bool clipped = false;
};

Term term_of(const EvictionSurrogateArgs& args, double advantage, double l, double l_old, double l_reference) {
  const double change = l - l_old, clamped = std::clamp(change, -10.0, 10.0);
  const double plain = std::exp(clamped) * advantage;
  const double held = std::clamp(std::exp(clamped), 1.0 - args.clip, 1.0 + args.clip) * advantage;
  Term term{.loss = -std::min(plain, held), .clipped = held < plain};
  if (!term.clipped && change == clamped) term.slope = -plain;
  const double e = l_reference - l;
  term.kl = std::expm1(e) - e;
  if (args.kl_weight == 0) return term;  // an infinite divergence must not matter then
  term.loss += args.kl_weight * term.kl;
  term.slope -= args.kl_weight * std::expm1(e);
  return term;
}

// log(e^a + e^b); b is finite.
double log_add(double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))); }

// One row's dropped entries, draw by draw. Among whom an entry was drawn are those that every draw had and, by
// Plackett and Luce, those drawn from it on.
class Draws {
 public:
  Draws(const EvictionSurrogateArgs& args, int64_t row, int64_t count)
      : args_(args), row_(row), count_(count), is_marginal_(args.law == DrawLaw::kMarginal) {
    const uint8_t* keep = args.keep.row(row);
    const uint8_t* stays = args.stays ? args.stays.row(row) : nullptr;
    for (int64_t slot = 0; slot < count; ++slot) {
      const bool candidate = is_marginal_ || !stays || !stays[slot];
      KV_CHECK(candidate || keep[slot]);
      if (!keep[slot]) drawn_.push_back(slot);
      if (is_marginal_ || (candidate && keep[slot])) always_.push_back(slot);
    }
    KV_CHECK(is_marginal_ || drawn_.size() <= kMostDrawn);
  }

  bool is_finite() const {
    for (const float* scores : {args_.scores.row(row_), args_.old_scores.row(row_), args_.reference_scores.row(row_)}) {
      if (!std::all_of(scores, scores + count_, [](float y) { return std::isfinite(y); })) return false;
    }
    if (!std::isfinite(advantage())) return false;
    return is_marginal_ || std::all_of(drawn_.begin(), drawn_.end(),
                                       [&](int64_t slot) { return std::isfinite(args_.order.row(row_)[slot]); });
  }

  // Needs is_finite().
  void run() {
    if (!is_marginal_) sort_by_order();
    gradient_.assign(count_, 0.0);
    if (drawn_.empty()) return;
    const float* scores = args_.scores.row(row_);
    const std::vector<double> totals = log_totals(scores);
    pull(scores, totals, rate(scores, totals));
  }

  int64_t drawn() const { return std::ssize(drawn_); }
  const Term& sum() const { return sum_; }
  int64_t clipped() const { return clipped_; }
  const std::vector<double>& gradient() const { return gradient_; }

 private:
  double advantage() const { return args_.advantages[row_ / args_.cache.kv_heads]; }

  void sort_by_order() {
    const float* order = args_.order.row(row_);
    std::sort(drawn_.begin(), drawn_.end(),
              [&](int64_t a, int64_t b) { return order[a] != order[b] ? order[a] < order[b] : a < b; });
  }

  // Of each draw log Σ e^φ over those among whom it was made.
  std::vector<double> log_totals(const float* scores) const {
    double lowest = std::numeric_limits<double>::infinity(), sum = 0;
    for (const int64_t slot : always_) lowest = std::min<double>(lowest, scores[slot]);
    for (const int64_t slot : always_) sum += std::exp(lowest - scores[slot]);
    double total = std::log(sum) - lowest;  // of none: −∞
    std::vector<double> totals(drawn_.size(), total);
    for (size_t draw = drawn_.size(); !is_marginal_ && draw-- > 0;) {
      totals[draw] = total = log_add(total, -double{scores[drawn_[draw]]});
    }
    return totals;
  }

  // Adds up what the draws are worth; their slopes.
  std::vector<double> rate(const float* scores, const std::vector<double>& totals) {
    const float *old_scores = args_.old_scores.row(row_), *reference = args_.reference_scores.row(row_);
    const std::vector<double> old_totals = log_totals(old_scores), reference_totals = log_totals(reference);
    std::vector<double> slopes;
    for (size_t draw = 0; draw < drawn_.size(); ++draw) {
      const int64_t slot = drawn_[draw];
      const Term term = term_of(args_, advantage(), -scores[slot] - totals[draw], -old_scores[slot] - old_totals[draw],
                                -reference[slot] - reference_totals[draw]);
      sum_.loss += term.loss;
      sum_.kl += term.kl;
      clipped_ += term.clipped;
      slopes.push_back(term.slope);
    }
    return slopes;
  }

  // Where ∂(φ_u − log Σ e^φ)/∂φ_j is 1 at u less the share of j in the sum: an entry's own slope, and its shares in all
  // sums of which it was part, which are those until its own draw. Totals fall from draw to draw, so slopes are carried
  // on relative to the newest one, where nothing overflows.
  void pull(const float* scores, const std::vector<double>& totals, const std::vector<double>& slopes) {
    double until = 0;
    for (size_t draw = 0; draw < drawn_.size(); ++draw) {
      const int64_t slot = drawn_[draw];
      if (draw > 0) until *= std::exp(totals[draw] - totals[draw - 1]);
      until += slopes[draw];
      gradient_[slot] -= slopes[draw];
      if (!is_marginal_) gradient_[slot] += std::exp(-scores[slot] - totals[draw]) * until;
    }
    for (const int64_t slot : always_) gradient_[slot] += std::exp(-scores[slot] - totals.back()) * until;
  }

  const EvictionSurrogateArgs& args_;
  int64_t row_, count_;
  bool is_marginal_;
  std::vector<int64_t> drawn_, always_;
  Term sum_;
  int64_t clipped_ = 0;
  std::vector<double> gradient_;  // ∂/∂y, before the mean
};

void rate_row(const EvictionSurrogateArgs& args, int64_t row) {
  const int64_t count = std::max(0, args.cache.lengths[row] - args.drop_newest);
  Draws draws(args, row, count);
  float* gradient = args.gradient.row(row);
  if (!draws.is_finite()) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    args.loss[row] = args.kl[row] = args.clipped[row] = kNan;
    std::fill_n(gradient, count, kNan);
    return;
  }
  draws.run();
  const double drawn = std::max<double>(1, draws.drawn());
  args.loss[row] = static_cast<float>(draws.sum().loss / drawn);
  args.kl[row] = static_cast<float>(draws.sum().kl / drawn);
  args.clipped[row] = static_cast<float>(draws.clipped() / drawn);
  for (int64_t slot = 0; slot < count; ++slot) gradient[slot] = static_cast<float>(draws.gradient()[slot] / drawn);
}

}  // namespace

void eviction_surrogate(const EvictionSurrogateArgs& args) {
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) rate_row(args, row);
  });
}

}  // namespace kv::cpu
