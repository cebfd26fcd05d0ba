#include "kernels/advance.h"

#include "kernels/cuda/device.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// One thread a (segment, layer, KV head). The count, which all of them read, stays as it is.
__global__ void advance_kernel(AdvanceArgs args, int64_t rows_a_segment) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= args.segment_count * rows_a_segment) return;
  Segment& segment = args.segments[i / rows_a_segment];
  KV_DEVICE_CHECK(segment.count == 0 || segment.count == 1);
  if (segment.count == 0) return;
  const int64_t layer = i % rows_a_segment / args.kv_heads;
  const int64_t head = i % args.kv_heads;
  ++args.lengths[layer * args.rows + int64_t{segment.sequence} * args.kv_heads + head];
  if (i % rows_a_segment == 0) args.positions[segment.first_token] = ++segment.first_position;
  has_settled();
}

}  // namespace

void advance(const AdvanceArgs& args) {
  const int64_t rows_a_segment = int64_t{args.layers} * args.kv_heads;
  launch(advance_kernel, ceil_div(args.segment_count * rows_a_segment, kThreads), kThreads, 0, args, rows_a_segment);
}

}  // namespace kv::cuda
