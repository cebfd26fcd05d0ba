#include "kernels/rms_norm.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/inverse_rms.cuh"

namespace kv::cuda {

namespace {

constexpr int kThreads = 256;

template <int Team>
__device__ float team_sum(float sum) {
  if constexpr (Team == 32) {
    return warp_reduce(sum, Add());
  } else {
    return block_reduce(sum, 0.0f, Add());
  }
}

// The sum of squares is taken over a whole row by `Team` threads; each then writes the places it has read, so that the
// output may be the input.
template <int Team>
__global__ void rms_norm_kernel(const bf16* input, const bf16* weight, bf16* output, int64_t rows, int64_t width,
                                float inverse_width, float epsilon) {
  let_next_start();
  wait_for_previous();
  const int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / Team;
  const int member = threadIdx.x % Team;
  if (row >= rows) return;  // whole teams leave
  const bf16* x = input + row * width;
  bf16* y = output + row * width;
  float sum = 0;
  for (int64_t i = member; i < width; i += Team) {
    const float value = to_f32(x[i]);
    sum += value * value;
  }
  sum = team_sum<Team>(sum);
  const float scale = inverse_rms(sum, inverse_width, epsilon);
  for (int64_t i = member; i < width; i += Team) {
    y[i] = to_bf16(to_f32(x[i]) * scale * to_f32(weight[i]));
  }
}

// Up to four 16-byte words a thread stay in registers between the two passes: of a row of a large model's width a
// block's threads have some each, of a shorter one some lanes of a warp, so that a warp has up to four rows.
constexpr int kWords = 4;
constexpr int64_t kShortWords = 96;

// Lanes that share a short row, and words that each of them has.
template <int Lanes, int Words>
struct Team {
  static constexpr int kLanes = Lanes, kEach = Words;
  static constexpr int kRows = kThreads / Lanes;  // of a block
  static constexpr int kBlocks = 6 / Words;       // that a multiprocessor should hold on the way back
};

// Calls with the team of rows of so many words.
template <class Call>
void with_team(int64_t words, const Call& call) {
  KV_CHECK(words <= kShortWords);
  if (words <= 8) return call(Team<8, 1>());
  if (words <= 16) return call(Team<16, 1>());
  if (words <= 32) return call(Team<32, 1>());
  if (words <= 64) return call(Team<32, 2>());
  call(Team<32, 3>());
}

template <class T>
__device__ float sum_over(float sum) {
#pragma unroll
  for (int across = 1; across < T::kLanes; across *= 2) sum += __shfl_xor_sync(kWarp, sum, across);
  return sum;
}

// Which words a lane has of its row; beyond the last row, or the row's end, none. No lane leaves before the others of
// its warp: rows side by side share its shuffles.
template <class T>
struct Place {
  int64_t row, rows;
  int member, words;

  __device__ Place(int64_t rows, int words)
      : row(blockIdx.x * int64_t{T::kRows} + threadIdx.x / T::kLanes),
        rows(rows),
        member(static_cast<int>(threadIdx.x) % T::kLanes),
        words(words) {}

