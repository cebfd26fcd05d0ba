#include "kernels/expected_attention.h"

#include "kernels/cuda/outer_sums.cuh"
#include "kernels/cuda/quadratic.cuh"

namespace kv::cuda {

namespace {

// ---- Moments --------------------------------------------------------------------------------------------------------

// A list is one (segment, query head): its queries past the sinks.
struct Queries {
  const bf16* queries;
  const Segment* segments;
  int32_t first_position;
  int q_heads;
  int head_dim;

  __device__ int64_t skipped(const Segment& segment) const { return max(0, first_position - segment.first_position); }
  __device__ int64_t count(int64_t list) const {
    const Segment segment = segments[list / q_heads];
    return max(int64_t{0}, segment.count - skipped(segment));
  }
  __device__ const bf16* vector(int64_t list, int64_t t) const {
    const Segment segment = segments[list / q_heads];
    return queries + ((segment.first_token + skipped(segment) + t) * q_heads + list % q_heads) * head_dim;
  }
  // The list of running moments: (sequence, query head).
  __device__ int64_t moments(int64_t list) const {
    return segments[list / q_heads].sequence * int64_t{q_heads} + list % q_heads;
  }
};

struct AddProducts {
  Queries queries;
  double* products;
  __device__ void store(int64_t list, int a, int b, double sum) const {
    const int64_t dim = queries.head_dim;
    products[(queries.moments(list) * dim + a) * dim + b] += sum;
  }
};

__global__ void add_sums(Queries queries, double* sums) {
  const int64_t list = blockIdx.x;
  const int64_t count = queries.count(list);
  if (count == 0) return;
  for (int d = threadIdx.x; d < queries.head_dim; d += blockDim.x) {
    double sum = 0;
    for (int64_t t = 0; t < count; ++t) sum += to_f32(queries.vector(list, t)[d]);
    sums[queries.moments(list) * queries.head_dim + d] += sum;
  }
}

// ---- Scores ---------------------------------------------------------------------------------------------------------

struct Work {
  double2* rotations;  // [sequences, head_dim / 2], mean cosine and sine over the positions to come
  float* weights;      // [sequences, q_heads, head_dim, head_dim] = Σ' / (2D); null without covariance
  float* biases;       // [sequences, q_heads, head_dim] = μ' / √D
  float* logits;       // [rows, group, max_length]
  int64_t sequences;
  int group;
};

constexpr int kThreads = 256;

// One block a (sequence, frequency).
__global__ void average_rotations(ExpectedAttentionArgs args, Work work) {
  const int64_t half = args.cache.head_dim / 2;
  const int64_t sequence = blockIdx.x / half, d = blockIdx.x % half;
  double cosine = 0, sine = 0;
  for (int i = threadIdx.x; i < args.future; i += blockDim.x) {
    // Rounded to f32, as in rope.
    const double angle = __fmul_rn(static_cast<float>(args.next_position[sequence] + i), args.inv_freq[d]);
    double s, c;
    sincos(angle, &s, &c);
    cosine += c;
    sine += s;
  }
  cosine = block_reduce(cosine, 0.0, Add());
  sine = block_reduce(sine, 0.0, Add());
  if (threadIdx.x == 0) work.rotations[blockIdx.x] = {cosine / args.future, sine / args.future};
}

// One block a (sequence, query head). A thread turns the 2 × 2 block of Σ of two frequencies: R_a C R_bᵀ.
__global__ void future_moments(ExpectedAttentionArgs args, Work work) {
  const int dim = args.cache.head_dim;
  const int half = dim / 2;
  const int64_t index = blockIdx.x;
  const double2* rotations = work.rotations + index / args.q_heads * half;
  const double count = max(1, args.counts[index / args.q_heads]);
  const double* sums = args.sums + index * dim;
  for (int d = threadIdx.x; d < half; d += kThreads) {
    const double2 r = rotations[d];
    const double a = sums[d] / count, b = sums[d + half] / count;
    work.biases[index * dim + d] = static_cast<float>((r.x * a - r.y * b) / sqrt(double(dim)));
    work.biases[index * dim + d + half] = static_cast<float>((r.x * b + r.y * a) / sqrt(double(dim)));
  }
  if (!work.weights) return;
  const double* products = args.products + index * dim * dim;
  float* weights = work.weights + index * dim * dim;
  const auto covariance = [&](int a, int b) {
    return products[int64_t{a} * dim + b] / count - sums[a] / count * (sums[b] / count);
  };
  for (int i = threadIdx.x; i < half * half; i += kThreads) {
    const int a = i / half, b = i % half;
    const double2 ra = rotations[a], rb = rotations[b];
    const double c00 = covariance(a, b), c01 = covariance(a, b + half);
    const double c10 = covariance(a + half, b), c11 = covariance(a + half, b + half);
    const double t00 = ra.x * c00 - ra.y * c10, t01 = ra.x * c01 - ra.y * c11;
    const double t10 = ra.x * c10 + ra.y * c00, t11 = ra.x * c11 + ra.y * c01;
    const auto put = [&](int row, int column, double value) {
      weights[int64_t{row} * dim + column] = static_cast<float>(value / (2.0 * dim));
    };
    put(a, b, t00 * rb.x - t01 * rb.y);
    put(a, b + half, t01 * rb.x + t00 * rb.y);
    put(a + half, b, t10 * rb.x - t11 * rb.y);
    put(a + half, b + half, t11 * rb.x + t10 * rb.y);
  }
}

// u of 128 slots of a row and one query head.
template <int D>
__global__ void __launch_bounds__(kQuadraticThreads)
    future_logits(ExpectedAttentionArgs args, Work work, int64_t tiles) {
  const PagedView& cache = args.cache;
  const int64_t dim = cache.head_dim;
  const int64_t vector = blockIdx.x / tiles;  // (row, g)
  const int64_t row = vector / work.group;
  const int64_t first = blockIdx.x % tiles * kQuadraticVectors;
  const int64_t length = cache.lengths[row];
  if (!is_due(args.rows_due, row) || first >= length) return;
  const int64_t head = row / cache.kv_heads * args.q_heads + row % cache.kv_heads * work.group + vector % work.group;
  quadratic_forms<D>(
      work.weights ? work.weights + head * dim * dim : nullptr, work.biases + head * dim, cache.head_dim,
      [&](int j) { return first + j < length ? key_of(cache, row, first + j) : nullptr; },
      [&](int j, double logit) { work.logits[vector * cache.max_length + first + j] = static_cast<float>(logit); });
}

constexpr int kRowThreads = 512;

// One block a row: softmax of each query head over the slots past the sinks, mean over heads, times the value's length.
__global__ void __launch_bounds__(kRowThreads) score_rows(ExpectedAttentionArgs args, Work work) {
  const PagedView& cache = args.cache;
  const int64_t row = blockIdx.x;
  if (!is_due(args.rows_due, row)) return;
  const int64_t length = cache.lengths[row];
  const int lane = threadIdx.x % 32;
  float* scores = args.scores.row(row);
  const auto is_sink = [&](int64_t slot) { return cache.positions[place_of(cache, row, slot)] < args.sinks; };
  for (int g = 0; g < work.group; ++g) {
    const float* logits = work.logits + (row * work.group + g) * cache.max_length;
    float largest = -kInfinity;
    for (int64_t j = threadIdx.x; j < length; j += kRowThreads) {
      if (!is_sink(j)) largest = fmaxf(largest, logits[j]);
    }
    largest = block_reduce(largest, -kInfinity, Larger());
    double total = 0;
    for (int64_t j = threadIdx.x; j < length; j += kRowThreads) {
      if (!is_sink(j)) total += expf(logits[j] - largest);
    }
    total = block_reduce(total, 0.0, Add());
    const float factor = static_cast<float>(1 / (total * work.group));
    for (int64_t j = threadIdx.x; j < length; j += kRowThreads) {
      const float probability = is_sink(j) ? 0.0f : expf(logits[j] - largest) * factor;
      scores[j] = g == 0 ? probability : scores[j] + probability;
    }
  }
  __syncthreads();
  float largest = -kInfinity;
  for (int64_t j = threadIdx.x / 32; j < length; j += kRowThreads / 32) {
    float x[kLaneValues];
    load_lanes(value_of(cache, row, j), cache.head_dim, lane, x);
    float square = 0;
#pragma unroll
    for (int e = 0; e < kLaneValues; ++e) square += x[e] * x[e];
    square = warp_reduce(square, Add());
    if (is_sink(j)) continue;
    const float score = (scores[j] + args.epsilon) * sqrtf(square);
    largest = fmaxf(largest, score);
    __syncwarp();  // all lanes have read what one now replaces
    if (lane == 0) scores[j] = score;
  }
  largest = block_reduce(largest, -kInfinity, Larger());
  const float for_sinks = (largest == -kInfinity ? 0.0f : largest) + 1.0f;
  for (int64_t j = threadIdx.x; j < length; j += kRowThreads) {
    if (is_sink(j)) scores[j] = for_sinks;
  }
}

}  // namespace

void query_moments(const QueryMomentsArgs& args) {
  const Queries queries{args.queries.as<bf16>(), args.segments, args.first_position, args.q_heads, args.head_dim};
  const int64_t lists = args.segment_count * args.q_heads;
  launch(add_sums, lists, 128, 0, queries, args.sums);
  launch(outer_sums<Queries, AddProducts>, outer_blocks(lists, args.head_dim), kOuterThreads, 0, queries,
         AddProducts{queries, args.products}, args.head_dim);
}

void expected_attention(const ExpectedAttentionArgs& args) {
  const PagedView& cache = args.cache;
  check_cache(cache);
  KV_CHECK(cache.head_dim % 2 == 0 && args.q_heads % cache.kv_heads == 0 && args.future > 0);
  const int64_t dim = cache.head_dim;
  Work work{};
  work.sequences = cache.rows / cache.kv_heads;
  work.group = args.q_heads / cache.kv_heads;
  const int64_t heads = work.sequences * args.q_heads;
  const Scratch<double2> rotations(work.sequences * dim / 2);
  const Scratch<float> weights(args.use_covariance ? heads * dim * dim : 0), biases(heads * dim);
  const Scratch<float> logits(cache.rows * work.group * cache.max_length);
  work.rotations = rotations.data();
  work.weights = weights.data();
  work.biases = biases.data();
  work.logits = logits.data();
  launch(average_rotations, work.sequences * dim / 2, 128, 0, args, work);
  launch(future_moments, heads, kThreads, 0, args, work);
  const int64_t tiles = ceil_div(cache.max_length, kQuadraticVectors);
  with_width(cache.head_dim, [&](auto width) {
    launch(future_logits<width>, cache.rows * work.group * tiles, kQuadraticThreads, quadratic_shared_bytes<width>(),
           args, work, tiles);
  });
  launch(score_rows, cache.rows, kRowThreads, 0, args, work);
}

}  // namespace kv::cuda
