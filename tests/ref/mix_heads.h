#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

// Element by element, in double.
namespace kv::ref {

// Of outputs [tokens, kv_heads, width], width = group · head_dim.
struct HeadMix {
  int64_t tokens = 0, kv_heads = 1, width = 1;
  int64_t elements() const { return tokens * kv_heads * width; }
  int64_t head(int64_t element) const { return element / width % kv_heads; }
};

template <class Value>
std::vector<double> mix_heads(const HeadMix& shape, const std::vector<Value>& first, const std::vector<Value>& second,
                              const std::vector<Value>& shares) {
  std::vector<double> output(static_cast<size_t>(shape.elements()));
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const double share = shares[shape.head(i)];
    output[i] = share * first[i] + (1 - share) * second[i];
  }
  return output;
}

struct HeadMixGradient {
  std::vector<double> first, second, shares;
  std::vector<double> share_magnitude;  // Σ |terms|
};

template <class Value>
HeadMixGradient mix_heads_backward(const HeadMix& shape, const std::vector<Value>& first,
                                   const std::vector<Value>& second, const std::vector<Value>& shares,
                                   const std::vector<Value>& output_gradient) {
  const auto elements = static_cast<size_t>(shape.elements()), heads = static_cast<size_t>(shape.kv_heads);
  HeadMixGradient result{.first = std::vector<double>(elements),
                         .second = std::vector<double>(elements),
                         .shares = std::vector<double>(heads),
                         .share_magnitude = std::vector<double>(heads)};
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const int64_t head = shape.head(i);
    const double dy = output_gradient[i], difference = double{first[i]} - double{second[i]};
    result.first[i] = shares[head] * dy;
    result.second[i] = (1.0 - shares[head]) * dy;
    result.shares[head] += dy * difference;
    result.share_magnitude[head] += std::abs(dy * difference);
  }
  return result;
}

}  // namespace kv::ref
