#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/retention_gate/retention_gate.cuh"

// Gates of at most 64 units, which is what a training begins with: what lies between such products would take most of
// the time. A block takes a tile of tokens through all layers, and back. The first layer's weights pass by in panels of
// 64 inputs; units and slopes stay in shared memory. Sums over tokens are products of cuBLASLt, of units and slopes
// that the blocks leave behind; what they leave of biases' and outputs' gradients a last kernel adds up.

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;  // eight warps: each has half of the tile's tokens and a quarter of the units
constexpr int kTokens = 32;    // of a tile
constexpr int kRows = 16;      // of a warp
constexpr int kUnits = kMostNarrowUnits;
constexpr int kColumns = 16;  // units or inputs of a warp
constexpr int kQuarters = kUnits / kColumns;
constexpr int kPanel = 64;        // inputs at a time
constexpr int kStages = 6;        // as many as most small models have: then weights stay for the way back
static_assert(kPanel == kUnits);  // all tiles have rows of 64

// A warp's 16 × 16 numbers, as products leave them: thread `lane` has rows lane / 4 (values 0, 1) and lane / 4 + 8
// (values 2, 3), columns 8n + lane % 4 · 2 and the next.
constexpr int kPairs = kColumns / 8;
using Numbers = float[kPairs][4];

struct Stage {
  bf16 inputs[kTokens * kPanel];
  bf16 weights[kUnits * kPanel];
};

// Behind it lie kQuarters floats a token and KV head.
struct Shared {
  Stage stages[kStages];
  bf16 hidden_weights[kUnits * kUnits];  // of one embedding
  bf16 units[kTokens * kUnits];
  bf16 slopes[kTokens * kUnits];

  __device__ float* numbers() { return reinterpret_cast<float*>(this + 1); }
};
size_t shared_bytes(const RetentionGateArgs& args) {
  return sizeof(Shared) + kQuarters * sizeof(float) * kTokens * static_cast<size_t>(args.kv_heads);
}

// Where a thread stands in its tile.
struct Place {
  int64_t first;  // token
  int count;      // tokens of the tile that are there
  int thread, lane, half, quarter;
  int row, column;  // the first of the warp's

  __device__ Place(int64_t first_token, int64_t tokens)
      : first(first_token + blockIdx.x * int64_t{kTokens}),
        count(static_cast<int>(min(int64_t{kTokens}, tokens - blockIdx.x * int64_t{kTokens}))),
        thread(static_cast<int>(threadIdx.x)),
        lane(thread % 32),
        half(thread / (kThreads / 2)),
        quarter(thread / 32 % kQuarters),
        row(half * kRows),
        column(quarter * kColumns) {}

  __device__ int row_of(int e) const { return row + lane / 4 + e / 2 * 8; }
  __device__ int column_of(int n, int e) const { return column + n * 8 + lane % 4 * 2 + e % 2; }
};

template <class Visit>
__device__ __forceinline__ void for_each(const Visit& visit) {
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) visit(n, e);
  }
}

// numbers += left · rightᵀ
__device__ __forceinline__ void add_by_rows(Numbers& numbers, const bf16* left, const bf16* right, const Place& at) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4], b[4];
    load_left<64>(a, left, at.row, step, at.lane);
    load_right<64>(b, right, at.column, step, at.lane);
    multiply_add(numbers[0], a, b[0], b[1]);
    multiply_add(numbers[1], a, b[2], b[3]);
  }
}
// numbers += left · right
__device__ __forceinline__ void add_by_columns(Numbers& numbers, const bf16* left, const bf16* right, const Place& at) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t a[4], b[4];
    load_left<64>(a, left, at.row, step, at.lane);
    load_right_by_columns<64>(b, right, step * 16, at.column / 16, at.lane);
    multiply_add(numbers[0], a, b[0], b[1]);
    multiply_add(numbers[1], a, b[2], b[3]);
  }
}

__device__ int panels_of(const RetentionGateArgs& args) { return static_cast<int>((args.width + kPanel - 1) / kPanel); }

