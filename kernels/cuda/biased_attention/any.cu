#include "kernels/cuda/attend/step.cuh"
#include "kernels/cuda/biased_attention/biased_attention.cuh"

// What a block owns in backward, a warp's 16·M rows of it, stays in registers as left operands; probabilities and
// slopes go from accumulators to operands without leaving them, sixteen rows of what passes by at a time, because
// registers are scarce.

namespace kv::cuda {

namespace {

constexpr int kThreads = 128;

// Query heads are split into blocks, or KV heads, and segments into tiles. What takes longest starts first.
struct Place {
  Segment segment;
  int head;
  int tile;

  __device__ Place(const PackedAttention& attention, int heads)
      : segment(attention.segments[blockIdx.x / heads % attention.segment_count]),
        head(static_cast<int>(blockIdx.x % heads)),
        tile(static_cast<int>(blockIdx.x / (heads * attention.segment_count))) {}
};

// Writes 16·M rows of a warp's sums, times `factor`: vector(row) is where, or negative where there is none.
template <int D, int M, class Vector>
__device__ __forceinline__ void write_rows(Ref to, int dim, const float (&sums)[M][D / 8][4], float factor, int lane,
                                           const Vector& vector) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = vector(16 * m + lane / 4 + 8 * half);
      if (at < 0) continue;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int d = n * 8 + lane % 4 * 2;
        if (d < dim) write_pair(to, at * dim + d, sums[m][n][2 * half] * factor, sums[m][n][2 * half + 1] * factor);
      }
    }
  }
}

// The bias of every logit, and the mask. The tile's rows are queries from first_query on, its columns keys from
// first_key on, whose b are `biases`.
template <int M>
__device__ __forceinline__ void add_biases(Logits<M>& logits, const KeyBias& bias, float scale, int first_query,
                                           int first_key, const float* biases, int lane) {
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = n * 8 + lane % 4 * 2 + e;
      const float b = biases[column];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int distance = first_query + 16 * m + lane / 4 + 8 * half - (first_key + column);
          float& x = logits[m][n][2 * half + e];
          x = distance < 0 ? -kInfinity : x * scale + bias_weight(bias, distance) * b;
        }
      }
    }
  }
}

template <int D, int M>
__global__ void __launch_bounds__(kThreads, 2) attend_biased(BiasedAttentionArgs args, int tiles) {
  constexpr int kRows = 64 * M;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float biases[2][kStepKeys];
  bf16* query_tile = reinterpret_cast<bf16*>(shared);
  bf16* key_tiles = query_tile + kRows * D;  // two, then two of values
  bf16* value_tiles = key_tiles + 2 * kStepKeys * D;
  const PackedAttention& attention = args.attention;
  const int dim = attention.head_dim;
  const Place place(attention, attention.q_heads);
  const Segment& segment = place.segment;
  const int first_query = (tiles - 1 - place.tile) * kRows;  // late tiles see the most keys
  if (first_query >= segment.count) return;
  const int kv_head = place.head / attention.group();
  const int end = min(segment.count, first_query + kRows);

  const auto load = [&](int first, int buffer) {
    const auto stage = [&](bf16* tiles_of, ConstRef vectors) {
      stage_rows<D>(tiles_of + buffer * kStepKeys * D, kStepKeys, dim, threadIdx.x, kThreads, [&](int r) {
        const int64_t vector = vector_of(segment, attention.kv_heads, kv_head, first + r);
        return first + r < end ? row_of(vectors, attention, vector) : nullptr;
      });
    };
    stage(key_tiles, attention.keys);
    stage(value_tiles, attention.values);
    commit_copies();
    if (threadIdx.x < kStepKeys) {
      biases[buffer][threadIdx.x] = bias_of(attention, segment, kv_head, first + static_cast<int>(threadIdx.x));
    }
  };
  stage_rows<D>(query_tile, kRows, dim, threadIdx.x, kThreads, [&](int r) {
    const int64_t vector = vector_of(segment, attention.q_heads, place.head, first_query + r);
    return first_query + r < end ? row_of(attention.queries, attention, vector) : nullptr;
  });
  load(0, 0);

  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 * M;
  const float scale = attention.scale * kToLog2;
  Attended<D, M> attended;
  for (int first = 0, buffer = 0; first < end; first += kStepKeys, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + kStepKeys < end) load(first + kStepKeys, 1 - buffer);
    Logits<M> logits = {};
    qk<D, M>(query_tile, first_row, key_tiles + buffer * kStepKeys * D, lane, logits);
    add_biases<M>(logits, attention.bias, scale, first_query + first_row, first, biases[buffer], lane);
    softmax<D, M>(logits, 1, attended);
    pv<D, M>(logits, value_tiles + buffer * kStepKeys * D, lane, attended);
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Softmax of = attended.state[m][half];
      const float sum = sum_of_four_lanes(of.sum);
      const int query = first_query + first_row + 16 * m + lane / 4 + 8 * half;
      if (lane % 4 == 0 && query < end) {
        args.log_sums[vector_of(segment, attention.q_heads, place.head, query)] = (of.largest + log2f(sum)) * kToLog;
      }
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        attended.output[m][n][2 * half] /= sum;
        attended.output[m][n][2 * half + 1] /= sum;
      }
    }
  }
  write_rows<D, M>(args.output, dim, attended.output, 1, lane, [&](int row) {
    const int query = first_query + first_row + row;
    return query < end ? vector_of(segment, attention.q_heads, place.head, query) : -1;
  });
}

