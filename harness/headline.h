#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kv {

// What a metric's or protocol's rows are about, in one number a case: a spec without tables and plots shows it
// (harness/spec/default_report.h).
struct Headline {
  std::string name;         // of its table: lower-case letters, digits and '-'
  std::string title;        // what stands above it
  std::string metric;       // in the rows' column metric
  std::string over{};       // instead of its mean: its sum over the sum of this metric
  std::string better{};     // "lower" or "higher"; empty where neither is
  std::string unit{};       // "ms", "GB", "%": how seconds, bytes and shares are shown; empty: as the rows have them
  std::string axis{};       // shown only by specs that have this axis; empty: by all
  bool of_answers = false;  // shown only of data whose texts have answers
  // Where each case has a curve of rows over their x, in place of one number: x in the plot, and those that the table
  // shows.
  std::vector<int64_t> curve_at{};
};

}  // namespace kv
