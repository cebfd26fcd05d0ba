#include "kernels/vocabulary_loss.h"

#include "kernels/cuda/device.cuh"
#include "kernels/linear.h"

namespace kv::cuda {

namespace {

constexpr int kThreads = 512;
// Logits held at a time: enough tokens for the products to run at full rate, little beside a model.
constexpr int64_t kLogits = int64_t{64} << 20;

// Of the tokens from `first` on, [tokens, vocab]; the teacher's are null without one, the slopes without a gradient.
struct Logits {
  int64_t first;
  const float* student;
  const float* teacher;
  bf16* slopes;
};

// A row's numbers by a thread. Of small vocabularies it holds them in registers, kHeld of them, four words in every
// 4 · kThreads; kHeld = 0: it reads every kThreads-th logit from memory again, and takes its power again.
template <int kHeld>
struct Row {
  const float* logits;
  float held[std::max(kHeld, 1)];

  __device__ __forceinline__ Row(const float* of_token, int64_t vocab) : logits(of_token) {
    if (!logits) return;
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) {
      const int v = (static_cast<int>(threadIdx.x) + i / 4 * kThreads) * 4;
      const float4 four = v < vocab ? *reinterpret_cast<const float4*>(logits + v)
                                    : float4{-kInfinity, -kInfinity, -kInfinity, -kInfinity};
      held[i] = four.x, held[i + 1] = four.y, held[i + 2] = four.z, held[i + 3] = four.w;
    }
  }
  __device__ __forceinline__ float at(int i, int v) const { return kHeld ? held[i] : logits[v]; }
  __device__ __forceinline__ void hold(int i, float power) {
    if (kHeld) held[i] = power;
  }
  // Of a word whose power hold() was told.
  __device__ __forceinline__ float power(int i, int v, float top) const {
    return kHeld ? held[i] : expf(logits[v] - top);
  }
};

// Calls with the thread's nth word.
template <int kHeld, class Visit>
__device__ __forceinline__ void for_each_word(int vocab, const Visit& visit) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int v = (static_cast<int>(threadIdx.x) + i / 4 * kThreads) * 4 + i % 4;
      if (v < vocab) visit(i, v);
    }
  } else {
    for (int v = static_cast<int>(threadIdx.x); v < vocab; v += kThreads) visit(0, v);
  }
}

// slopes[v] = slope_of(nth, v) of the thread's words.
template <int kHeld, class SlopeOf>
__device__ __forceinline__ void write_slopes(bf16* slopes, int vocab, const SlopeOf& slope_of) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) {
      const int v = (static_cast<int>(threadIdx.x) + i / 4 * kThreads) * 4;
      if (v >= vocab) continue;
      *reinterpret_cast<uint2*>(slopes + v) = {to_bf16_pair(slope_of(i, v), slope_of(i + 1, v + 1)),
                                               to_bf16_pair(slope_of(i + 2, v + 2), slope_of(i + 3, v + 3))};
    }
  } else {
    for (int v = static_cast<int>(threadIdx.x); v < vocab; v += kThreads) slopes[v] = to_bf16(slope_of(0, v));
  }
}

// Sums in double of N kinds of numbers. What becomes a double takes as long as a power, so of a thread's held words
// four are added up before: their sum is no less exact than the powers are.
template <int kHeld, int N>
struct Sums {
  double total[N] = {};
  float four[N] = {};

  __device__ __forceinline__ void add(int kind, float number) { four[kind] += number; }
  // After all kinds of the thread's nth word.
  __device__ __forceinline__ void end_word(int i) {
    if (kHeld && i % 4 < 3) return;
#pragma unroll
    for (int kind = 0; kind < N; ++kind) {
      total[kind] += double{four[kind]};
      four[kind] = 0;
    }
  }
};

// block_reduce() of N values at once.
template <int N, class T, class Op>
__device__ void reduce_together(T (&values)[N], T identity, Op op) {
  __shared__ T partial[N][32];
  const int lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = warp_reduce(values[n], op);
    if (lane == 0) partial[n][threadIdx.x / 32] = values[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = warp_reduce(lane < static_cast<int>(blockDim.x / 32) ? partial[n][lane] : identity, op);
  }
}

