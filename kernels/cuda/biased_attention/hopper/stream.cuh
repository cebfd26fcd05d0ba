#pragma once

#include "kernels/cuda/biased_attention/biased_attention.cuh"
#include "kernels/cuda/hopper.cuh"

// What forward and backward on Hopper share. A thread block owns rows of two tensors, of one only in forward, 64 for
// each warpgroup that multiplies; rows of two others pass by, in steps, through a ring that one warp fills by TMA. With
// every row that passes by comes its *column*: what the logits of that column need, a key's bias or a query's state.
// Where there are biases, a second warp brings what turns them into a product (bias_product.cuh).
//
// Only the last tile of a segment is not full. TMA would bring tokens of others in, or none: NaN maybe, and 0 · NaN
// reaches the sums. So that tile is copied by hand, with zeros behind the segment's end.

namespace kv::cuda {

using Form = KeyBias::Form;

// `full` counts the bytes of a tile, `empty` those that have read it. [0] is of the first tensor and of the columns,
// and counts lanes, each of which reads columns by itself; [1] is of the second tensor, and counts warps.
template <int kStep, int kStages, int kNumbers>
struct Ring {
  Barrier full[2][kStages], empty[2][kStages];
  alignas(16) float columns[kStages][kNumbers][kStep];
  uint32_t nowhere;  // compute_now()'s

  // One thread.
  __device__ void init(int warps, bool has_bias) {
    for (int stage = 0; stage < kStages; ++stage) {
      // One for the tile, one of each lane of the warp that writes columns, and of that which writes biases: were it
      // one for all of a warp, racecheck would not see that it comes behind the others' writes.
      full[0][stage].init(1 + 32 * (1 + has_bias));
      full[1][stage].init(1);
      empty[0][stage].init(32 * warps);
      empty[1][stage].init(warps);
    }
    publish_barriers();
  }
};

// The numbers of a column.
template <int kNumbers>
struct Column {
  float number[kNumbers];
};

// One of the two tensors that pass by.
struct Passing {
  const bf16* data;  // [tokens, heads, D]
  const CUtensorMap& map;
  unsigned char* tiles;  // one a stage
};

// Tiles of kStep keys that a block of queries reads, from the newest to the oldest. Between those of its window and
// those of the first keys there may be some that none of its queries sees (KeyBias::far_keys).
struct KeyTiles {
  int steps = 0;
  int near = 0;  // steps before what is passed over
  int gap = 0;   // tiles passed over

