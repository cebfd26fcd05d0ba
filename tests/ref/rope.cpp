#include "tests/ref/rope.h"

#include <cmath>

namespace kv::ref {

std::vector<double> rope(const std::vector<float>& input, const std::vector<int32_t>& positions,
                         const std::vector<float>& inv_freq, int heads, double attention_factor) {
  const size_t half = inv_freq.size();
  std::vector<double> output(input.size());
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
      const size_t at = (t * static_cast<size_t>(heads) + head) * 2 * half;
      for (size_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[d];
        const double cosine = std::cos(double{angle}), sine = std::sin(double{angle});
        const double a = input[at + d], b = input[at + d + half];
        output[at + d] = attention_factor * (a * cosine - b * sine);
        output[at + d + half] = attention_factor * (b * cosine + a * sine);
      }
    }
  }
  return output;
}

std::vector<double> rope_backward(const std::vector<float>& output_gradient, const std::vector<int32_t>& positions,
                                  const std::vector<float>& inv_freq, int heads, double attention_factor) {
  const size_t half = inv_freq.size();
  std::vector<double> gradient(output_gradient.size());
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
      const size_t at = (t * static_cast<size_t>(heads) + head) * 2 * half;
      for (size_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[d];
        const double cosine = std::cos(double{angle}), sine = std::sin(double{angle});
        const double da = output_gradient[at + d], db = output_gradient[at + d + half];
        gradient[at + d] = attention_factor * (da * cosine + db * sine);
        gradient[at + d + half] = attention_factor * (db * cosine - da * sine);
      }
    }
  }
  return gradient;
}

}  // namespace kv::ref
