#include "kernels/vocabulary_loss.h"

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"
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

// A thread has four neighbouring words in every 4 · kThreads. Those of small vocabularies, kHeld of them, it holds in
// shared memory, where nobody else looks at them; of others, kHeld = 0, it reads the logits each time, and takes their
// powers again.
template <int kHeld, class Visit>
__device__ __forceinline__ void for_each_four(int vocab, const Visit& visit) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int nth = 0; nth < kHeld / 4; ++nth) {
      const int v = (static_cast<int>(threadIdx.x) + nth * kThreads) * 4;
      if (v < vocab) visit(nth, v);
    }
  } else {
    for (int v = static_cast<int>(threadIdx.x) * 4; v < vocab; v += 4 * kThreads) visit(0, v);
  }
}

// Four words; those behind the vocabulary's end, which is none of a whole one, have logits of −∞.
struct Four {
  float of[4];
};
template <bool kWhole>
__device__ __forceinline__ Four read_four(const float* logits, int v, int vocab) {
  Four four;
  if constexpr (kWhole) {
    *reinterpret_cast<float4*>(four.of) = *reinterpret_cast<const float4*>(logits + v);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) four.of[e] = v + e < vocab ? logits[v + e] : -kInfinity;
  }
  return four;
}
template <bool kWhole>
__device__ __forceinline__ void write_four(const Four& slopes, bf16* to, int v, int vocab) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint2*>(to + v) = {to_bf16_pair(slopes.of[0], slopes.of[1]),
                                         to_bf16_pair(slopes.of[2], slopes.of[3])};
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (v + e < vocab) to[v + e] = to_bf16(slopes.of[e]);
    }
  }
}

// Places that hold a token's words.
__host__ __device__ int held_of(int vocab) { return (vocab / 4 + kThreads - 1) / kThreads * kThreads; }

// The words of a token.
template <int kHeld, bool kWhole>
struct Row {
  static_assert(kWhole || kHeld == 0);
  const float* logits;
  float4* held;  // the thread's first, the others kThreads apart
  int vocab;