  // Of queries [first, end) of a segment.
  template <int kStep, Form kForm>
  __device__ static KeyTiles of(const KeyBias& bias, int first, int end) {
    const int all = (end + kStep - 1) / kStep;
    if (kForm != Form::kOutsideWindow) return {all, all, 0};
    const int before = max(0, first - bias.window + 1) / kStep;  // tiles before the window of the first query
    const int far = bias.far_keys < before * kStep ? (bias.far_keys + kStep - 1) / kStep : before;
    return {all - (before - far), all - before, before - far};
  }
  // Where step t's keys begin.
  template <int kStep, Form kForm>
  __device__ int first_of(int t) const {
    const int after = steps - 1 - t;
    return (kForm == Form::kOutsideWindow && t < near ? after + gap : after) * kStep;
  }
};

// What passes by in one step: rows [first, first + kStep) of a head, as far as the segment has them.
struct Step {
  int first;
  int head;
};

template <int D, int kStep>
__device__ __forceinline__ void copy_last_rows(unsigned char* tile, const bf16* from, int64_t pitch, int rows,
                                               int lane) {
#pragma unroll 1
  for (int piece = lane; piece < kStep * D / 8; piece += 32) {
    const int row = piece / (D / 8), column = piece % (D / 8) * 8;
    void* panel = tile + column / kPanelColumns * kPanelBytes<kStep>;
    const bool present = row < rows;
    copy_or_zero(panel_piece(panel, row, column % kPanelColumns / 8), from + (present ? row * pitch + column : 0),
                 present);
  }
  commit_copies();
  wait_copies<0>();
  publish_to_async();
}

// The warp that fills the ring. step_of(t) is where step t's rows are, column_of(step, i) the column of row i.
template <int D, int kStep, int kStages, int kNumbers, class StepOf, class ColumnOf>
__device__ __forceinline__ void fill(Ring<kStep, kStages, kNumbers>& ring, const Segment& segment, int heads, int steps,
                                     const Passing& first, const Passing& second, const StepOf& step_of,
                                     const ColumnOf& column_of) {
  constexpr int kPanels = D / kPanelColumns, kTileBytes = kPanels * kPanelBytes<kStep>, kColumns = kStep / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Column<kNumbers> next[kColumns];
  const auto fetch = [&](const Step& step) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) next[i] = column_of(step, step.first + lane + 32 * i);
  };
  Step step = step_of(0);
  fetch(step);
  for (int t = 0; t < steps; ++t) {
    const int stage = t % kStages;
    const uint32_t emptied = (t / kStages + 1) % 2;  // the first round finds the ring empty
    const int rows = segment.count - step.first;
    const auto bring = [&](const Passing& passing, Barrier& full) {
      unsigned char* tile = passing.tiles + stage * kTileBytes;
      if (rows < kStep) {
        copy_last_rows<D, kStep>(tile, passing.data + vector_of(segment, heads, step.head, step.first) * D,
                                 int64_t{heads} * D, rows, lane);
        __syncwarp();
        if (lane == 0) full.arrive();
      } else {
        if (lane == 0) full.arrive_expecting(kTileBytes);
        __syncwarp();
        if (lane < kPanels) {
          copy_box(tile + lane * kPanelBytes<kStep>, passing.map, step.head * D + lane * kPanelColumns,
                   segment.first_token + step.first, full);
        }
      }
    };
    ring.empty[0][stage].wait(emptied);
    bring(first, ring.full[0][stage]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int n = 0; n < kNumbers; ++n) ring.columns[stage][n][lane + 32 * i] = next[i].number[n];
    }
    ring.full[0][stage].arrive();
    ring.empty[1][stage].wait(emptied);
    bring(second, ring.full[1][stage]);
    if (t + 1 == steps) return;
    step = step_of(t + 1);
    fetch(step);
  }
}

// Takes 64 rows of a head that the warpgroup owns, zero behind the segment's end. What follows must publish them.
template <int D>
__device__ __forceinline__ void take_rows(unsigned char* panels, const bf16* data, const Segment& segment, int heads,
                                          int head, int first, int thread) {
#pragma unroll 4
  for (int at = thread; at < 64 * D / 8; at += kWarpgroup) {
    const int row = at / (D / 8), column = at % (D / 8) * 8;
    const bf16* from = data + vector_of(segment, heads, head, first + row) * D + column;
    const uint4 word = first + row < segment.count ? *reinterpret_cast<const uint4*>(from) : uint4{};
    void* panel = panels + column / kPanelColumns * kPanelBytes<64>;
    *static_cast<uint4*>(panel_piece(panel, row, column % kPanelColumns / 8)) = word;
  }
}

// A thread's two rows of a warpgroup's sums, times what each half is multiplied by: token i of the segment, and i + 8.
template <int D, class To>
__device__ __forceinline__ void write_sums(To to, const Segment& segment, int heads, int head, int i, int lane,
                                           const float (&factors)[2], const float (&sums)[D / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (i + 8 * half >= segment.count) continue;
    const int64_t at = vector_of(segment, heads, head, i + 8 * half) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      write_pair(to, at + n * 8, sums[4 * n + 2 * half] * factors[half], sums[4 * n + 2 * half + 1] * factors[half]);
    }
  }
}

// The sums of a product are the left fragments of the next one, two by two.
template <int N>
__device__ __forceinline__ void pack(const float (&x)[2 * N], uint32_t (&packed)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) packed[i] = to_bf16_pair(x[2 * i], x[2 * i + 1]);
}