// A block a token, which goes over its logits three times: for the largest, for the sums, for what comes out.
template <int kHeld>
__global__ void __launch_bounds__(kThreads, 2) rate_kernel(VocabularyLossArgs args, Logits logits) {
  const int64_t t = logits.first + blockIdx.x;
  const auto vocab = static_cast<int>(args.vocab);
  const float* student = logits.student + blockIdx.x * args.vocab;
  const float* teacher = logits.teacher ? logits.teacher + blockIdx.x * args.vocab : nullptr;
  bf16* slopes = logits.slopes ? logits.slopes + blockIdx.x * args.vocab : nullptr;
  const float weight = args.weights ? args.weights[t] : 1.0f;
  if (weight == 0) {
    if (threadIdx.x == 0) {
      args.next_token[t] = 0;
      if (teacher) args.divergence[t] = 0;
    }
    for (int v = static_cast<int>(threadIdx.x); slopes && v < vocab; v += kThreads) slopes[v] = to_bf16(0.0f);
    return;
  }
  Row<kHeld> students(student, vocab), teachers(teacher, vocab);
  float tops[2] = {-kInfinity, teacher ? -kInfinity : 0.0f};
  for_each_word<kHeld>(vocab, [&](int i, int v) {
    tops[0] = fmaxf(tops[0], students.at(i, v));
    if (teacher) tops[1] = fmaxf(tops[1], teachers.at(i, v));
  });
  reduce_together(tops, -kInfinity, Larger());
  const float student_top = tops[0], teacher_top = tops[1], shift = teacher_top - student_top;
  Sums<kHeld, 3> sums;  // of the student's and the teacher's powers, and of how far they are apart
  for_each_word<kHeld>(vocab, [&](int i, int v) {
    const float of_student = students.at(i, v), power = expf(of_student - student_top);
    sums.add(0, power);
    students.hold(i, power);
    if (teacher) {
      const float of_teacher = teachers.at(i, v), e = expf(of_teacher - teacher_top);
      sums.add(1, e);
      sums.add(2, e * ((of_teacher - of_student) - shift));
      teachers.hold(i, e);
    }
    sums.end_word(i);
  });
  reduce_together(sums.total, 0.0, Add());
  const double student_sum = sums.total[0], teacher_sum = sums.total[1], apart = sums.total[2];
  const int32_t target = args.targets[t];
  if (threadIdx.x == 0) {
    args.next_token[t] =
        target < 0 ? 0.0f : static_cast<float>(log(student_sum) + (double{student_top} - double{student[target]}));
    if (teacher) args.divergence[t] = static_cast<float>(apart / teacher_sum + log(student_sum) - log(teacher_sum));
  }
  if (!slopes) return;
  const double a = target < 0 ? 0.0 : args.next_token_weight, b = teacher ? args.divergence_weight : 0.0;
  const double scale = double{args.scale} * weight;
  const auto of_student = static_cast<float>(scale * (a + b) / student_sum);
  const auto of_teacher = teacher ? static_cast<float>(scale * b / teacher_sum) : 0.0f;
  write_slopes<kHeld>(slopes, vocab, [&](int i, int v) {
    float slope = of_student * students.power(i, v, student_top);
    if (teacher) slope -= of_teacher * teachers.power(i, v, teacher_top);
    return slope;
  });
  __syncthreads();
  if (threadIdx.x > 0 || target < 0) return;
  // The target's once more: to ask every word whether it is the target would take longer.
  float slope = of_student * expf(student[target] - student_top);
  if (teacher) slope -= of_teacher * expf(teacher[target] - teacher_top);
  slopes[target] = to_bf16(slope - static_cast<float>(scale * a));
}

void rate(const VocabularyLossArgs& args, const Logits& logits, int64_t tokens) {
  constexpr int kMostHeld = 16;
  const bool holds = args.vocab <= int64_t{kThreads} * kMostHeld && args.vocab % 4 == 0;
  const auto kernel = holds ? rate_kernel<kMostHeld> : rate_kernel<0>;
  launch(kernel, tokens, kThreads, 0, args, logits);
}

void multiply(const VocabularyLossArgs& args, ConstRef hidden, int64_t first, int64_t tokens, float* logits) {
  linear({.input = {hidden.as<bf16>() + first * args.width, DType::kBF16},
          .products = {{.weight = args.weight, .output = {logits, DType::kF32}, .out = args.vocab}},
          .rows = tokens,
          .in = args.width});
}

}  // namespace

void vocabulary_loss(const VocabularyLossArgs& args) {
  KV_CHECK(args.vocab > 0 && args.vocab <= INT32_MAX - kThreads);
  const int64_t most = std::min(args.tokens, std::max<int64_t>(16, kLogits / args.vocab));
  const Scratch<float> students(most * args.vocab), teachers(args.teacher ? most * args.vocab : 0);
  const Scratch<bf16> slopes(args.gradient ? most * args.vocab : 0);
  for (int64_t first = 0; first < args.tokens; first += most) {
    const int64_t tokens = std::min(most, args.tokens - first);
    multiply(args, args.student, first, tokens, students.data());
    if (args.teacher) multiply(args, args.teacher, first, tokens, teachers.data());
    const Logits logits{first, students.data(), teachers.data(), slopes.data()};
    rate(args, logits, tokens);
    if (!args.gradient) continue;
    linear_backward({.output_gradient = {slopes.data(), DType::kBF16},
                     .weight = args.weight,
                     .input_gradient = {args.gradient.as<bf16>() + first * args.width, DType::kBF16},
                     .rows = tokens,
                     .in = args.width,
                     .out = args.vocab});
  }
}

}  // namespace kv::cuda
