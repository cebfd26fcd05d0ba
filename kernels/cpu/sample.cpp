#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

struct Token {
  int32_t id;
  uint64_t weight;
};

// Those that may be drawn, in the order of ids.
std::vector<Token> candidates(const SampleArgs& args, const float* logits, float largest) {
  std::vector<int32_t> order(static_cast<size_t>(args.vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (args.top_k > 0 && args.top_k < args.vocab) {
    std::nth_element(order.begin(), order.begin() + args.top_k, order.end(), before);
    order.resize(static_cast<size_t>(args.top_k));
  }
  std::vector<Token> tokens;
  for (const int32_t id : order) {
    const float weight = std::exp((logits[id] - largest) / args.temperature) * kSampleUnit;
    tokens.push_back({id, static_cast<uint64_t>(weight)});
  }
  if (args.top_p < 1) {
    std::sort(tokens.begin(), tokens.end(), [&](const Token& a, const Token& b) { return before(a.id, b.id); });
    uint64_t total = 0;
    for (const Token& token : tokens) total += token.weight;
    const double enough = static_cast<double>(args.top_p) * static_cast<double>(total);
    uint64_t above = 0;
    size_t kept = 0;
    while (kept < tokens.size() && (kept == 0 || static_cast<double>(above) < enough)) above += tokens[kept++].weight;
    tokens.resize(kept);
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  return tokens;
}

int32_t draw(const std::vector<Token>& tokens, uint64_t random) {
  uint64_t total = 0;
  for (const Token& token : tokens) total += token.weight;
  uint64_t left = draw_below(random, total);
  for (const Token& token : tokens) {
    if (left < token.weight) return token.id;
    left -= token.weight;
  }
  KV_CHECK(false);
  return -1;
}

int32_t choose(const SampleArgs& args, int64_t row) {
  const float* logits = args.logits + row * args.vocab;
  const float* largest = std::max_element(logits, logits + args.vocab);
  if (args.temperature == 0) return static_cast<int32_t>(largest - logits);
  const uint64_t random = next_random(args.seed, args.numbers[args.sequences[row]], args.positions[row]);
  return draw(candidates(args, logits, *largest), random);
}

}  // namespace

void sample(const SampleArgs& args) {
  KV_CHECK(args.vocab > 0 && args.temperature >= 0 && args.top_k >= 0 && args.top_p > 0);
  const bool finite = !args.first_bad || *args.first_bad == kNothingBad;
  parallel_for(args.rows, [&](int64_t row) {
    const int32_t id = finite ? choose(args, row) : 0;
    args.ids[row] = id;
    const int32_t sequence = args.sequences[row];
    const int64_t place = args.positions[row] + 1 - args.origins[sequence];
    args.texts[place * args.sequence_count + sequence] = id;
  });
}

}  // namespace kv::cpu
