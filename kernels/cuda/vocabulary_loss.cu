#include "kernels/vocabulary_loss.h"

#include <algorithm>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/linear.h"

namespace kv::cuda {

namespace {

// Fours of words that a thread holds at most.
constexpr int kFours = 4;

// How a token's words are read: held in shared memory by as many threads as hold them, or each time anew, which takes
// any vocabulary; in words of 16 bytes or one by one.
template <int Threads, bool Held, bool Whole>
struct Reading {
  static_assert(Whole || !Held);
  static constexpr int kThreads = Threads, kWarps = Threads / 32;
  static constexpr bool kHeld = Held, kWhole = Whole;
  static constexpr int kMostHeld = 4 * kFours * Threads;  // words
};
using Most = Reading<512, true, true>;
using Fewer = Reading<384, true, true>;
using Unheld = Reading<512, false, true>;
using UnheldOneByOne = Reading<512, false, false>;

// Logits made at a time: enough tokens for the products to run at full rate, little beside a model.
constexpr int64_t kLogits = int64_t{64} << 20;

// Of the tokens from `first` on, [tokens, vocab]; the teacher's are null without one, the slopes without a gradient.
struct Logits {
  int64_t first;
  const float* student;
  const float* teacher;
  bf16* slopes;
};

// The words of a token that a block looks at, as many for each of a cluster, multiples of four.
struct Share {
  int begin, end;

  __device__ Share(int vocab, const Cluster& cluster) {
    const int words = words_of(vocab, cluster.blocks);
    begin = min(vocab, cluster.rank() * words);
    end = min(vocab, begin + words);
  }
  __host__ __device__ static int words_of(int vocab, int blocks) { return (vocab + 4 * blocks - 1) / (4 * blocks) * 4; }
};

// Calls with the block's fours of words that are the thread's: visit(nth, first word). Where they are held, in shared
// memory where nobody else looks at them, these are at most kFours; else the logits are read each time, and their
// powers taken again.
template <class R, class Visit>
__device__ __forceinline__ void for_each_four(const Share& share, const Visit& visit) {
  const int first = share.begin + static_cast<int>(threadIdx.x) * 4;
  if constexpr (R::kHeld) {
#pragma unroll
    for (int nth = 0; nth < kFours; ++nth) {
      if (first + nth * 4 * R::kThreads < share.end) visit(nth, first + nth * 4 * R::kThreads);
    }
  } else {
    for (int v = first; v < share.end; v += 4 * R::kThreads) visit(0, v);
  }
}

// e^x by two instructions, off by two units in the last place and, of an x below 0, as x times log2(e) is rounded: what
// that comes to grows with −x, whose power shrinks faster.
__device__ __forceinline__ float power_of(float x) { return exp2_fast(x * kToLog2); }

// Four words; those behind the vocabulary's end, which is none of a whole one, have logits of −∞.
struct Four {
  float of[4];
};
template <bool kWhole>
__device__ __forceinline__ Four read_four(const float* logits, int v, int end) {
  Four four;
  if constexpr (kWhole) {
    *reinterpret_cast<float4*>(four.of) = *reinterpret_cast<const float4*>(logits + v);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) four.of[e] = v + e < end ? logits[v + e] : -kInfinity;
  }
  return four;
}
template <bool kWhole>
__device__ __forceinline__ void write_four(const Four& slopes, bf16* to, int v, int end) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint2*>(to + v) = {to_bf16_pair(slopes.of[0], slopes.of[1]),
                                         to_bf16_pair(slopes.of[2], slopes.of[3])};
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (v + e < end) to[v + e] = to_bf16(slopes.of[e]);
    }
  }
}

// A block's words of a token.
template <class R>
struct Row {
  const float* logits;
  float4* held;  // the thread's first, the others R::kThreads apart
  Share share;

