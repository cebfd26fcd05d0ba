#include "kernels/vocabulary_loss.h"

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/linear.h"

namespace kv::cuda {

namespace {

constexpr int kThreads = 512;
// Logits made at a time: enough tokens for the products to run at full rate, little beside a model.
constexpr int64_t kLogits = int64_t{64} << 20;
// What a block holds of a token at most where more blocks can share it, three on a multiprocessor, and beside it.
constexpr size_t kHeldBytes = 72 * 1024, kStaticBytes = 2 * 1024;

// Of the tokens from `first` on, [tokens, vocab]; the teacher's are null without one, the slopes without a gradient.
struct Logits {
  int64_t first;
  const float* student;
  const float* teacher;
  bf16* slopes;
};

// A block's words of a token, of which a thread has four neighbouring ones in every 4 · kThreads. What the cluster
// holds between its blocks lies in their shared memory, where each thread looks at its own alone; else the logits are
// read each time, and their powers taken again.
struct Share {
  int begin, end;

  __device__ Share(int vocab, const Cluster& cluster) {
    const int words = words_of(vocab, cluster.blocks);
    begin = min(vocab, cluster.rank() * words);
    end = min(vocab, begin + words);
  }
  // Multiples of four.
  __host__ __device__ static int words_of(int vocab, int blocks) { return (vocab + 4 * blocks - 1) / (4 * blocks) * 4; }

  // visit(the thread's n-th place, its first word).
  template <class Visit>
  __device__ __forceinline__ void for_each_four(const Visit& visit) const {
    int place = 0;
#pragma unroll 4
    for (int v = begin + static_cast<int>(threadIdx.x) * 4; v < end; v += 4 * kThreads, place += kThreads) {
      visit(place, v);
    }
  }
};

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

// The words of a token.
template <bool kHeld, bool kWhole>
struct Row {
  static_assert(kWhole || !kHeld);
  const float* logits;
  float4* held;  // the thread's first place
  Share share;