  // Begins to bring what is held, until wait_copies().
  __device__ __forceinline__ void bring() const {
    if (kHeld == 0 || !logits) return;
    for_each_four<kHeld>(vocab, [&](int nth, int v) { copy_or_zero(held + nth * kThreads, logits + v, true); });
  }
  __device__ __forceinline__ Four four(int nth, int v) const {
    if constexpr (kHeld == 0) return read_four<kWhole>(logits, v, vocab);
    Four four;
    *reinterpret_cast<float4*>(four.of) = held[nth * kThreads];
    return four;
  }
  __device__ __forceinline__ void hold_powers(int nth, const Four& powers) const {
    if (kHeld > 0) held[nth * kThreads] = *reinterpret_cast<const float4*>(powers.of);
  }
  // Once all of the thread's have been told to hold_powers().
  __device__ __forceinline__ Four powers(int nth, int v, float top) const {
    Four four = this->four(nth, v);
    if constexpr (kHeld == 0) {
#pragma unroll
      for (float& word : four.of) word = expf(word - top);
    }
    return four;
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

// A block a token, which goes over its logits three times: for the largest, for the sums, for what comes out. What
// becomes a double takes as long as a power, so the sums of four words are f32: no less exact than their powers are.
template <int kHeld, bool kWhole>
__global__ void __launch_bounds__(kThreads, kHeld > 0 ? 3 : 2) rate_kernel(VocabularyLossArgs args, Logits logits) {
  extern __shared__ __align__(16) float4 memory[];
  const int64_t t = logits.first + blockIdx.x, first = blockIdx.x * args.vocab;
  const auto vocab = static_cast<int>(args.vocab);
  const float* student = logits.student + first;
  const float* teacher = logits.teacher ? logits.teacher + first : nullptr;
  bf16* slopes = logits.slopes ? logits.slopes + first : nullptr;
  const float weight = args.weights ? args.weights[t] : 1.0f;
  if (weight == 0) {
    if (threadIdx.x == 0) {
      args.next_token[t] = 0;
      if (teacher) args.divergence[t] = 0;
    }
    for (int v = static_cast<int>(threadIdx.x); slopes && v < vocab; v += kThreads) slopes[v] = to_bf16(0.0f);
    return;
  }
  const Row<kHeld, kWhole> students{student, memory + threadIdx.x, vocab};
  const Row<kHeld, kWhole> teachers{teacher, memory + held_of(vocab) + threadIdx.x, vocab};
  students.bring();
  teachers.bring();
  commit_copies();
  wait_copies<0>();
  float tops[2] = {-kInfinity, teacher ? -kInfinity : 0.0f};
  for_each_four<kHeld>(vocab, [&](int nth, int v) {
    for (const float word : students.four(nth, v).of) tops[0] = fmaxf(tops[0], word);
    if (!teacher) return;
    for (const float word : teachers.four(nth, v).of) tops[1] = fmaxf(tops[1], word);
  });
  reduce_together(tops, -kInfinity, Larger());
  const float student_top = tops[0], teacher_top = tops[1], shift = teacher_top - student_top;
  double sums[3] = {};  // of the student's and the teacher's powers, and of how far they are apart
  for_each_four<kHeld>(vocab, [&](int nth, int v) {
    Four of_student = students.four(nth, v), of_teacher{};
    if (teacher) of_teacher = teachers.four(nth, v);
    float four[3] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!kWhole && v + e >= vocab) continue;
      const float power = expf(of_student.of[e] - student_top);
      four[0] += power;
      if (teacher) {
        const float apart = (of_teacher.of[e] - of_student.of[e]) - shift;
        of_teacher.of[e] = expf(of_teacher.of[e] - teacher_top);
        four[1] += of_teacher.of[e];
        four[2] += of_teacher.of[e] * apart;
      }
      of_student.of[e] = power;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) sums[k] += double{four[k]};
    students.hold_powers(nth, of_student);
    if (teacher) teachers.hold_powers(nth, of_teacher);
  });
  reduce_together(sums, 0.0, Add());
  const double student_sum = sums[0], teacher_sum = sums[1], apart = sums[2];
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
  const auto slope_of = [&](float student_power, float teacher_power) {
    return of_student * student_power - of_teacher * teacher_power;
  };
  for_each_four<kHeld>(vocab, [&](int nth, int v) {
    const Four student_powers = students.powers(nth, v, student_top);
    const Four teacher_powers = teacher ? teachers.powers(nth, v, teacher_top) : Four{};
    Four slope;
#pragma unroll
    for (int e = 0; e < 4; ++e) slope.of[e] = slope_of(student_powers.of[e], teacher_powers.of[e]);
    write_four<kWhole>(slope, slopes, v, vocab);
  });
  __syncthreads();
  if (threadIdx.x > 0 || target < 0) return;
  // The target's once more: to ask every word whether it is the target would take longer.
  const float slope =
      slope_of(expf(student[target] - student_top), teacher ? expf(teacher[target] - teacher_top) : 0.0f);
  slopes[target] = to_bf16(slope - static_cast<float>(scale * a));
}

void rate(const VocabularyLossArgs& args, const Logits& logits, int64_t tokens) {
  constexpr int kMostHeld = 16;
  const bool is_whole = args.vocab % 4 == 0, holds = is_whole && args.vocab <= int64_t{kThreads} * kMostHeld;
  if (holds) {
    const size_t bytes = sizeof(float4) * (logits.teacher ? 2 : 1) * held_of(static_cast<int>(args.vocab));
    launch(rate_kernel<kMostHeld, true>, tokens, kThreads, bytes, args, logits);
  } else {
    launch(is_whole ? rate_kernel<0, true> : rate_kernel<0, false>, tokens, kThreads, 0, args, logits);
  }
}

void multiply(const VocabularyLossArgs& args, ConstRef hidden, int64_t first, int64_t tokens, float* logits) {
  linear({.input = {hidden.as<bf16>() + first * args.width, DType::kBF16},
          .products = {{.weight = args.weight, .output = {logits, DType::kF32}, .out = args.vocab}},
          .rows = tokens,
          .in = args.width});
}

}  // namespace

void vocabulary_loss(const VocabularyLossArgs& args) {
  KV_CHECK(args.vocab > 0 && args.vocab <= INT32_MAX - 4 * kThreads);
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