  // Begins to bring what is held, until wait_copies().
  __device__ __forceinline__ void bring() const {
    if (!R::kHeld || !logits) return;
    for_each_four<R>(share, [&](int nth, int v) { copy_or_zero(held + nth * R::kThreads, logits + v, true); });
  }
  __device__ __forceinline__ Four four(int nth, int v) const {
    if constexpr (!R::kHeld) return read_four<R::kWhole>(logits, v, share.end);
    Four four;
    *reinterpret_cast<float4*>(four.of) = held[nth * R::kThreads];
    return four;
  }
  __device__ __forceinline__ void hold_powers(int nth, const Four& powers) const {
    if (R::kHeld) held[nth * R::kThreads] = *reinterpret_cast<const float4*>(powers.of);
  }
  // Once all of the thread's have been told to hold_powers().
  __device__ __forceinline__ Four powers(int nth, int v, float top) const {
    Four four = this->four(nth, v);
    if constexpr (!R::kHeld) {
#pragma unroll
      for (float& word : four.of) word = power_of(word - top);
    }
    return four;
  }
};

// What the words of a block, or of all, come to, student's and teacher's; without words −∞ and zeros. A power is e to
// a logit less the largest of them.
struct Sums {
  float tops[2];
  double powers[2];
  // Of the teacher's powers, each times how far its logit is from the student's, less how far the tops are.
  double apart;
};

// A block's largest logits, student's and teacher's, for every thread.
template <class R>
__device__ __forceinline__ void find_largest(float (&tops)[2]) {
  __shared__ float of_warps[2][R::kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    tops[k] = warp_reduce(tops[k], Larger());
    if (lane == 0) of_warps[k][threadIdx.x / 32] = tops[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k) tops[k] = warp_reduce(lane < R::kWarps ? of_warps[k][lane] : -kInfinity, Larger());
}

// A block's sums for its first warp: over a warp in the type that threads have, over warps as doubles.
template <class R, class Sum>
__device__ __forceinline__ void add_threads(Sum (&of_thread)[3], double (&sums)[3]) {
  __shared__ Sum of_warps[3][R::kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    of_thread[k] = warp_reduce(of_thread[k], Add());
    if (lane == 0) of_warps[k][threadIdx.x / 32] = of_thread[k];
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
#pragma unroll
  for (int k = 0; k < 3; ++k) sums[k] = warp_reduce(lane < R::kWarps ? double{of_warps[k][lane]} : 0.0, Add());
}

// Over eight lanes side by side.
template <class T, class Op>
__device__ __forceinline__ T reduce_eight(T value, Op op) {
  static_assert(Cluster::kMost == 8);
#pragma unroll
  for (int across = 4; across > 0; across /= 2) value = op(value, __shfl_xor_sync(kWarp, value, across));
  return value;
}

// The sums of all blocks, of which each of eight lanes has one's, or none. `factors` makes powers of the lane's block
// those of all.
__device__ __forceinline__ Sums add_blocks(const Sums& block, float (&factors)[2]) {
  Sums all;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    all.tops[k] = reduce_eight(block.tops[k], Larger());
    factors[k] = block.powers[k] == 0 ? 0 : expf(block.tops[k] - all.tops[k]);
    all.powers[k] = reduce_eight(factors[k] * block.powers[k], Add());
  }
  const auto between_tops = [](const Sums& of) { return double{of.tops[1]} - double{of.tops[0]}; };
  const double further = factors[1] == 0 ? 0 : between_tops(block) - between_tops(all);
  all.apart = reduce_eight(factors[1] * (block.apart + further * block.powers[1]), Add());
  return all;
}

// What a block knows of its token after it has met the others.
struct Outcome {
  Sums all;
  float of_powers[2];  // what a slope is of the block's powers
};

// With what the first warp has of its block. Everyone gets the outcome.
__device__ __forceinline__ const Outcome& meet_others(const Sums& block, const Cluster& cluster,
                                                      const float (&wanted)[2]) {
  __shared__ Sums of_blocks[Cluster::kMost];
  __shared__ Outcome outcome;
  const int thread = static_cast<int>(threadIdx.x);
  Sums all = block;
  float factors[2] = {1, 1};
  if (cluster.blocks > 1) {
    if (thread < cluster.blocks) cluster.write(&of_blocks[cluster.rank()], block, thread);
    cluster.meet();
    if (thread < 32) {
      const int rank = thread % Cluster::kMost;
      all = add_blocks(rank < cluster.blocks ? of_blocks[rank] : Sums{{-kInfinity, -kInfinity}, {0, 0}, 0}, factors);
    }
  }
  if (thread == cluster.rank()) {
    outcome.all = all;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      outcome.of_powers[k] = wanted[k] == 0 ? 0 : wanted[k] * factors[k] / static_cast<float>(all.powers[k]);
    }
  }
  __syncthreads();
  return outcome;
}

