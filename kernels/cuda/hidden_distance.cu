#include "kernels/hidden_distance.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A warp a token.
__global__ void distance_kernel(HiddenDistanceArgs args, const bf16* students, const bf16* teachers, bf16* gradients) {
  const int64_t t = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / 32;
  if (t >= args.tokens) return;
  const int64_t first = t * args.width + threadIdx.x % 32, end = (t + 1) * args.width;
  const float weight = args.weights ? args.weights[t] : 1.0f;
  const auto pull = static_cast<float>(2.0 * args.scale * weight / static_cast<double>(args.width));
  double sum = 0;
  for (int64_t i = first; i < end; i += 32) {
    const float difference = weight == 0 ? 0.0f : to_f32(students[i]) - to_f32(teachers[i]);
    sum += double{difference} * difference;
    gradients[i] = to_bf16(pull * difference);
  }
  sum = warp_reduce(sum, Add());
  if (threadIdx.x % 32 == 0) args.loss[t] = static_cast<float>(sum / static_cast<double>(args.width));
}

}  // namespace

void hidden_distance(const HiddenDistanceArgs& args) {
  launch(distance_kernel, ceil_div(args.tokens, kThreads / 32), kThreads, 0, args, args.student.as<bf16>(),
         args.teacher.as<bf16>(), args.gradient.as<bf16>());
}

}  // namespace kv::cuda