// Rows that a block owns, 16·M a warp: as many as leave room for their sums.
template <int D>
struct Owned {
  static constexpr int kM = D <= 64 ? 2 : 1;
  static constexpr int kRows = 64 * kM;
  static constexpr int kStep = 64;  // rows that pass by at a time
  static constexpr size_t kSharedBytes = 4 * kStep * D * sizeof(bf16);
};

// A probability, and the slope of its logit, from the products q · k and dy · v.
struct Slope {
  float p;
  float ds;
};
__device__ __forceinline__ Slope slope_of(float qk, float dp, float scale, float bias, const QueryState& query) {
  const float p = exp2_fast(qk * scale + (bias - query.log_sum));
  return {p, p * (dp - query.mean_slope)};
}

// Two tiles of 16 × 8 sums, side by side, as a left operand of 16 × 16.
__device__ __forceinline__ void to_left(uint32_t (&a)[4], const float (&sums)[2][4]) {
  a[0] = to_bf16_pair(sums[0][0], sums[0][1]);
  a[1] = to_bf16_pair(sums[0][2], sums[0][3]);
  a[2] = to_bf16_pair(sums[1][0], sums[1][1]);
  a[3] = to_bf16_pair(sums[1][2], sums[1][3]);
}

// sums[row] += Σ weights[row, r] · tile[first + r], for r < 16.
template <int D, int M>
__device__ __forceinline__ void add_sixteen(const float (&weights)[M][2][4], const bf16* tile, int first, int lane,
                                            float (&sums)[M][D / 8][4]) {
  uint32_t a[M][4];
#pragma unroll
  for (int m = 0; m < M; ++m) to_left(a[m], weights[m]);
#pragma unroll
  for (int n = 0; n < D / 8; n += 2) {
    uint32_t b[4];
    load_right_by_columns<D>(b, tile, first, n / 2, lane);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      multiply_add(sums[m][n], a[m], b[0], b[1]);
      multiply_add(sums[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

// Stages the rows that a block owns, of two tensors, and takes the warp's into registers; staged memory is free again
// afterwards.
template <int D, class First, class Second>
__device__ __forceinline__ void own(bf16* staged, int dim, int first_row, int lane, const First& first_source,
                                    const Second& second_source, HeldRows<D, Owned<D>::kM>& first,
                                    HeldRows<D, Owned<D>::kM>& second) {
  constexpr int kRows = Owned<D>::kRows;
  static_assert(2 * kRows <= 4 * Owned<D>::kStep);
  stage_rows<D>(staged, kRows, dim, threadIdx.x, kThreads, first_source);
  stage_rows<D>(staged + kRows * D, kRows, dim, threadIdx.x, kThreads, second_source);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  first.load(staged, first_row, lane);
  second.load(staged + kRows * D, first_row, lane);
  __syncthreads();
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2)
    query_gradients(BiasedAttentionBackwardArgs args, const QueryState* states, int tiles) {
  constexpr int M = Owned<D>::kM, kRows = Owned<D>::kRows, kStep = Owned<D>::kStep;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float biases[2][kStep];
  bf16* staged = reinterpret_cast<bf16*>(shared);  // two tiles of keys, two of values
  const PackedAttention& attention = args.attention;
  const int dim = attention.head_dim;
  const Place place(attention, attention.q_heads);
  const Segment& segment = place.segment;
  const int first_query = (tiles - 1 - place.tile) * kRows;  // late tiles see the most keys
  if (first_query >= segment.count) return;
  const int kv_head = place.head / attention.group();
  const int end = min(segment.count, first_query + kRows);
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 * M;
  const auto query_vector = [&](int row) {
    const int query = first_query + row;
    return query < end ? vector_of(segment, attention.q_heads, place.head, query) : -1;
  };
  const auto query_source = [&](ConstRef vectors) {
    return [&, vectors](int r) {
      const int64_t vector = query_vector(r);
      return vector >= 0 ? row_of(vectors, attention, vector) : nullptr;
    };
  };
  HeldRows<D, M> queries, output_gradients;
  own<D>(staged, dim, first_row, lane, query_source(attention.queries), query_source(args.output_gradient), queries,
         output_gradients);
  QueryState state[M][2];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t vector = query_vector(first_row + 16 * m + lane / 4 + 8 * half);
      state[m][half] = vector >= 0 ? states[vector] : no_query();
    }
  }

  const auto load = [&](int first, int buffer) {
    const auto stage = [&](bf16* tiles_of, ConstRef vectors) {
      stage_rows<D>(tiles_of + buffer * kStep * D, kStep, dim, threadIdx.x, kThreads, [&](int r) {
        const int64_t vector = vector_of(segment, attention.kv_heads, kv_head, first + r);
        return first + r < end ? row_of(vectors, attention, vector) : nullptr;
      });
    };
    stage(staged, attention.keys);
    stage(staged + 2 * kStep * D, attention.values);
    commit_copies();
    if (threadIdx.x < kStep) {
      biases[buffer][threadIdx.x] = bias_of(attention, segment, kv_head, first + static_cast<int>(threadIdx.x));
    }
  };
  const float scale = attention.scale * kToLog2;
  float gradients[M][D / 8][4] = {};
  load(0, 0);
  for (int first = 0, buffer = 0; first < end; first += kStep, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (first + kStep < end) load(first + kStep, 1 - buffer);
    const bf16* keys = staged + buffer * kStep * D;
    const bf16* values = keys + 2 * kStep * D;
    for (int sixteen = 0; sixteen < kStep; sixteen += 16) {
      float x[M][2][4], dp[M][2][4];
      queries.times_sixteen(keys, sixteen, lane, x);
      output_gradients.times_sixteen(values, sixteen, lane, dp);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = sixteen + n * 8 + lane % 4 * 2 + e;
          const float b = biases[buffer][column];
#pragma unroll
          for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int distance = first_query + first_row + 16 * m + lane / 4 + 8 * half - (first + column);
              const Slope slope = slope_of(x[m][n][2 * half + e], dp[m][n][2 * half + e], scale,
                                           bias_weight(attention.bias, distance) * b, state[m][half]);
              x[m][n][2 * half + e] = distance < 0 ? 0 : slope.ds;
            }
          }
        }
      }
      add_sixteen<D, M>(x, keys, sixteen, lane, gradients);
    }
  }
  write_rows<D, M>(args.query_gradient, dim, gradients, attention.scale, lane,
                   [&](int row) { return query_vector(first_row + row); });
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2)
    key_gradients(BiasedAttentionBackwardArgs args, const QueryState* states) {
  constexpr int M = Owned<D>::kM, kRows = Owned<D>::kRows, kStep = Owned<D>::kStep;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ QueryState passing[2][kStep];
  bf16* staged = reinterpret_cast<bf16*>(shared);  // two tiles of queries, two of output gradients
  const PackedAttention& attention = args.attention;
  const int dim = attention.head_dim, group = attention.group();
  const Place place(attention, attention.kv_heads);  // early tiles are seen by the most queries
  const Segment& segment = place.segment;
  const int first_key = place.tile * kRows;
  if (first_key >= segment.count) return;
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 * M;
  const auto key_vector = [&](int row) {
    const int key = first_key + row;
    return key < segment.count ? vector_of(segment, attention.kv_heads, place.head, key) : -1;
  };
  const auto key_source = [&](ConstRef vectors) {
    return [&, vectors](int r) {
      const int64_t vector = key_vector(r);
      return vector >= 0 ? row_of(vectors, attention, vector) : nullptr;
    };
  };
  HeldRows<D, M> keys, values;
  own<D>(staged, dim, first_row, lane, key_source(attention.keys), key_source(attention.values), keys, values);
  float biases[M][2], bias_gradients[M][2] = {};
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      biases[m][half] = bias_of(attention, segment, place.head, first_key + first_row + 16 * m + lane / 4 + 8 * half);
    }
  }

  // Head after head of the group, of each the queries that see any of these keys.
  const int steps = (segment.count - first_key + kStep - 1) / kStep;
  const auto query_of = [&](int step) { return first_key + step % steps * kStep; };
  const auto load = [&](int step, int buffer) {
    const int first = query_of(step), head = place.head * group + step / steps;
    const auto stage = [&](bf16* tiles_of, ConstRef vectors) {
      stage_rows<D>(tiles_of + buffer * kStep * D, kStep, dim, threadIdx.x, kThreads, [&](int r) {
        const int64_t vector = vector_of(segment, attention.q_heads, head, first + r);
        return first + r < segment.count ? row_of(vectors, attention, vector) : nullptr;
      });
    };
    stage(staged, attention.queries);
    stage(staged + 2 * kStep * D, args.output_gradient);
    commit_copies();
    if (threadIdx.x < kStep) {
      const int query = first + static_cast<int>(threadIdx.x);
      passing[buffer][threadIdx.x] =
          query < segment.count ? states[vector_of(segment, attention.q_heads, head, query)] : no_query();
    }
  };
  const float scale = attention.scale * kToLog2;
  float of_keys[M][D / 8][4] = {}, of_values[M][D / 8][4] = {};
  load(0, 0);
  for (int step = 0, buffer = 0; step < steps * group; ++step, buffer = 1 - buffer) {
    wait_copies<0>();
    __syncthreads();
    if (step + 1 < steps * group) load(step + 1, 1 - buffer);
    const bf16* queries = staged + buffer * kStep * D;
    const bf16* output_gradients = queries + 2 * kStep * D;
    const int first = query_of(step);
    for (int sixteen = 0; sixteen < kStep; sixteen += 16) {
      float p[M][2][4], ds[M][2][4];
      keys.times_sixteen(queries, sixteen, lane, p);
      values.times_sixteen(output_gradients, sixteen, lane, ds);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = sixteen + n * 8 + lane % 4 * 2 + e;
          const QueryState query = passing[buffer][column];
#pragma unroll
          for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const int distance = first + column - (first_key + first_row + 16 * m + lane / 4 + 8 * half);
              const float weight = bias_weight(attention.bias, distance);
              const Slope slope =
                  slope_of(p[m][n][2 * half + e], ds[m][n][2 * half + e], scale, weight * biases[m][half], query);
              p[m][n][2 * half + e] = distance < 0 ? 0 : slope.p;
              ds[m][n][2 * half + e] = distance < 0 ? 0 : slope.ds;
              bias_gradients[m][half] += distance < 0 ? 0 : weight * slope.ds;
            }
          }
        }
      }
      add_sixteen<D, M>(p, output_gradients, sixteen, lane, of_values);
      add_sixteen<D, M>(ds, queries, sixteen, lane, of_keys);
    }
  }
  const auto vector = [&](int row) { return key_vector(first_row + row); };
  if (!args.asks_of_bias_alone()) {
    write_rows<D, M>(args.key_gradient, dim, of_keys, attention.scale, lane, vector);
    write_rows<D, M>(args.value_gradient, dim, of_values, 1, lane, vector);
  }
  if (!args.bias_gradient) return;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_four_lanes(bias_gradients[m][half]);
      const int64_t at = vector(16 * m + lane / 4 + 8 * half);
      if (lane % 4 == 0 && at >= 0) args.bias_gradient[at] = sum;
    }
  }
}

