#include "kernels/cuda/attend/attend.cuh"

#include <algorithm>

namespace kv::cuda {

namespace {

constexpr int kWarps = 4;

// One warp a (query, query head); a query's pieces are those that begin before its own key.
__global__ void combine(AttendArgs args, AttendWork work) {
  const int64_t vector = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (vector >= work.vectors) return;
  const int lane = threadIdx.x % 32;
  const int dim = args.cache.head_dim;
  const int64_t q_head = vector % args.q_heads;
  const int64_t query = vector / args.q_heads % args.max_count;
  const AttendBlock block(args, work, vector / args.q_heads / args.max_count, q_head / work.group);
  block.check();
  if (query >= block.segment.count) return;
  const int pieces = static_cast<int>((block.base + query + work.piece_keys) / work.piece_keys);
  Softmax total{-kInfinity, 0};
  for (int p = lane; p < pieces; p += 32) {
    total.largest = fmaxf(total.largest, work.piece_softmax[p * work.vectors + vector].largest);
  }
  total.largest = warp_reduce(total.largest, Larger());
  for (int p = lane; p < pieces; p += 32) {
    const Softmax part = work.piece_softmax[p * work.vectors + vector];
    if (part.largest != -kInfinity) total.sum += part.sum * exp2_fast(part.largest - total.largest);
  }
  total.sum = warp_reduce(total.sum, Add());
  const int64_t to = (int64_t{block.segment.first_token + query} * args.q_heads + q_head) * dim;
  for (int d = 2 * lane; d < dim; d += 64) {
    float a = 0, b = 0;
    for (int p = 0; p < pieces; ++p) {
      const float largest = work.piece_softmax[p * work.vectors + vector].largest;
      if (largest == -kInfinity) continue;
      const float share = exp2_fast(largest - total.largest);
      const float* from = work.piece_outputs + (p * work.vectors + vector) * dim + d;
      a += share * from[0];
      b += share * from[1];
    }
    write_output(work, to + d, a / total.sum, b / total.sum);
  }
  if (lane == 0 && work.softmax) work.softmax[vector] = {total.largest, 1 / total.sum};
}

}  // namespace

Pieces::Pieces(const AttendArgs& args, AttendWork& work, const SplitRule& rule) {
  const int64_t wanted = std::max<int64_t>(1, rule.waves * multiprocessors() / std::max<int64_t>(1, rule.blocks));
  int64_t keys = ceil_div(ceil_div(args.cache.max_length, wanted), rule.step) * rule.step;
  keys = std::max(keys, rule.least);
  if (rule.most > 0) keys = std::min(keys, rule.most);
  work.piece_keys = keys;
  work.pieces = static_cast<int>(std::max<int64_t>(1, ceil_div(args.cache.max_length, keys)));
  if (work.pieces == 1) return;
  outputs_.emplace(work.pieces * work.vectors * args.cache.head_dim);
  softmax_.emplace(work.pieces * work.vectors);
  work.piece_outputs = outputs_->data();
  work.piece_softmax = softmax_->data();
}

void combine_pieces(const AttendArgs& args, const AttendWork& work) {
  if (work.pieces > 1) launch(combine, ceil_div(work.vectors, kWarps), kWarps * 32, 0, args, work);
}

}  // namespace kv::cuda
