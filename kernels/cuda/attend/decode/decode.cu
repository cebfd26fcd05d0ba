#include <algorithm>
#include <bit>

#include <cuda/atomic>

#include "kernels/cuda/attend/decode/join.cuh"

// Memory is the limit here, so all multiprocessors have to stream pages from the first moment to the last, however
// ragged the rows are. The pages of all rows form one list, which is cut into equal runs, one a thread block, one block
// a multiprocessor; a row that the cuts fall into is joined by whichever of its blocks finishes last, in the order of
// its pieces. Where the cuts fall follows from the lengths in device memory alone: the grid and the scratch memory do
// not depend on them, so a launch can be captured in a graph and replayed while the rows grow.

namespace kv::cuda {

namespace {

using namespace decode;

constexpr int kMaxThreads = kMaxWarps * 32;
constexpr int kMaxBlocks = 1024;
constexpr size_t kStaticBytes = 1024;  // more than the kernel's fixed shared variables take

// How many blocks have added their piece to a row, by the row's first block. Always back at 0 after a launch.
__device__ unsigned int arrived[kMaxBlocks];

// Attends to the parts of the warp's run, and leaves what is no whole row as pieces.
template <int D>
__device__ void attend_run(const AttendArgs& args, const AttendWork& work, const Shared<D>& shared,
                           const Window& window, Pages<D>& pages, int dim) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Run run = pages.run;
  const float scale = args.scale * kToLog2;
  int k = part_at(shared.parts(), window, run.first);
  for (int t = 0; run.first + t < run.end; ++k) {
    const Part part = shared.parts()[k];
    const int pairs = part.count * work.group;
    HeldRows<D, 1> queries;
    load_queries<D>(queries, args, work, part, dim, lane);
    Attended<D> attended;
    const auto slot_of = [&](int t) { return (run.first + t - part.row_first()) * kPageTokens; };
    int32_t until = part.until_in_page(args, slot_of(t), lane);
    for (const int end = min(part.row_end(), run.end) - run.first; t < end; ++t) {
      // On its way while this page is waited for: a row's newest pages would take twice as long as all others.
      const int32_t until_next = t + 1 < end ? part.until_in_page(args, slot_of(t + 1), lane) : kNeverExpires;
      const bf16* keys = pages.take(t);
      const int first_slot = slot_of(t);
      int seen[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = min(lane / 4 + 8 * half, pairs - 1) / work.group;
        seen[half] = part.length - part.count + query + 1 - first_slot;
      }
      attended.add_page(queries, keys, seen, part.expired(until, work.group, pairs, lane), scale, lane);
      until = until_next;
    }
    __syncwarp();  // all are done with the stages
    if (run.holds(part)) {
      attended.visit(pairs, lane, [&](int pair, Softmax softmax) {
        const float inverse = 1 / softmax.sum;
        if (lane % 4 == 0 && work.softmax) {
          work.softmax[part.scratch(args, work.group, pair)] = {softmax.largest, inverse};
        }
        return [&work, dim, inverse, at = part.vector(args, work.group, pair) * dim](int d, float2 values) {
          if (d < dim) write_output(work, at + d, values.x * inverse, values.y * inverse);
        };
      });
    } else {
      const Piece<D> piece = shared.piece(warp, part.row_end() < run.end);
      attended.visit(pairs, lane, [&](int pair, Softmax softmax) {
        if (lane % 4 == 0) piece.softmax[pair] = softmax;
        return [to = piece.outputs + pair * D](int d, float2 values) { *reinterpret_cast<float2*>(to + d) = values; };
      });
    }
  }
}

// Only the last block to come joins the row.
__device__ inline void arrive(Meeting& meeting) {
  if (meeting.part < 0) return;
  unsigned int& count = arrived[meeting.blocks.first];
  const unsigned int before =
      ::cuda::atomic_ref<unsigned int, ::cuda::thread_scope_device>(count).fetch_add(1, ::cuda::memory_order_acq_rel);
  if (before + 1 == static_cast<unsigned int>(meeting.blocks.count)) {
    count = 0;
  } else {
    meeting.part = -1;
  }
}

// Each warp streams the pages of its run through stages of its own, without a barrier among warps until all are done.
template <int D, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, 1) attend_decode(AttendArgs args, AttendWork work, Layout layout) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Plan plan;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int dim = kWhole ? D : args.cache.head_dim;  // known to the compiler where it can be: addresses cost time here
  const Shared<D> shared{memory, layout.piece_bytes, layout.max_pairs};
  int done = 0;
  Shares shares;
  Window window;
  let_next_start();
  prefetch_tables(args.cache);
  do {
    window = list_parts(args, layout.rows_a_thread, done, shared.parts(), shares);
    Pages<D> pages{
        args.cache, shared.parts(), window, window.run_of(warp), reinterpret_cast<bf16*>(shared.stages(warp)), dim,
        lane};
    pages.next = pages.look_up(0);
    if (done == 0) prefetch_pages<D>(args.cache, shared.parts(), window, dim);
    if (window.pages() > 0) plan_joins(shared.parts(), window, shares, plan);
    wait_for_previous();
    if (window.pages() == 0) return;
    done += window.pages();
    pages.begin();
    attend_run<D>(args, work, shared, window, pages, dim);
    __syncthreads();
    join_warps<D>(args, work, layout, shared, plan, dim);
    __syncthreads();  // the block's pieces come before its arrival, and the others' arrivals before theirs are read
    if (threadIdx.x < 2) arrive(plan.meetings[threadIdx.x]);
    __syncthreads();
#pragma unroll 1
    for (const Meeting& meeting : plan.meetings) {
      if (meeting.part >= 0)
        join_blocks<D>(args, work, layout, shared, shared.parts()[meeting.part], meeting.blocks, dim);
    }
    __syncthreads();  // parts and stages are free for the next window
  } while (!window.is_last);
}

