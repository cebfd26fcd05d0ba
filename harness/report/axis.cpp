#include "harness/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace kv {
namespace {

constexpr int kMostTicks = 100;
constexpr double kLargest = 1e150;  // of a range, so that its differences and quotients are finite

double warp(Scale scale, double value) { return scale == Scale::kLinear ? value : std::log(value); }

// Multiples of `step` in a range: a count, because beyond 2^53 steps from zero the next number is the same one.
std::vector<double> multiples(double step, double low, double high) {
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < kMostTicks && (first + i) * step <= high + 1e-9 * step; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

// At most `count` and about that many, but three at least where as many are asked for: a tick at the edge may lack room
// for its label, and one alone gives no scale.
std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  if (!(rough > 0)) return {low};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  constexpr std::array kSteps = {0.2, 0.5, 1.0, 2.0, 5.0, 10.0};
  std::size_t at = 2;
  while (at + 1 < kSteps.size() && kSteps[at] * power < rough * (1 - 1e-9)) ++at;
  std::vector<double> ticks = multiples(kSteps[at] * power, low, high);
  const auto least = static_cast<std::size_t>(std::clamp(count, 2, 3));
  while (ticks.size() < least && at > 0) ticks = multiples(kSteps[--at] * power, low, high);
  return ticks;
}

std::vector<double> log_ticks(double base, double low, double high, int count) {
  const auto power = [base](double value) { return std::log(value) / std::log(base); };
  const int first = static_cast<int>(std::ceil(power(low) - 1e-9)),
            last = static_cast<int>(std::floor(power(high) + 1e-9));
  std::vector<double> ticks;
  if (base == 10 && last - first < 2) {
    for (int exponent = first - 1; exponent <= last; ++exponent) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10, exponent);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
      }
    }
    return ticks.size() >= 2 ? ticks : linear_ticks(low, high, count);
  }
  if (last - first < 1) return linear_ticks(low, high, count);
  const int step = std::max(1, (last - first + count) / std::max(count, 1));
  for (int exponent = first; exponent <= last; exponent += step) ticks.push_back(std::pow(base, exponent));
  return ticks;
}

}  // namespace

void Range::add(double value) {
  if (log_ && value <= 0) return;
  value = std::clamp(value, log_ ? 1 / kLargest : -kLargest, kLargest);
  low_ = std::min(low_, value);
  high_ = std::max(high_, value);
}

void Range::add(const Estimate& estimate) {
  add(estimate.value);
  if (!estimate.interval) return;
  add(estimate.interval->low);
  add(estimate.interval->high);
}

std::array<double, 2> Range::padded(double share) const {
  if (empty()) return {log_ ? 0.1 : 0.0, 1.0};
  // Numbers that differ in their last digits alone are one number, with room around it.
  const bool flat = high_ - low_ <= 1e-9 * std::max(std::abs(low_), std::abs(high_));
  if (log_) {
    const double factor = flat ? 1.2 : std::pow(high_ / low_, share);
    return {low_ / factor, high_ * factor};
  }
  const double air = flat ? std::max(std::abs(low_) * 0.1, 1e-6) : (high_ - low_) * share;
  return {low_ - air, high_ + air};
}

PlotAxis::PlotAxis(Scale scale, std::array<double, 2> range, std::array<double, 2> pixels)
    : scale_(scale), range_(range), pixels_(pixels) {}

double PlotAxis::at(double value) const {
  if (scale_ != Scale::kLinear && value <= 0) value = range_[0];
  const double low = warp(scale_, range_[0]), high = warp(scale_, range_[1]);
  return pixels_[0] + (warp(scale_, value) - low) / (high - low) * (pixels_[1] - pixels_[0]);
}

double PlotAxis::value_at(double pixel) const {
  const double share = (pixel - pixels_[0]) / (pixels_[1] - pixels_[0]);
  if (scale_ == Scale::kLinear) return range_[0] + share * (range_[1] - range_[0]);
  return range_[0] * std::pow(range_[1] / range_[0], share);
}

std::vector<Tick> PlotAxis::ticks(int count) const {
  const std::vector<double> values = scale_ == Scale::kLinear
                                         ? linear_ticks(range_[0], range_[1], count)
                                         : log_ticks(scale_ == Scale::kLog2 ? 2 : 10, range_[0], range_[1], count);
  std::vector<Tick> out;
  for (const double value : values) out.push_back({value, tick_text(value)});
  return out;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size < 1e-12) return "0";
  if (size < 1e-3) {
    const int power = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    return fmt::format("{:.3g}e{}", value / std::pow(10, power), power);
  }
  if (size < 1e5) return fmt::format("{:.6g}", value);
  for (const auto& [unit, letter] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}}) {
    if (size >= unit) return fmt::format("{:.4g}{}", value / unit, letter);
  }
  return fmt::format("{:.6g}k", value / 1e3);
}

}  // namespace kv