// A cluster of blocks a token, whose logits are looked at three times: for the largest, for the sums, for what comes
// out. What becomes a double takes as long as a power, so the sums of four words, or of all that a warp holds, are
// f32: no less exact than their powers are.
template <class R>
__global__ void __launch_bounds__(R::kThreads, R::kHeld ? 1536 / R::kThreads : 2)
    rate_kernel(VocabularyLossArgs args, Logits logits, Cluster cluster) {
  using Sum = std::conditional_t<R::kHeld, float, double>;
  extern __shared__ __align__(16) float4 memory[];
  const int64_t row = blockIdx.x / cluster.blocks, t = logits.first + row, first = row * args.vocab;
  const auto vocab = static_cast<int>(args.vocab);
  const float* student = logits.student + first;
  const float* teacher = logits.teacher ? logits.teacher + first : nullptr;
  bf16* slopes = logits.slopes ? logits.slopes + first : nullptr;
  const float weight = args.weights ? args.weights[t] : 1.0f;
  const Share share(vocab, cluster);
  const bool speaks = cluster.rank() == 0 && threadIdx.x == 0;
  if (weight == 0) {
    if (speaks) {
      args.next_token[t] = 0;
      if (teacher) args.divergence[t] = 0;
    }
    for (int v = share.begin + static_cast<int>(threadIdx.x); slopes && v < share.end; v += R::kThreads) {
      slopes[v] = to_bf16(0.0f);
    }
    return;
  }
  const Row<R> students{student, memory + threadIdx.x, share};
  const Row<R> teachers{teacher, students.held + kFours * R::kThreads, share};
  students.bring();
  teachers.bring();
  commit_copies();
  const int32_t target = args.targets[t];
  const float at_target = speaks && target >= 0 ? student[target] : 0.0f;
  cluster.meet();  // nobody writes to a block that is not there yet
  wait_copies<0>();
  float tops[2] = {-kInfinity, teacher ? -kInfinity : 0.0f};
  for_each_four<R>(share, [&](int nth, int v) {
    for (const float word : students.four(nth, v).of) tops[0] = fmaxf(tops[0], word);
    if (!teacher) return;
    for (const float word : teachers.four(nth, v).of) tops[1] = fmaxf(tops[1], word);
  });
  find_largest<R>(tops);
  const float student_top = tops[0], teacher_top = tops[1], shift = teacher_top - student_top;
  Sum partial[3] = {};  // of the student's and the teacher's powers, and of how far they are apart
  for_each_four<R>(share, [&](int nth, int v) {
    Four of_student = students.four(nth, v), of_teacher{};
    if (teacher) of_teacher = teachers.four(nth, v);
    float four[3] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!R::kWhole && v + e >= share.end) continue;
      const float power = power_of(of_student.of[e] - student_top);
      four[0] += power;
      if (teacher) {
        const float apart = (of_teacher.of[e] - of_student.of[e]) - shift;
        of_teacher.of[e] = power_of(of_teacher.of[e] - teacher_top);
        four[1] += of_teacher.of[e];
        four[2] += of_teacher.of[e] * apart;
      }
      of_student.of[e] = power;
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) partial[k] += four[k];
    students.hold_powers(nth, of_student);
    if (teacher) teachers.hold_powers(nth, of_teacher);
  });
  double sums[3];
  add_threads<R>(partial, sums);
  const float scale = args.scale * weight, next_token = target < 0 ? 0 : scale * args.next_token_weight;
  const float divergence = teacher ? scale * args.divergence_weight : 0;
  const Outcome& outcome = meet_others({{student_top, teacher_top}, {sums[0], sums[1]}, sums[2]}, cluster,
                                       {next_token + divergence, divergence});
  if (speaks) {
    const Sums& all = outcome.all;
    args.next_token[t] =
        target < 0 ? 0.0f : static_cast<float>(log(all.powers[0]) + (double{all.tops[0]} - double{at_target}));
    if (teacher) {
      args.divergence[t] = static_cast<float>(all.apart / all.powers[1] + log(all.powers[0]) - log(all.powers[1]));
    }
  }
  if (!slopes) return;
  const float of_student = outcome.of_powers[0], of_teacher = outcome.of_powers[1];
  const auto slopes_of = [&](int nth, int v) {
    const Four student_powers = students.powers(nth, v, student_top);
    const Four teacher_powers = teacher ? teachers.powers(nth, v, teacher_top) : Four{};
    Four slope;
#pragma unroll
    for (int e = 0; e < 4; ++e) slope.of[e] = of_student * student_powers.of[e] - of_teacher * teacher_powers.of[e];
    return slope;
  };
  for_each_four<R>(share, [&](int nth, int v) { write_four<R::kWhole>(slopes_of(nth, v), slopes, v, share.end); });
  // The target's once more: to ask every word whether it is the target would take longer.
  const int fours = (target - share.begin) / 4;
  if (target < share.begin || target >= share.end || fours % R::kThreads != static_cast<int>(threadIdx.x)) return;
  const Four slope = slopes_of(fours / R::kThreads, target - target % 4);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (target % 4 == e) slopes[target] = to_bf16(slope.of[e] - next_token);
  }
}