// Rows of W1, of inputs from a panel's first on; zeros beyond units and inputs.
__device__ void stage_weights(const RetentionGateArgs& args, int panel, bf16* to, const Place& at) {
  const int64_t first = int64_t{panel} * kPanel;
  const auto* weights = static_cast<const bf16*>(args.input_weights.data) + first;
  stage_rows<kPanel>(to, kUnits, static_cast<int>(min(int64_t{kPanel}, args.width - first)), at.thread, kThreads,
                     [&](int unit) { return unit < args.hidden ? weights + unit * args.width : nullptr; });
}
// Rows of tokens, as wide as inputs; `tokens` is the tile's first.
__device__ void stage_tokens(const RetentionGateArgs& args, int panel, const bf16* tokens, bf16* to, const Place& at) {
  const int64_t first = int64_t{panel} * kPanel;
  stage_rows<kPanel>(to, kTokens, static_cast<int>(min(int64_t{kPanel}, args.width - first)), at.thread, kThreads,
                     [&](int token) { return token < at.count ? tokens + first + token * args.width : nullptr; });
}
__device__ void stage_hidden_weights(const RetentionGateArgs& args, int embedding, bf16* to, const Place& at) {
  const auto* weights =
      static_cast<const bf16*>(args.hidden_weights.data) + int64_t{embedding} * args.hidden * args.hidden;
  stage_rows<kUnits>(to, kUnits, args.hidden, at.thread, kThreads,
                     [&](int unit) { return unit < args.hidden ? weights + unit * args.hidden : nullptr; });
}

// Calls visit(panel, stage) for each panel, once stage_panel(panel, stage) has brought it.
template <class StagePanel, class Visit>
__device__ __forceinline__ void stream_panels(int panels, Stage* stages, const StagePanel& stage_panel,
                                              const Visit& visit) {
  const auto stage = [&](int panel) {
    if (panel < panels) stage_panel(panel, stages[panel % kStages]);
    commit_copies();
  };
#pragma unroll
  for (int panel = 0; panel < kStages - 1; ++panel) stage(panel);
#pragma unroll 1
  for (int panel = 0; panel < panels; ++panel) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the panel is there for all, and all are done with the one whose place the next takes
    stage(panel + kStages - 1);
    visit(panel, stages[panel % kStages]);
  }
}

// numbers = W1 x; the first embedding's W2 is on its way, too.
__device__ __forceinline__ void multiply_first_layer(const RetentionGateArgs& args, Shared& shared, const Place& at,
                                                     Numbers& numbers) {
  const auto* inputs = static_cast<const bf16*>(args.inputs.data) + at.first * args.width;
  if (args.hidden_weights.data) stage_hidden_weights(args, 0, shared.hidden_weights, at);
  stream_panels(
      panels_of(args), shared.stages,
      [&](int panel, Stage& to) {
        stage_tokens(args, panel, inputs, to.inputs, at);
        stage_weights(args, panel, to.weights, at);
      },
      [&](int, const Stage& stage) { add_by_rows(numbers, stage.inputs, stage.weights, at); });
}

// Numbers of a pair of columns each, rounded, to a tile.
__device__ __forceinline__ void put(const Numbers& numbers, bf16* tile, const Place& at) {
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      *reinterpret_cast<uint32_t*>(tile + place<kUnits>(at.row_of(e), at.column_of(n, 0))) =
          to_bf16_pair(numbers[n][e], numbers[n][e + 1]);
    }
  }
}

__device__ float bias_of(const float* biases, int unit, int hidden) { return unit < hidden ? biases[unit] : 0.0f; }

