#include "kernels/projected_norms.h"

#include "kernels/cuda/outer_sums.cuh"
#include "kernels/cuda/quadratic.cuh"

namespace kv::cuda {

namespace {

// A head's columns of the weight, one vector a row of the weight.
struct WeightRows {
  const bf16* weight;
  int64_t width;
  int64_t row;  // q_heads · head_dim
  int head_dim;

  __device__ int64_t count(int64_t) const { return width; }
  __device__ const bf16* vector(int64_t head, int64_t t) const { return weight + t * row + head * head_dim; }
};

struct Grams {
  float* grams;  // [q_heads, head_dim, head_dim]
  int64_t dim;
  __device__ void store(int64_t head, int a, int b, double sum) const {
    grams[(head * dim + a) * dim + b] = static_cast<float>(sum);
  }
};

template <int D>
__global__ void __launch_bounds__(kQuadraticThreads)
    norms_kernel(ProjectedNormsArgs args, const bf16* values, const float* grams) {
  const int64_t head = blockIdx.x % args.q_heads;
  const int64_t first = blockIdx.x / args.q_heads * kQuadraticVectors;
  const int64_t kv_head = head / (args.q_heads / args.kv_heads);
  const int64_t dim = args.head_dim;
  quadratic_forms<D>(
      grams + head * dim * dim, nullptr, args.head_dim,
      [&](int j) { return first + j < args.tokens ? values + ((first + j) * args.kv_heads + kv_head) * dim : nullptr; },
      [&](int j, double square) {
        // Rounding may leave a tiny negative square.
        args.norms[(first + j) * args.q_heads + head] = static_cast<float>(sqrt(fmax(0.0, square)));
      });
}

}  // namespace

void projected_norms(const ProjectedNormsArgs& args) {
  const int64_t dim = args.head_dim;
  const Scratch<float> grams(args.q_heads * dim * dim);
  const WeightRows rows{args.output_weight.as<bf16>(), args.width, args.q_heads * dim, args.head_dim};
  launch(outer_sums<WeightRows, Grams>, outer_blocks(args.q_heads, args.head_dim), kOuterThreads, 0, rows,
         Grams{grams.data(), dim}, args.head_dim);
  const bf16* values = args.values.as<bf16>();
  check_vectors(values, args.head_dim);
  with_width(args.head_dim, [&](auto width) {
    launch(norms_kernel<width>, ceil_div(args.tokens, kQuadraticVectors) * args.q_heads, kQuadraticThreads,
           quadratic_shared_bytes<width>(), args, values, grams.data());
  });
}

}  // namespace kv::cuda