  __device__ int word(int k) const { return member + k * T::kLanes; }
  __device__ bool has(int k) const { return row < rows && word(k) < words; }
  __device__ int64_t at(int k) const { return row * words + word(k); }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_short(const uint4* input, const uint4* weight, uint4* output, int64_t rows, int words, float inverse_width,
                   float epsilon) {
  let_next_start();
  wait_for_previous();
  const Place<T> place(rows, words);
  uint4 held[T::kEach], weights_held[T::kEach];
#pragma unroll
  for (int k = 0; k < T::kEach; ++k) {
    held[k] = weights_held[k] = uint4{};
    if (place.has(k)) held[k] = input[place.at(k)], weights_held[k] = weight[place.word(k)];
  }
  float sum = 0;
#pragma unroll
  for (int e = 0; e < T::kEach * 8; ++e) {
    const float value = to_f32(reinterpret_cast<const bf16*>(held)[e]);
    sum += value * value;
  }
  sum = sum_over<T>(sum);
  const float scale = inverse_rms(sum, inverse_width, epsilon);
#pragma unroll
  for (int k = 0; k < T::kEach; ++k) {
    auto* values = reinterpret_cast<bf16*>(&held[k]);
    const auto* weights = reinterpret_cast<const bf16*>(&weights_held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] = to_bf16(to_f32(values[e]) * scale * to_f32(weights[e]));
    if (place.has(k)) output[place.at(k)] = held[k];
  }
}

__global__ void rms_norm_wide(const uint4* input, const uint4* weight, uint4* output, int64_t words,
                              float inverse_width, float epsilon) {
  let_next_start();
  wait_for_previous();
  const uint4* x = input + blockIdx.x * words;
  uint4* y = output + blockIdx.x * words;
  uint4 held[kWords], weights_held[kWords];  // weights are read before anybody knows the sum
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    held[k] = x[i];
    weights_held[k] = weight[i];
    const auto* values = reinterpret_cast<const bf16*>(&held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float value = to_f32(values[e]);
      sum += value * value;
    }
  }
  sum = team_sum<kThreads>(sum);
  const float scale = inverse_rms(sum, inverse_width, epsilon);
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    const auto* weights = reinterpret_cast<const bf16*>(&weights_held[k]);
    auto* values = reinterpret_cast<bf16*>(&held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      values[e] = to_bf16(to_f32(values[e]) * scale * to_f32(weights[e]));
    }
    y[i] = held[k];
  }
}

struct Backward {
  const bf16* output_gradient;
  const bf16* input;
  const bf16* weight;
  const bf16* addend;
  bf16* input_gradient;
  int64_t rows, width;
  float inverse_width;
  float epsilon;
};

// Like the way forward, each thread writes the places it has read.
template <int Team>
__global__ void rms_norm_backward_kernel(Backward args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = (blockIdx.x * int64_t{kThreads} + threadIdx.x) / Team;
  const int member = threadIdx.x % Team;
  if (row >= args.rows) return;  // whole teams leave
  const bf16* dy = args.output_gradient + row * args.width;
  const bf16* x = args.input + row * args.width;
  float squares = 0, along = 0;
  for (int64_t i = member; i < args.width; i += Team) {
    const float value = to_f32(x[i]);
    squares += value * value;
    along += to_f32(dy[i]) * to_f32(args.weight[i]) * value;
  }
  const NormSlope slope(team_sum<Team>(squares), team_sum<Team>(along), args.inverse_width, args.epsilon);
  for (int64_t i = member; i < args.width; i += Team) {
    const int64_t at = row * args.width + i;
    const float more = args.addend ? to_f32(args.addend[at]) : 0.0f;
    args.input_gradient[at] = to_bf16(slope(to_f32(dy[i]) * to_f32(args.weight[i]), to_f32(x[i])) + more);
  }
}

__device__ uint4 word_of(const bf16* values, int64_t word) { return reinterpret_cast<const uint4*>(values)[word]; }

__global__ void rms_norm_backward_wide(Backward args) {
  let_next_start();
  wait_for_previous();
  const int64_t words = args.width / 8;
  const int64_t first = blockIdx.x * words;
  uint4 x_held[kWords], dy_held[kWords], weights_held[kWords];
  float squares = 0, along = 0;
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    x_held[k] = word_of(args.input, first + i);
    dy_held[k] = word_of(args.output_gradient, first + i);
    weights_held[k] = word_of(args.weight, i);
    const auto* x = reinterpret_cast<const bf16*>(&x_held[k]);
    const auto* dy = reinterpret_cast<const bf16*>(&dy_held[k]);
    const auto* weights = reinterpret_cast<const bf16*>(&weights_held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float value = to_f32(x[e]);
      squares += value * value;
      along += to_f32(dy[e]) * to_f32(weights[e]) * value;
    }
  }
  const NormSlope slope(team_sum<kThreads>(squares), team_sum<kThreads>(along), args.inverse_width, args.epsilon);
#pragma unroll
  for (int k = 0; k < kWords; ++k) {
    const int64_t i = threadIdx.x + int64_t{k} * kThreads;
    if (i >= words) break;
    const uint4 more_held = args.addend ? word_of(args.addend, first + i) : uint4{};  // zeros
    const auto* more = reinterpret_cast<const bf16*>(&more_held);
    const auto* x = reinterpret_cast<const bf16*>(&x_held[k]);
    const auto* weights = reinterpret_cast<const bf16*>(&weights_held[k]);
    auto* dy = reinterpret_cast<bf16*>(&dy_held[k]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      dy[e] = to_bf16(slope(to_f32(dy[e]) * to_f32(weights[e]), to_f32(x[e])) + to_f32(more[e]));
    }
    reinterpret_cast<uint4*>(args.input_gradient)[first + i] = dy_held[k];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, T::kBlocks) rms_norm_backward_short(Backward args) {
  let_next_start();
  wait_for_previous();
  const Place<T> place(args.rows, static_cast<int>(args.width / 8));
  uint4 x_held[T::kEach], dy_held[T::kEach], weights_held[T::kEach], more_held[T::kEach];
#pragma unroll
  for (int k = 0; k < T::kEach; ++k) {
    x_held[k] = dy_held[k] = weights_held[k] = more_held[k] = uint4{};
    if (!place.has(k)) continue;
    x_held[k] = word_of(args.input, place.at(k));
    dy_held[k] = word_of(args.output_gradient, place.at(k));
    weights_held[k] = word_of(args.weight, place.word(k));
  }
  if (args.addend) {
#pragma unroll
    for (int k = 0; k < T::kEach; ++k) {
      if (place.has(k)) more_held[k] = word_of(args.addend, place.at(k));
    }
  }
  const auto* x = reinterpret_cast<const bf16*>(x_held);
  const auto* weights = reinterpret_cast<const bf16*>(weights_held);
  const auto* more = reinterpret_cast<const bf16*>(more_held);
  auto* dy = reinterpret_cast<bf16*>(dy_held);
  float squares = 0, along = 0;
#pragma unroll
  for (int e = 0; e < T::kEach * 8; ++e) {
    const float value = to_f32(x[e]);
    squares += value * value;
    along += to_f32(dy[e]) * to_f32(weights[e]) * value;
  }
  const NormSlope slope(sum_over<T>(squares), sum_over<T>(along), args.inverse_width, args.epsilon);
#pragma unroll
  for (int e = 0; e < T::kEach * 8; ++e) {
    dy[e] = to_bf16(slope(to_f32(dy[e]) * to_f32(weights[e]), to_f32(x[e])) + to_f32(more[e]));
  }
#pragma unroll
  for (int k = 0; k < T::kEach; ++k) {
    if (place.has(k)) reinterpret_cast<uint4*>(args.input_gradient)[place.at(k)] = dy_held[k];
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  const bf16* input = args.input.as<bf16>();
  const bf16* weight = args.weight.as<bf16>();
  bf16* output = args.output.as<bf16>();
  const auto* input_words = reinterpret_cast<const uint4*>(input);
  const auto* weight_words = reinterpret_cast<const uint4*>(weight);
  auto* output_words = reinterpret_cast<uint4*>(output);
  const int64_t words = args.width / 8;
  const float inverse_width = 1.0f / static_cast<float>(args.width);
  const bool is_wide = args.width % 8 == 0 && is_aligned(input, 16) && is_aligned(weight, 16) && is_aligned(output, 16);
  if (is_wide && words <= kShortWords) {
    with_team(words, [&](auto team) {
      using T = decltype(team);
      launch_early(rms_norm_short<T>, ceil_div(args.rows, T::kRows), kThreads, 0, input_words, weight_words,
                   output_words, args.rows, static_cast<int>(words), inverse_width, args.epsilon);
    });
  } else if (is_wide && words <= kThreads * kWords) {
    launch_early(rms_norm_wide, args.rows, kThreads, 0, input_words, weight_words, output_words, words, inverse_width,
                 args.epsilon);
  } else if (args.width <= 512) {
    launch_early(rms_norm_kernel<32>, ceil_div(args.rows, kThreads / 32), kThreads, 0, input, weight, output, args.rows,
                 args.width, inverse_width, args.epsilon);
  } else {
    launch_early(rms_norm_kernel<kThreads>, args.rows, kThreads, 0, input, weight, output, args.rows, args.width,
                 inverse_width, args.epsilon);
  }
}

void rms_norm_backward(const RmsNormBackwardArgs& args) {
  const Backward typed{.output_gradient = args.output_gradient.as<bf16>(),
                       .input = args.input.as<bf16>(),
                       .weight = args.weight.as<bf16>(),
                       .addend = args.addend ? args.addend.as<bf16>() : nullptr,
                       .input_gradient = args.input_gradient.as<bf16>(),
                       .rows = args.rows,
                       .width = args.width,
                       .inverse_width = 1.0f / static_cast<float>(args.width),
                       .epsilon = args.epsilon};
  const int64_t words = args.width / 8;
  const bool is_wide = args.width % 8 == 0 && is_aligned(typed.output_gradient, 16) && is_aligned(typed.input, 16) &&
                       is_aligned(typed.weight, 16) && is_aligned(typed.addend, 16) &&
                       is_aligned(typed.input_gradient, 16);
  if (is_wide && words <= kShortWords) {
    with_team(words, [&](auto team) {
      using T = decltype(team);
      launch_early(rms_norm_backward_short<T>, ceil_div(args.rows, T::kRows), kThreads, 0, typed);
    });
  } else if (is_wide && words <= kThreads * kWords) {
    launch_early(rms_norm_backward_wide, args.rows, kThreads, 0, typed);
  } else if (args.width <= 512) {
    launch_early(rms_norm_backward_kernel<32>, ceil_div(args.rows, kThreads / 32), kThreads, 0, typed);
  } else {
    launch_early(rms_norm_backward_kernel<kThreads>, args.rows, kThreads, 0, typed);
  }
}

}  // namespace kv::cuda
