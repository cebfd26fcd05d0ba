#pragma once

#include <cstdint>
#include <vector>

namespace kv::ref {

struct Product {
  std::vector<double> values;      // [rows, out], or what is there in place of out
  std::vector<double> magnitudes;  // Σ |terms| of each
};

// input [rows, in] · weight [out, in]ᵀ + bias [out] + addend [rows, out]; empty bias or addend: none.
Product linear(const std::vector<float>& input, const std::vector<float>& weight, const std::vector<float>& bias,
               const std::vector<float>& addend, int64_t rows, int64_t in, int64_t out);

// output_gradient [rows, out] · weight [out, in] + addend [rows, in]: [rows, in]; empty addend: none.
Product linear_backward(const std::vector<float>& output_gradient, const std::vector<float>& weight,
                        const std::vector<float>& addend, int64_t rows, int64_t in, int64_t out);

}  // namespace kv::ref
