#pragma once

#include "kernels/cuda/attend/decode/list.cuh"

// Who joins what when the pages are done. It follows from the list of parts, and is worked out before the kernel waits
// for the one before it: at the end every multiprocessor would wait for it.

namespace kv::cuda::decode {

// A part that several warps have a piece of, or the one that an earlier block began.
struct Split {
  int part;  // −1: none
  int first_warp;
  int last_warp;
  bool ends_early;  // the last warp has other parts after it
  int piece;        // where the block leaves what it has of the row; −1: that is all of it
};

// A row that several blocks have a part of, joined by the last of them to arrive.
struct Meeting {
  int part;  // −1: none
  Blocks blocks;
};

struct Plan {
  // For each warp the part that begins in its run and goes on beyond; last the one that an earlier block began.
  Split splits[kMaxWarps + 1];
  // The window's first part may have begun in an earlier block, its last one may go on in a later one.
  Meeting meetings[2];
};

// Returns the split of warp `which`; for kMaxWarps the part from an earlier block, whose pieces begin with warp 0's.
__device__ inline Split split_of(const Part* parts, const Window& window, const Shares& shares, int index) {
  Split split{.part = -1, .first_warp = index % kMaxWarps, .last_warp = 0, .ends_early = false, .piece = -1};
  if (index == kMaxWarps) {
    if (parts[0].first_page > 0) split.part = 0;
  } else if (const Run run = window.run_of(index); run.first < run.end) {
    const int last = part_at(parts, window, run.end - 1);
    if (parts[last].row_first() >= run.first && parts[last].row_end() > run.end) split.part = last;
  }
  if (split.part < 0) return split;
  const Part& part = parts[split.part];
  split.last_warp = (min(part.row_end(), window.pages()) - 1) / window.run_pages;
  split.ends_early = part.row_end() < window.run_of(split.last_warp).end;
  // A block's two pieces, if it has two: the end of one row and the beginning of another.
  if (shares.of(part, window).count > 1) split.piece = static_cast<int>(2 * blockIdx.x + (part.first_page == 0));
  return split;
}

__device__ inline Meeting meeting_of(const Part* parts, const Window& window, const Shares& shares, int index) {
  Meeting meeting{.part = index == 0 ? 0 : window.parts - 1, .blocks = {}};
  meeting.blocks = shares.of(parts[meeting.part], window);
  if (meeting.blocks.count == 1 || (index == 1 && meeting.part == 0)) meeting.part = -1;
  return meeting;
}

// To be read once all threads have met.
__device__ inline void plan_joins(const Part* parts, const Window& window, const Shares& shares, Plan& plan) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int index = warp + lane * Window::warps();
  if (index <= kMaxWarps) plan.splits[index] = split_of(parts, window, shares, index);
  if (warp == Window::warps() - 1 && lane < 2) plan.meetings[lane] = meeting_of(parts, window, shares, lane);
}

}  // namespace kv::cuda::decode
