#include "sim/budget/calibration.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/check.h"
#include "sim/budget/apportion.h"
#include "sim/budget/solver.h"

namespace kv {

namespace {

constexpr size_t kIndexOf50 = 49, kIndexOf80 = 79;  // indices of 50 % and 80 %

double to_five_decimals(double value) { return std::round(value * 1e5) / 1e5; }

// One question's problem at one ratio after the other; the solver is prepared again only where the order changes.
class Problem {
 public:
  Problem(const CalibrationQuestion& question, double least)
      : question_(question), heads_(question.importance->size()), tokens_(question.importance->front().size()) {
    for (const auto& head : *question.importance) KV_CHECK(head.size() == tokens_);
    least_ = std::max(1, static_cast<int32_t>(least * static_cast<double>(tokens_)));
  }

  const HullSolver& at(size_t ratio) {
    if (orders_ != question_.orders[ratio]) prepare(*question_.orders[ratio]);
    return *solver_;
  }

  int64_t total(size_t ratio) {
    const double kept = static_cast<double>((kProfileRatios - ratio) * tokens_ * heads_) / 100;
    return std::max<int64_t>(std::llround(kept), at(ratio).least_total());
  }

  // Loss of the budget in proportion to shares [heads], as an allocation divides it.
  double loss(size_t ratio, std::span<const double> shares) {
    const std::vector<int32_t> rooms(heads_, static_cast<int32_t>(tokens_));
    std::vector<int32_t> counts(heads_);
    apportion(total(ratio), shares, rooms, counts);
    at(ratio);
    double loss = 0;
    for (size_t h = 0; h < heads_; ++h) loss += tails_[h][static_cast<size_t>(counts[h])];
    return loss;
  }

  double removed(int32_t count) const { return 1 - static_cast<double>(count) / static_cast<double>(tokens_); }
  size_t heads() const { return heads_; }

 private:
  void prepare(const CalibrationQuestion::Orders& orders) {
    orders_ = &orders;
    gains_.resize(heads_);
    tails_.resize(heads_);
    std::vector<HeadGains> heads;
    for (size_t h = 0; h < heads_; ++h) {
      KV_CHECK(orders[h].size() == tokens_);
      gains_[h].clear();
      for (const int32_t position : orders[h]) {
        gains_[h].push_back((*question_.importance)[h][static_cast<size_t>(position)]);
      }
      heads.push_back({.gains = gains_[h], .least = least_});
      tails_[h].assign(tokens_ + 1, 0.0);
      for (size_t i = tokens_; i-- > 0;) tails_[h][i] = tails_[h][i + 1] + gains_[h][i];
    }
    solver_.emplace(heads);
  }

  const CalibrationQuestion& question_;
  size_t heads_;
  size_t tokens_;
  int32_t least_ = 1;
  const CalibrationQuestion::Orders* orders_ = nullptr;
  std::vector<std::vector<float>> gains_;   // [heads][tokens] in order
  std::vector<std::vector<double>> tails_;  // [heads][tokens + 1] loss by count
  std::optional<HullSolver> solver_;
};

// Local ratios [99, heads] summed over questions.
struct QuestionHalf {
  std::vector<double> sum;
  int questions = 0;

  void add(size_t ratio, size_t head, size_t heads, double removed) { sum[ratio * heads + head] += removed; }
};

std::vector<float> mean_of(std::span<const QuestionHalf> halves) {
  std::vector<float> mean(halves.front().sum.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    int questions = 0;
    for (const QuestionHalf& half : halves) {
      sum += half.sum[i];
      questions += half.questions;
    }
    mean[i] = static_cast<float>(to_five_decimals(sum / questions));
  }
  return mean;
}

std::vector<double> shares_at(const std::vector<float>& removed, size_t ratio, size_t heads, double least) {
  return kept_shares(std::span(removed).subspan(ratio * heads, heads), least);
}

}  // namespace

CalibrationResult calibrate(std::span<const CalibrationQuestion> questions, double least) {
  KV_CHECK(!questions.empty());
  const size_t heads = questions.front().importance->size();
  const std::vector<double> alike(heads, 1.0);
  const ProfileLosses::Curve zeros(kProfileRatios, 0.0);
  CalibrationResult result{.removed = {}, .losses = {zeros, zeros, zeros, zeros}, .split_half = {}};
  ProfileLosses& losses = result.losses;
  std::array<QuestionHalf, 2> halves;
  for (QuestionHalf& half : halves) half.sum.assign(kProfileRatios * heads, 0.0);
  const auto share = 1.0 / static_cast<double>(questions.size());
  for (size_t q = 0; q < questions.size(); ++q) {
    Problem problem(questions[q], least);
    KV_CHECK(problem.heads() == heads);
    QuestionHalf& half = halves[q % 2];
    ++half.questions;
    for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) {
      const BudgetSplit split = problem.at(ratio).at(problem.total(ratio));
      for (size_t h = 0; h < heads; ++h) half.add(ratio, h, heads, problem.removed(split.counts[h]));
      losses.greedy[ratio] += share * split.loss;
      losses.bound[ratio] += share * split.bound;
      losses.uniform[ratio] += share * problem.loss(ratio, alike);
    }
  }
  result.removed = mean_of(halves);
  const bool has_two_halves = questions.size() > 1;
  std::array<std::vector<float>, 2> half_profiles;
  for (size_t i = 0; i < 2 && has_two_halves; ++i) half_profiles[i] = mean_of(std::span(&halves[i], 1));
  std::array<double, 2> same{}, other{};  // at 50 % and at 80 %
  for (size_t q = 0; q < questions.size(); ++q) {
    Problem problem(questions[q], least);
    for (size_t ratio = 0; ratio < kProfileRatios; ++ratio) {
      losses.profile[ratio] += share * problem.loss(ratio, shares_at(result.removed, ratio, heads, least));
      if (!has_two_halves || (ratio != kIndexOf50 && ratio != kIndexOf80)) continue;
      const size_t i = ratio == kIndexOf50 ? 0 : 1;
      same[i] += problem.loss(ratio, shares_at(half_profiles[q % 2], ratio, heads, least));
      other[i] += problem.loss(ratio, shares_at(half_profiles[1 - q % 2], ratio, heads, least));
    }
  }
  const SplitHalf halves_ratio{1 + relative_gap(other[0], same[0]), 1 + relative_gap(other[1], same[1])};
  // A half whose own profile loses nothing has no ratio.
  if (has_two_halves && std::isfinite(halves_ratio.half) && std::isfinite(halves_ratio.four_fifths)) {
    result.split_half = halves_ratio;
  }
  return result;
}

}  // namespace kv