// Calls visit(embedding, sums), sums = W2 a + b2, one embedding after the other. Whoever visits may read
// shared.hidden_weights, and comes back together with all.
template <class Visit>
__device__ __forceinline__ void for_each_embedding(const RetentionGateArgs& args, Shared& shared, const Place& at,
                                                   const Visit& visit) {
#pragma unroll 1
  for (int embedding = 0; embedding < args.embeddings; ++embedding) {
    wait_copies<0>();
    __syncthreads();  // weights and units are there
    Numbers sums = {};
    add_by_rows(sums, shared.units, shared.hidden_weights, at);
    const float* biases = args.hidden_bias + embedding * args.hidden;
    for_each([&](int n, int e) { sums[n][e] += bias_of(biases, at.column_of(n, e), args.hidden); });
    visit(embedding, sums);
    __syncthreads();
    if (embedding + 1 < args.embeddings) stage_hidden_weights(args, embedding + 1, shared.hidden_weights, at);
    commit_copies();
  }
}

// The KV heads that read an embedding.
struct Heads {
  int first, end;
  __device__ Heads(const RetentionGateArgs& args, int embedding)
      : first(args.embeddings == 1 ? 0 : embedding), end(args.embeddings == 1 ? args.kv_heads : embedding + 1) {}
};

// w of the thread's units.
__device__ __forceinline__ void load_output_weights(const RetentionGateArgs& args, int head, const Place& at,
                                                    float (&weights)[2 * kPairs]) {
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i) {
    weights[i] = bias_of(args.output_weights + head * args.hidden, at.column_of(i / 2, i % 2), args.hidden);
  }
}

__global__ void __launch_bounds__(kThreads) write_log_retention(RetentionGateArgs args, int64_t first, int64_t tokens) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Place at(first, tokens);
  float* logits = shared.numbers();  // [quarter of the units, token, head]
  let_next_start();
  wait_for_previous();
  Numbers units = {};
  multiply_first_layer(args, shared, at, units);
  for_each([&](int n, int e) {
    units[n][e] = silu(units[n][e] + bias_of(args.input_bias, at.column_of(n, e), args.hidden));
  });
  const auto add_logits = [&](const Numbers& values, const Heads& heads) {
    for (int head = heads.first; head < heads.end; ++head) {
      float weights[2 * kPairs], z[2] = {};
      load_output_weights(args, head, at, weights);
      for_each([&](int n, int e) { z[e / 2] += weights[2 * n + e % 2] * values[n][e]; });
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        z[i] += __shfl_xor_sync(kWarp, z[i], 1);
        z[i] += __shfl_xor_sync(kWarp, z[i], 2);
        float* to = logits + (at.quarter * kTokens + at.row_of(2 * i)) * args.kv_heads + head;
        if (at.lane % 4 == 0) *to = z[i];
      }
    }
  };
  if (args.hidden_weights.data) {
    put(units, shared.units, at);
    for_each_embedding(args, shared, at, [&](int embedding, Numbers& sums) {
      for_each([&](int n, int e) { sums[n][e] = silu(sums[n][e]); });
      add_logits(sums, Heads(args, embedding));
    });
  } else {
    for_each([&](int n, int e) { units[n][e] = to_f32(to_bf16(units[n][e])); });
    add_logits(units, Heads(args, 0));
  }
  __syncthreads();
  for (int i = at.thread; i < at.count * args.kv_heads; i += kThreads) {
    float z = 0;
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) z += logits[quarter * kTokens * args.kv_heads + i];
    args.log_retention[at.first * args.kv_heads + i] = log_sigmoid(z + args.output_bias[i % args.kv_heads]);
  }
}

// ---- Backward -------------------------------------------------------------------------------------------------------

// The numbers that each half of a tile has for biases and outputs, one behind the other.
struct Parts {
  int hidden, embeddings, kv_heads;  // embeddings: 0 without a second layer

  __host__ __device__ int hidden_bias(int embedding) const { return (1 + embedding) * hidden; }
  __host__ __device__ int output_weights(int head) const { return (1 + embeddings + head) * hidden; }
  __host__ __device__ int output_bias() const { return output_weights(kv_heads); }
  __host__ __device__ int count() const { return output_bias() + kv_heads; }
};

