#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/policy/protection.h"

namespace kv {

inline constexpr int kProfileRatios = 99;  // removed fractions 1 % … 99 %

// In place of a scorer's name: the profile of heads that would lose their least important entries first, the division
// "without optimality gap" (002 Table 3). One for all scorers of a model.
inline constexpr std::string_view kOracleOrder = "oracle order";

// How a budget profile came about.
struct Calibration {
  std::vector<std::string> data;  // tasks with their options
  int samples = 0;                // contexts
  int questions = 0;              // over all samples
  int64_t tokens = 0;             // of the longest context
  uint64_t seed = 0;
};

// Eviction loss by removed fraction, mean over the calibration's questions: Σ Ĩ over what leaves, a layer's total being
// 1, so in [0, layers].
struct ProfileLosses {
  using Curve = std::vector<double>;  // [99]
  Curve uniform;                      // equal counts
  Curve profile;                      // counts by the profile itself
  Curve greedy;                       // each question's own division (HullSolver)
  Curve bound;                        // its hulls' loss: no division of that question's budget loses less
};

// Loss on one half of the questions under the other half's profile over that under its own, both halves together.
struct SplitHalf {
  double half = 1;         // at 50 % removed
  double four_fifths = 1;  // at 80 %
};

// The offline profile of LU-KV (002 Sec. 4.3): for one model and one scorer, which fraction of each
// head leaves when a fraction of the whole cache does.
struct BudgetProfile {
  std::string model;        // name of its folder
  std::string fingerprint;  // sim/model/weights.h
  std::string scorer;       // Policy::scorer_name, or kOracleOrder
  Protection protection;    // of that scorer when half is removed
  Calibration calibration;
  std::string origin{};  // by which code, where and when: a JSON object (harness/manifest.h); older files have none
  ProfileLosses losses;
  std::optional<SplitHalf> split_half;  // none with a single question
  int layers = 0;
  int kv_heads = 0;
  std::vector<float> removed;  // Φ [99, layers · kv_heads], each in [0, 1)

  size_t heads() const { return static_cast<size_t>(layers) * static_cast<size_t>(kv_heads); }
  // Φ(σ) [layers · kv_heads] by table look-up, without interpolation.
  std::span<const float> at(double removed_fraction) const;
};

// The same division over another number of layers and heads: each takes what stands at the same relative place of the
// profile, floor(l · profile.layers / layers). It says nothing about which heads of that model matter; it makes their
// lengths as unequal as those of a calibrated model, which is what time and memory depend on.
BudgetProfile laid_over(const BudgetProfile& profile, int layers, int kv_heads);

// Where a removed fraction stands in the table: clamp(round(100 σ) − 1, 0, 98), halves rounded up.
size_t ratio_index(double removed_fraction);

// What a head keeps in proportion to others: max(1 − Φ(σ), least) (002 App. E: 0.01) [layers · kv_heads].
std::vector<double> kept_shares(std::span<const float> removed, double least);

}  // namespace kv
