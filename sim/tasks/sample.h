#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kv {

enum class Label : uint8_t { kContext, kNeedle, kQuestion, kAnswer };

// While tokens [query_begin, query_end) are read, the useful earlier tokens are the `sources` ranges [begin, end). A
// task whose answer is tokens [a, b) asks for its sources from a - 1 on, where its first token is predicted, to b - 1.
struct Link {
  int32_t query_begin = 0;
  int32_t query_end = 0;
  std::vector<std::pair<int32_t, int32_t>> sources;
};

// One sequence of an experiment.
struct Sample {
  std::string name;
  std::vector<int32_t> ids;
  std::vector<Label> labels;   // per token
  std::vector<Link> links;     // ascending query_begin; empty where useful positions are unknown
  int32_t context_tokens = 0;  // tokens before the first question; all of them without one
  std::string document = {};   // that it was drawn from; empty: of several, or of none. Samples of one are alike
};

}  // namespace kv
