#pragma once

namespace kv {

// Sizes above these are no model but a damaged or hostile configuration.
constexpr int kMaxModelSize = 1'000'000;
constexpr int kMaxModelLayers = 1000;
constexpr int kMaxModelPositions = 1'000'000'000;

struct NumberRange {
  double above;
  double at_most;
};

constexpr NumberRange kRopeTheta{1.0, 1e15};
constexpr NumberRange kRopeFactor{1e-6, 1e6};  // of the smallest, frequencies are still numbers

}  // namespace kv