// What blocks leave behind of a chunk of tokens.
struct Left {
  bf16* units;          // [tokens, hidden]; with a second layer
  bf16* hidden_slopes;  // [embeddings · hidden, tokens]; the same
  bf16* input_slopes;   // [hidden, tokens]
  float* parts;         // [2 · tiles, Parts::count()]
};

// Of a thread's values, summed over its two rows, 2n + e: a lane gets the sum over all rows of the (lane / 8)-th.
__device__ __forceinline__ float sum_over_rows(float (&values)[2 * kPairs], int lane) {
  static_assert(kPairs == 2);
#pragma unroll
  for (int left = 2; left > 0; left /= 2) {
    const bool upper = lane / 8 & left;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const float given = upper ? values[i] : values[i + left];
      values[i] = (upper ? values[i + left] : values[i]) + __shfl_xor_sync(kWarp, given, 8 * left);
    }
  }
  return values[0] + __shfl_xor_sync(kWarp, values[0], 4);
}

// Sums over the warp's rows, to one place a unit.
__device__ __forceinline__ void put_sums(float (&values)[2 * kPairs], int hidden, const Place& at, float* to) {
  const float sum = sum_over_rows(values, at.lane);
  const int unit = at.column_of(at.lane / 16, at.lane / 8 % 2);
  if (unit < hidden && at.lane / 4 % 2 == 0) to[unit] = sum;
}
__device__ __forceinline__ void put_sums(const Numbers& numbers, int hidden, const Place& at, float* to) {
  float values[2 * kPairs];
#pragma unroll
  for (int i = 0; i < 2 * kPairs; ++i) values[i] = numbers[i / 2][i % 2] + numbers[i / 2][i % 2 + 2];
  put_sums(values, hidden, at, to);
}

// A tile's columns as rows of [units, tokens]; `token` is the tile's first of them.
__device__ void write_by_unit(const bf16* tile, int hidden, const Place& at, int64_t token, int64_t tokens, bf16* to) {
  const int unit = at.thread % kUnits, first = at.thread / kUnits * 8;
  if (unit >= hidden) return;
  bf16* row = to + unit * tokens + token;
  if (tokens % 8 == 0 && first < at.count) {
    uint4 eight;
    auto* values = reinterpret_cast<bf16*>(&eight);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = tile[place<kUnits>(first + i, unit)];
    *reinterpret_cast<uint4*>(row + first) = eight;
  } else {
    for (int i = first; i < min(first + 8, at.count); ++i) row[i] = tile[place<kUnits>(i, unit)];
  }
}

// The first `pieces` of eight numbers of a tile's rows, to rows that lie `pitch` apart.
__device__ void write_rows(const bf16* tile, int pieces, const Place& at, bf16* to, int64_t pitch) {
  for (int i = at.thread; i < at.count * pieces; i += kThreads) {
    const int row = i / pieces, first = i % pieces * 8;
    *reinterpret_cast<uint4*>(to + row * pitch + first) =
        *reinterpret_cast<const uint4*>(tile + place<kUnits>(row, first));
  }
}

// x_gradient += slopes · W1, a panel of inputs at a time, whose gradients take the inputs' place.
__device__ __forceinline__ void add_input_gradients(const RetentionGateBackwardArgs& args, Shared& shared,
                                                    const Place& at) {
  const RetentionGateArgs& forward = args.forward;
  const int panels = panels_of(forward);
  auto* gradients = static_cast<bf16*>(args.input_gradient.data) + at.first * forward.width;
  stream_panels(
      panels, shared.stages,
      [&](int panel, Stage& to) {
        stage_tokens(forward, panel, gradients, to.inputs, at);
        if (panels > kStages) stage_weights(forward, panel, to.weights, at);  // else they are still there
      },
      [&](int panel, Stage& stage) {
        Numbers added = {};
        add_by_columns(added, shared.slopes, stage.weights, at);
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
#pragma unroll
          for (int e = 0; e < 4; e += 2) {
            auto* pair = reinterpret_cast<uint32_t*>(stage.inputs + place<kPanel>(at.row_of(e), at.column_of(n, 0)));
            const float2 before = to_f32_pair(*pair);
            *pair = to_bf16_pair(before.x + added[n][e], before.y + added[n][e + 1]);
          }
        }
        __syncthreads();
        const int64_t first = int64_t{panel} * kPanel;
        const int pieces = static_cast<int>(min(int64_t{kPanel}, forward.width - first)) / 8;
        write_rows(stage.inputs, pieces, at, gradients + first, forward.width);
      });
}

