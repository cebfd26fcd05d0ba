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

__device__ float largest(const float* logits, int64_t count) {
  float top = -kInfinity;
  for (int64_t v = threadIdx.x; v < count; v += kThreads) top = fmaxf(top, logits[v]);
  return block_reduce(top, -kInfinity, Larger());
}

// A block a token, which reads the logits three times: for the largest, for the sums, for what comes out.
__global__ void __launch_bounds__(kThreads) rate_kernel(VocabularyLossArgs args, Logits logits) {
  const int64_t t = logits.first + blockIdx.x, vocab = args.vocab;
  const float* student = logits.student + blockIdx.x * vocab;
  const float* teacher = logits.teacher ? logits.teacher + blockIdx.x * vocab : nullptr;
  bf16* slopes = logits.slopes ? logits.slopes + blockIdx.x * vocab : nullptr;
  const float weight = args.weights ? args.weights[t] : 1.0f;
  if (weight == 0) {
    if (threadIdx.x == 0) {
      args.next_token[t] = 0;
      if (teacher) args.divergence[t] = 0;
    }
    for (int64_t v = threadIdx.x; slopes && v < vocab; v += kThreads) slopes[v] = to_bf16(0.0f);
    return;
  }
  const float student_top = largest(student, vocab), teacher_top = teacher ? largest(teacher, vocab) : 0.0f;
  const float shift = teacher_top - student_top;
  double student_sum = 0, teacher_sum = 0, apart = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    student_sum += expf(student[v] - student_top);
    if (!teacher) continue;
    const float e = expf(teacher[v] - teacher_top);
    teacher_sum += e;
    apart += double{e} * ((teacher[v] - student[v]) - shift);
  }
  student_sum = block_reduce(student_sum, 0.0, Add());
  teacher_sum = block_reduce(teacher_sum, 0.0, Add());
  apart = block_reduce(apart, 0.0, Add());
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
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    float slope = of_student * expf(student[v] - student_top);
    if (teacher) slope -= of_teacher * expf(teacher[v] - teacher_top);
    if (v == target) slope -= static_cast<float>(scale * a);
    slopes[v] = to_bf16(slope);
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
  KV_CHECK(args.vocab > 0);
  const int64_t most = std::min(args.tokens, std::max<int64_t>(16, kLogits / args.vocab));
  const Scratch<float> students(most * args.vocab), teachers(args.teacher ? most * args.vocab : 0);
  const Scratch<bf16> slopes(args.gradient ? most * args.vocab : 0);
  for (int64_t first = 0; first < args.tokens; first += most) {
    const int64_t tokens = std::min(most, args.tokens - first);
    multiply(args, args.student, first, tokens, students.data());
    if (args.teacher) multiply(args, args.teacher, first, tokens, teachers.data());
    const Logits logits{first, students.data(), teachers.data(), slopes.data()};
    launch(rate_kernel, tokens, kThreads, 0, args, logits);
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
