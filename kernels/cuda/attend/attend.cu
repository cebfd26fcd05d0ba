#include "kernels/attend.h"

#include "kernels/cuda/attend/attend.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

// A thread a (segment, query, query head), in the order of the scratch.
__global__ void __launch_bounds__(kThreads) write_log_sums(AttendArgs args, AttendWork work) {
  const int64_t at = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (at >= work.vectors) return;
  const int64_t head = at % args.q_heads, query = at / args.q_heads % args.max_count;
  const Segment segment = args.segments[at / args.q_heads / args.max_count];
  if (query >= segment.count) return;
  const Softmax of = work.softmax[at];  // in units of log 2; `sum` is the inverse
  args.log_sums[(segment.first_token + query) * args.q_heads + head] = (of.largest - log2f(of.sum)) / kToLog2;
}

}  // namespace

void attend(const AttendArgs& args) {
  const PagedView& cache = args.cache;
  check_cache(cache);
  KV_CHECK(cache.head_dim % 2 == 0 && args.q_heads % cache.kv_heads == 0);
  if (args.segment_count == 0 || args.max_count == 0) return;
  AttendWork work{};
  work.queries = args.queries.as<bf16>();
  work.output = args.output.as<bf16>();
  check_vectors(work.queries, cache.head_dim);
  KV_CHECK(is_aligned(work.output, 4));
  work.vectors = args.segment_count * args.max_count * args.q_heads;
  work.group = args.q_heads / cache.kv_heads;
  const bool with_columns = args.column_sums || args.column_max;
  KV_CHECK(!args.column_sums || args.column_sums.pitch >= cache.max_length);
  KV_CHECK(!args.column_max || args.column_max.pitch >= cache.max_length);
  const Scratch<Softmax> softmax(with_columns || args.log_sums ? work.vectors : 0);
  work.softmax = softmax.data();

  const bool is_decode = args.max_count * work.group <= kDecodePairs;
  if (is_decode) {
    run_decode(args, work);
  } else if (has_prefill(args)) {
    run_prefill(args, work);
  } else {
    run_any(args, work);
  }
  if (args.log_sums) launch(write_log_sums, ceil_div(work.vectors, kThreads), kThreads, 0, args, work);
  if (!with_columns) return;
  if (is_decode) {
    run_decode_columns(args, work);
  } else if (has_prefill(args) && args.max_count > 32) {  // its steps take 128 queries: of few, most would be masked
    run_prefill_columns(args, work);
  } else {
    run_any_columns(args, work);
  }
}

}  // namespace kv::cuda