template <int D>
void run(const AttendArgs& args, const AttendWork& work) {
  using Shape = StageShape<D>;
  const int max_pairs = static_cast<int>(args.max_count) * work.group;
  const size_t warp_bytes = Shape::kWarpBytes + piece_bytes<D>(max_pairs);
  const size_t bytes = shared_bytes_a_block() - kStaticBytes - Shape::kPartBytes;
  const int warps = std::min(kMaxWarps, static_cast<int>(bytes / warp_bytes));
  KV_CHECK(warps > 0);
  // A row may be in as many pieces as there are blocks, and join_blocks() wants at least one pair's at once.
  const int joined = static_cast<int>(warps * Shape::kWarpBytes) / joining_bytes<D>(1);
  const int blocks = std::min({multiprocessors(), kMaxBlocks, joined});
  const int64_t pieces = 2 * int64_t{blocks} * max_pairs, rows = args.segment_count * args.cache.kv_heads;
  const Scratch<float> piece_outputs(pieces * D);
  const Scratch<Softmax> piece_softmax(pieces);
  const Layout layout{.rows_a_thread = static_cast<int>((rows + warps * 32 - 1) / (warps * 32)),
                      .piece_bytes = piece_bytes<D>(max_pairs),
                      .piece_outputs = piece_outputs.data(),
                      .piece_softmax = piece_softmax.data(),
                      .max_pairs = max_pairs,
                      .pair_bits = static_cast<int>(std::bit_width(static_cast<unsigned>(max_pairs - 1)))};
  launch_early(args.cache.head_dim == D ? attend_decode<D, true> : attend_decode<D, false>, blocks, warps * 32,
               Shape::kPartBytes + warps * warp_bytes, args, work, layout);
}

}  // namespace

void run_decode(const AttendArgs& args, AttendWork work) {
  KV_CHECK(args.segment_count * args.cache.kv_heads * args.cache.max_pages <= INT32_MAX);
  with_width(args.cache.head_dim, [&](auto width) { run<width>(args, work); });
}

}  // namespace kv::cuda