  // Begins to bring what is held, until wait_copies().
  __device__ __forceinline__ void bring() const {
    if (!kHeld || !logits) return;
    share.for_each_four([&](int place, int v) { copy_or_zero(held + place, logits + v, true); });
  }
  __device__ __forceinline__ Four four(int place, int v) const {
    if constexpr (!kHeld) return read_four<kWhole>(logits, v, share.end);
    Four four;
    *reinterpret_cast<float4*>(four.of) = held[place];
    return four;
  }
  __device__ __forceinline__ void hold_powers(int place, const Four& powers) const {
    if (kHeld) held[place] = *reinterpret_cast<const float4*>(powers.of);
  }
  // Once all of the thread's have been told to hold_powers().
  __device__ __forceinline__ Four powers(int place, int v, float top) const {
    Four four = this->four(place, v);
    if constexpr (!kHeld) {
#pragma unroll
      for (float& word : four.of) word = expf(word - top);
    }
    return four;
  }
};

// block_reduce() of N values at once, over all blocks of the cluster, in one order; once a kernel for each T.
template <int N, class T, class Op>
__device__ void reduce_together(T (&values)[N], T identity, Op op, const Cluster& cluster) {
  __shared__ T partial[N][32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = warp_reduce(values[n], op);
    if (lane == 0) partial[n][thread / 32] = values[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = warp_reduce(lane < static_cast<int>(blockDim.x / 32) ? partial[n][lane] : identity, op);
  }
  if (cluster.blocks == 1) return;
  __shared__ T of_blocks[N][Cluster::kMost];
  if (thread < cluster.blocks) {
#pragma unroll
    for (int n = 0; n < N; ++n) cluster.write(&of_blocks[n][cluster.rank()], values[n], thread);
  }
  cluster.meet();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = identity;
    for (int rank = 0; rank < cluster.blocks; ++rank) values[n] = op(values[n], of_blocks[n][rank]);
  }
}

// A cluster of blocks a token, whose logits are looked at three times: for the largest, for the sums, for what comes
// out. What becomes a double takes as long as a power, so the sums of four words are f32: no less exact than their
// powers are.
template <bool kHeld, bool kWhole>
__global__ void __launch_bounds__(kThreads, kHeld ? 3 : 2)
    rate_kernel(VocabularyLossArgs args, Logits logits, Cluster cluster) {
  extern __shared__ __align__(16) float4 memory[];
  const int64_t nth = blockIdx.x / cluster.blocks, t = logits.first + nth, first = nth * args.vocab;
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
    for (int v = share.begin + static_cast<int>(threadIdx.x); slopes && v < share.end; v += kThreads) {
      slopes[v] = to_bf16(0.0f);
    }
    return;
  }
  const Row<kHeld, kWhole> students{student, memory + threadIdx.x, share};
  const Row<kHeld, kWhole> teachers{teacher, students.held + Share::words_of(vocab, cluster.blocks) / 4, share};
  students.bring();
  teachers.bring();
  commit_copies();
  cluster.meet();  // nobody writes to a block that is not there yet
  wait_copies<0>();
  float tops[2] = {-kInfinity, teacher ? -kInfinity : 0.0f};
  share.for_each_four([&](int place, int v) {
    for (const float word : students.four(place, v).of) tops[0] = fmaxf(tops[0], word);
    if (!teacher) return;
    for (const float word : teachers.four(place, v).of) tops[1] = fmaxf(tops[1], word);
  });
  reduce_together(tops, -kInfinity, Larger(), cluster);
  const float student_top = tops[0], teacher_top = tops[1], shift = teacher_top - student_top;
  double sums[3] = {};  // of the student's and the teacher's powers, and of how far they are apart
  share.for_each_four([&](int place, int v) {
    Four of_student = students.four(place, v), of_teacher{};
    if (teacher) of_teacher = teachers.four(place, v);
    float four[3] = {};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!kWhole && v + e >= share.end) continue;
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
    students.hold_powers(place, of_student);
    if (teacher) teachers.hold_powers(place, of_teacher);
  });
  reduce_together(sums, 0.0, Add(), cluster);
  const double student_sum = sums[0], teacher_sum = sums[1], apart = sums[2];
  const int32_t target = args.targets[t];
  if (speaks) {
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
  share.for_each_four([&](int place, int v) {
    const Four student_powers = students.powers(place, v, student_top);
    const Four teacher_powers = teacher ? teachers.powers(place, v, teacher_top) : Four{};
    Four slope;
#pragma unroll
    for (int e = 0; e < 4; ++e) slope.of[e] = slope_of(student_powers.of[e], teacher_powers.of[e]);
    write_four<kWhole>(slope, slopes, v, share.end);
  });
  __syncthreads();
  if (threadIdx.x > 0 || target < share.begin || target >= share.end) return;
  // The target's once more: to ask every word whether it is the target would take longer.
  const float slope =
      slope_of(expf(student[target] - student_top), teacher ? expf(teacher[target] - teacher_top) : 0.0f);
  slopes[target] = to_bf16(slope - static_cast<float>(scale * a));
}

void rate(const VocabularyLossArgs& args, const Logits& logits, int64_t tokens) {
  const auto vocab = static_cast<int>(args.vocab);
  const bool is_whole = vocab % 4 == 0;
  const auto held_by = [&](int blocks) {
    return sizeof(float) * Share::words_of(vocab, blocks) * (logits.teacher ? 2 : 1);
  };
  Cluster cluster{1};
  while (held_by(cluster.blocks) > kHeldBytes && cluster.blocks < Cluster::most()) cluster.blocks *= 2;
  const size_t bytes = held_by(cluster.blocks);
  if (is_whole && bytes <= shared_bytes_a_block() - kStaticBytes) {
    launch_clusters(rate_kernel<true, true>, tokens, cluster, kThreads, bytes, args, logits, cluster);
  } else {
    launch(is_whole ? rate_kernel<false, true> : rate_kernel<false, false>, tokens, kThreads, 0, args, logits,
           Cluster{1});
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
