#include "kernels/projected_norms.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

constexpr int64_t kTokenBlock = 256;

// G_h: the head's columns of the weight, made contiguous as [dim, width], times themselves.
void gram(const ProjectedNormsArgs& args, int64_t head, float* out) {
  const int64_t dim = args.head_dim;
  const float* weight = args.output_weight.as<float>() + head * dim;
  const Scratch columns(dim * args.width);
  for (int64_t c = 0; c < args.width; ++c) {
    for (int64_t d = 0; d < dim; ++d) columns.data()[d * args.width + c] = weight[c * args.q_heads * dim + d];
  }
  gemm_nt(columns.data(), dim, args.width, columns.data(), dim, args.width, args.width, out, dim);
}

}  // namespace

void projected_norms(const ProjectedNormsArgs& args) {
  const int64_t dim = args.head_dim;
  const int64_t group = args.q_heads / args.kv_heads;
  const Scratch grams(args.q_heads * dim * dim);
  parallel_for(args.q_heads, [&](int64_t head) { gram(args, head, grams.data() + head * dim * dim); });

  const int64_t blocks = (args.tokens + kTokenBlock - 1) / kTokenBlock;
  parallel_for(blocks * args.q_heads, [&](int64_t task) {
    const int64_t head = task % args.q_heads;
    const int64_t first = task / args.q_heads * kTokenBlock;
    const int64_t count = std::min(kTokenBlock, args.tokens - first);
    const int64_t stride = args.kv_heads * dim;
    const float* values = args.values.as<float>() + first * stride + head / group * dim;
    const Scratch turned(count * dim);
    // The Gram matrix is symmetric: its transpose is itself.
    gemm_nt(values, count, stride, grams.data() + head * dim * dim, dim, dim, dim, turned.data(), dim);
    for (int64_t t = 0; t < count; ++t) {
      const double square = dot<double>(values + t * stride, turned.data() + t * dim, dim);
      // Rounding may leave a tiny negative square.
      args.norms[(first + t) * args.q_heads + head] = static_cast<float>(std::sqrt(std::max(0.0, square)));
    }
  });
}

}  // namespace kv::cpu