__global__ void __launch_bounds__(kThreads, 2)
    write_slopes(RetentionGateBackwardArgs args, int64_t first, int64_t tokens, Parts layout, Left left) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const RetentionGateArgs& forward = args.forward;
  const int hidden = forward.hidden, kv_heads = forward.kv_heads;
  const Place at(first, tokens);
  const int64_t token = at.first - first;  // of the chunk
  float* by = shared.numbers();            // [token, head]: slopes of logits
  float* parts = left.parts + (blockIdx.x * int64_t{2} + at.half) * layout.count();
  let_next_start();
  wait_for_previous();
  Numbers slopes = {}, units;
  for (int i = at.thread; i < kTokens * kv_heads; i += kThreads) {
    by[i] = i < at.count * kv_heads ? logit_gradient(args, at.first * kv_heads + i) : 0.0f;
  }
  multiply_first_layer(forward, shared, at, slopes);
  for_each([&](int n, int e) {
    const float sum = slopes[n][e] + bias_of(forward.input_bias, at.column_of(n, e), hidden);
    units[n][e] = silu(sum);
    slopes[n][e] = silu_slope(sum);
  });
  __syncthreads();  // `by` is there
  for (int head = at.quarter; head < kv_heads; head += kQuarters) {
    const float sum = warp_reduce(at.lane < kRows ? by[(at.row + at.lane) * kv_heads + head] : 0.0f, Add());
    if (at.lane == 0) parts[layout.output_bias() + head] = sum;
  }
  // Sums for the outputs of some heads that read these values, whose gradients come out.
  const auto go_back = [&](const Numbers& values, const Heads& heads, Numbers& gradients) {
    for (int head = heads.first; head < heads.end; ++head) {
      float weights[2 * kPairs], added[2 * kPairs];
      load_output_weights(forward, head, at, weights);
      const float logits[2] = {by[at.row_of(0) * kv_heads + head], by[at.row_of(2) * kv_heads + head]};
      for_each([&](int n, int e) { gradients[n][e] += logits[e / 2] * weights[2 * n + e % 2]; });
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        added[i] = logits[0] * values[i / 2][i % 2] + logits[1] * values[i / 2][i % 2 + 2];
      }
      put_sums(added, hidden, at, parts + layout.output_weights(head));
    }
  };
  Numbers of_units = {};
  if (forward.hidden_weights.data) {
    put(units, shared.units, at);
    __syncthreads();
    write_rows(shared.units, hidden / 8, at, left.units + token * hidden, hidden);
    for_each_embedding(forward, shared, at, [&](int embedding, Numbers& sums) {
      Numbers values, gradients = {};
      for_each([&](int n, int e) { values[n][e] = silu(sums[n][e]); });
      go_back(values, Heads(forward, embedding), gradients);
      for_each([&](int n, int e) { gradients[n][e] *= silu_slope(sums[n][e]); });
      put_sums(gradients, hidden, at, parts + layout.hidden_bias(embedding));
      put(gradients, shared.slopes, at);
      __syncthreads();
      write_by_unit(shared.slopes, hidden, at, token, tokens, left.hidden_slopes + embedding * hidden * tokens);
      add_by_columns(of_units, shared.slopes, shared.hidden_weights, at);
    });
  } else {
    for_each([&](int n, int e) { units[n][e] = to_f32(to_bf16(units[n][e])); });
    go_back(units, Heads(forward, 0), of_units);
  }
  for_each([&](int n, int e) { slopes[n][e] *= of_units[n][e]; });
  put_sums(slopes, hidden, at, parts);
  put(slopes, shared.slopes, at);
  __syncthreads();
  write_by_unit(shared.slopes, hidden, at, token, tokens, left.input_slopes);
  if (args.input_gradient.data) add_input_gradients(args, shared, at);
}

