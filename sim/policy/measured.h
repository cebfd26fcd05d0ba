#pragma once

#include <optional>
#include <string>

namespace kv {

// One measured value; the harness adds experiment, model, data, policy, device, seed and the axes.
struct Measured {
  int sample = 0;            // index in the batch
  std::optional<int> layer;  // as the model counts them
  std::optional<int> head;
  std::optional<double> x;  // position, distance, ratio …: the metric says which
  std::string metric;       // snake_case
  double value = 0;
  std::string unit;  // "", "nats", "tokens", "bytes", "s", …
  std::string text;
  std::string skipped;  // a reason instead of a value
};

}  // namespace kv
