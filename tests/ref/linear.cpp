#include "tests/ref/linear.h"

#include <cmath>

namespace kv::ref {

namespace {

// The next number of a product, term by term.
class Sum {
 public:
  void add(double term) {
    value_ += term;
    magnitude_ += std::abs(term);
  }
  void append_to(Product& product) const {
    product.values.push_back(value_);
    product.magnitudes.push_back(magnitude_);
  }

 private:
  double value_ = 0, magnitude_ = 0;
};

}  // namespace

Product linear(const std::vector<float>& input, const std::vector<float>& weight, const std::vector<float>& bias,
               const std::vector<float>& addend, int64_t rows, int64_t in, int64_t out) {
  Product product;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      Sum sum;
      for (int64_t i = 0; i < in; ++i) sum.add(double{input[r * in + i]} * weight[o * in + i]);
      if (!bias.empty()) sum.add(bias[o]);
      if (!addend.empty()) sum.add(addend[r * out + o]);
      sum.append_to(product);
    }
  }
  return product;
}

Product linear_backward(const std::vector<float>& output_gradient, const std::vector<float>& weight,
                        const std::vector<float>& addend, int64_t rows, int64_t in, int64_t out) {
  Product product;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < in; ++i) {
      Sum sum;
      for (int64_t o = 0; o < out; ++o) sum.add(double{output_gradient[r * out + o]} * weight[o * in + i]);
      if (!addend.empty()) sum.add(addend[r * in + i]);
      sum.append_to(product);
    }
  }
  return product;
}

}  // namespace kv::ref