// Columns of `parts` [rows, Parts::count()], a block 32 of them: each warp every 32nd row, and then the warps.
constexpr int kAddingThreads = 1024;
__global__ void __launch_bounds__(kAddingThreads)
    add_parts(RetentionGateBackwardArgs args, Parts layout, const float* parts, int64_t rows) {
  __shared__ float sums[32][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int i = static_cast<int>(blockIdx.x) * 32 + lane;
  let_next_start();
  wait_for_previous();
  float sum = 0;
  if (i < layout.count()) {
#pragma unroll 8
    for (int64_t row = warp; row < rows; row += 32) sum += parts[row * layout.count() + i];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || i >= layout.count()) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < 32; ++w) sum += sums[w][lane];
  const auto add = [&](float* to, int begin) { to[i - begin] += sum; };
  if (i < layout.hidden_bias(0)) return add(args.input_bias_gradient, 0);
  if (i < layout.output_weights(0)) return add(args.hidden_bias_gradient, layout.hidden_bias(0));
  if (i < layout.output_bias()) return add(args.output_weight_gradient, layout.output_weights(0));
  add(args.output_bias_gradient, layout.output_bias());
}

void go_back_through_chunk(const RetentionGateBackwardArgs& args, int64_t first, int64_t tokens) {
  const RetentionGateArgs& forward = args.forward;
  const bool is_deep = static_cast<bool>(forward.hidden_weights);
  const Parts layout{forward.hidden, is_deep ? forward.embeddings : 0, forward.kv_heads};
  const int64_t tiles = ceil_div(tokens, kTokens), hidden = forward.hidden;
  const Scratch<bf16> units(is_deep ? tokens * hidden : 0), input_slopes(tokens * hidden);
  const Scratch<bf16> hidden_slopes(layout.embeddings * hidden * tokens);
  const Scratch<float> parts(2 * tiles * layout.count());
  launch_early(write_slopes, tiles, kThreads, shared_bytes(forward), args, first, tokens, layout,
               Left{units.data(), hidden_slopes.data(), input_slopes.data(), parts.data()});
  launch_early(add_parts, ceil_div(layout.count(), 32), kAddingThreads, 0, args, layout, parts.data(), 2 * tiles);
  if (is_deep) {
    add_over_tokens(hidden_slopes.data(), units.data(), tokens, layout.embeddings * hidden, hidden,
                    args.hidden_weight_gradient);
  }
  add_over_tokens(input_slopes.data(), forward.inputs.as<bf16>() + first * forward.width, tokens, hidden, forward.width,
                  args.input_weight_gradient);
}

void check_pieces(const RetentionGateArgs& args) {
  for (const ConstRef& rows : {args.inputs, args.input_weights, args.hidden_weights}) {
    KV_CHECK(!rows || is_aligned(rows.as<bf16>(), 16));
  }
}

}  // namespace

bool fits_narrow(const RetentionGateArgs& args) { return shared_bytes(args) <= shared_bytes_a_block(); }

void run_narrow_forward(const RetentionGateArgs& args) {
  check_pieces(args);
  launch_early(write_log_retention, ceil_div(args.tokens, kTokens), kThreads, shared_bytes(args), args, int64_t{0},
               args.tokens);
}

void run_narrow_backward(const RetentionGateBackwardArgs& args) {
  check_pieces(args.forward);
  KV_CHECK(!args.input_gradient || is_aligned(args.input_gradient.as<bf16>(), 16));
  for_each_chunk(args.forward, [&](int64_t first, int64_t tokens) { go_back_through_chunk(args, first, tokens); });
}

}  // namespace kv::cuda