template <class Call>
void with_served_width(int dim, const Call& call) {
  with_width(dim, [&](auto width) {
    if constexpr (width <= kWidest) call(width);
  });
}

}  // namespace

void run_any_forward(const BiasedAttentionArgs& args) {
  const PackedAttention& attention = args.attention;
  with_served_width(attention.head_dim, [&](auto width) {
    constexpr int kM = 2, kRows = 64 * kM;
    const int64_t tiles = ceil_div(attention.max_count, kRows);
    launch(attend_biased<width, kM>, tiles * attention.segment_count * attention.q_heads, kThreads,
           (kRows + 4 * kStepKeys) * width * sizeof(bf16), args, tiles);
  });
}

void run_any_backward(const BiasedAttentionBackwardArgs& args, const QueryState* states) {
  const PackedAttention& attention = args.attention;
  with_served_width(attention.head_dim, [&](auto width) {
    const int64_t tiles = ceil_div(attention.max_count, Owned<width>::kRows) * attention.segment_count;
    launch(key_gradients<width>, tiles * attention.kv_heads, kThreads, Owned<width>::kSharedBytes, args, states);
    if (args.asks_of_bias_alone()) return;
    launch(query_gradients<width>, tiles * attention.q_heads, kThreads, Owned<width>::kSharedBytes, args, states,
           ceil_div(attention.max_count, Owned<width>::kRows));
  });
}

}  // namespace kv::cuda
