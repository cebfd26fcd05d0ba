#include "tests/ref/linear.h"

#include <cmath>

namespace kv::ref {

Product linear(const std::vector<float>& input, const std::vector<float>& weight, const std::vector<float>& bias,
               const std::vector<float>& addend, int64_t rows, int64_t in, int64_t out) {
  Product product;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0, magnitude = 0;
      const auto add = [&](double term) {
        sum += term;
        magnitude += std::abs(term);
      };
      for (int64_t i = 0; i < in; ++i) add(double{input[r * in + i]} * weight[o * in + i]);
      if (!bias.empty()) add(bias[o]);
      if (!addend.empty()) add(addend[r * out + o]);
      product.values.push_back(sum);
      product.magnitudes.push_back(magnitude);
    }
  }
  return product;
}

}  // namespace kv::ref