// A warp's 16 rows of left fragments into panels of kRows rows.
template <int kRows, int N>
__device__ __forceinline__ void write_rows(unsigned char* panels, int first_row, const uint32_t (&left)[N], int lane) {
  const int row = first_row + lane % 16;
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    const int piece = 2 * n + lane / 16;
    store_matrices(panel_piece(panels + piece / 8 * kPanelBytes<kRows>, row, piece % 8),
                   {left[4 * n], left[4 * n + 1], left[4 * n + 2], left[4 * n + 3]});
  }
}

// sums += left · right, the right operand summed over its kStep rows. Not committed.
template <int kStep, int kSums>
__device__ __forceinline__ void add_by_columns(float (&sums)[kSums], const uint32_t (&left)[kStep / 4],
                                               const void* tile) {
  const Operand right = by_columns<kStep>(tile);
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k) product_by_columns(sums, left + 4 * k, right + row_step(k), 1);
}

// Whose rows a block owns, and so whose are the columns.
enum class Owner : uint8_t { kQueries, kKeys };

// By how much i − j of a thread's pair (n, e), the value 4n + e of its sums, differs from that of its first.
template <Owner kOwner>
__device__ __forceinline__ constexpr int apart(int n, int e) {
  const int along = n * 8 + e % 2 - e / 2 * 8;
  return kOwner == Owner::kKeys ? along : -along;
}

// What a query does not see. `distance` is i − j of the thread's first pair.
template <Owner kOwner, int N>
__device__ __forceinline__ void mask(float (&x)[N], int distance) {
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (distance + apart<kOwner>(n, e) < 0) x[4 * n + e] = -kInfinity;
    }
  }
}

// A number of the thread's two columns among columns 8n to 8n + 7.
__device__ __forceinline__ float2 columns_of(const float* numbers, int n, int lane) {
  return *reinterpret_cast<const float2*>(numbers + n * 8 + lane % 4 * 2);
}

// b is cut off there: its products with negative distances, where pairs are masked, must not be +∞. Below it
// probabilities are 0 anyhow.
constexpr float kLeastBias = -1e30f;

// ∂bias / ∂b of a thread's pairs in a tile, all alike to the instruction: a case less for each pair. The first pair's
// distance i − j is `first`.
template <Form kForm>
struct Weights {
  float base = 0;

  __device__ __forceinline__ Weights(const KeyBias& bias, int first) {
    base = static_cast<float>(first);
    if (kForm == Form::kOutsideWindow) base -= static_cast<float>(bias.window - 1);
  }
  // Of the pair at the distance first + apart.
  __device__ __forceinline__ float at(int apart) const {
    const float x = base + static_cast<float>(apart);
    return kForm == Form::kOutsideWindow ? __saturatef(x) : x;  // distances are whole numbers: 0 or 1
  }
};

// Calls with the form as a constant: registers are too scarce for a kernel that knows them all.
template <class Call>
void with_form(Form form, const Call& call) {
  if (form == Form::kNone) return call(std::integral_constant<Form, Form::kNone>());
  if (form == Form::kOutsideWindow) return call(std::integral_constant<Form, Form::kOutsideWindow>());
  call(std::integral_constant<Form, Form::kDistance>());
}

// The same pointer, as a new one to the compiler: else it keeps in registers what can be derived from it.
__device__ __forceinline__ const unsigned char* anew(const unsigned char* panels) {
  asm volatile("" : "+l"(panels));
  return panels;
}

// Heads and segments are split into tiles of rows. 32 bits: a division of 64 is a function call, which would make the
// compiler wait after each product.
struct Place {
  Segment segment;
  int head;
  int tile;

  __device__ Place(const PackedAttention& attention, int heads, unsigned block) {
    const auto of_heads = static_cast<unsigned>(heads), segments = static_cast<unsigned>(attention.segment_count);
    const unsigned rest = block / of_heads;
    head = static_cast<int>(block % of_heads);
    segment = attention.segments[rest % segments];
    tile = static_cast<int>(rest / segments);
  }
};

}  // namespace kv::cuda