template <class R>
void launch_rates(const VocabularyLossArgs& args, const Logits& logits, int64_t tokens, const Cluster& cluster) {
  const size_t bytes = R::kHeld ? sizeof(float) * R::kMostHeld * (logits.teacher ? 2 : 1) : 0;
  launch_clusters(rate_kernel<R>, tokens, cluster, R::kThreads, bytes, args, logits, cluster);
}

void rate(const VocabularyLossArgs& args, const Logits& logits, int64_t tokens) {
  const auto vocab = static_cast<int>(args.vocab);
  Cluster cluster{1};
  while (Share::words_of(vocab, cluster.blocks) > Most::kMostHeld && cluster.blocks < Cluster::most()) {
    cluster.blocks *= 2;
  }
  const int words = Share::words_of(vocab, cluster.blocks);
  if (vocab % 4 != 0) return launch_rates<UnheldOneByOne>(args, logits, tokens, Cluster{1});
  if (words > Most::kMostHeld) return launch_rates<Unheld>(args, logits, tokens, Cluster{1});
  if (words > Fewer::kMostHeld) return launch_rates<Most>(args, logits, tokens, cluster);
  launch_rates<Fewer>(args, logits, tokens, cluster);
}

void multiply(const VocabularyLossArgs& args, ConstRef hidden, int64_t first, int64_t tokens, float* logits) {
  linear({.input = {hidden.as<bf16>() + first * args.width, DType::kBF16},
          .products = {{.weight = args.weight, .output = {logits, DType::kF32}, .out = args.vocab}},
          .rows = tokens,
          .in = args.width});
}

}  // namespace

void vocabulary_loss(const VocabularyLossArgs& args) {
  KV_CHECK(args.vocab > 0 && args.vocab <= INT32_MAX - 4 * Unheld::kThreads);
  // In pieces of one size: products of the few tokens that would be left run at no rate.
  const int64_t pieces = ceil_div(args.tokens, std::max<int64_t>(16, kLogits / args.vocab));
  const int64_t most = pieces > 0 ? ceil_div(args.tokens, pieces) : 0;
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
