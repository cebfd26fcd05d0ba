#include "kernels/vocabulary_loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"
#include "kernels/linear.h"

namespace kv::cpu {

namespace {

constexpr int64_t kLogits = int64_t{1} << 22;
constexpr int64_t kFewestTokens = 96;
// Of a row added up at a time in f32, in 32 partial sums; pieces in double.
constexpr int64_t kPiece = 1024;
constexpr int kPartials = 32;

// With e = e^(logit − largest).
struct Sums {
  double student = 0;  // Σ e
  double teacher = 0;
  double apart = 0;  // Σ of the teacher's e · how much further below its largest the student's logit lies
};

// One token's logits; the teacher's are null without one.
struct Logits {
  float* student;
  float* teacher;
  int64_t count;
};

// Leaves e in place of a piece of both's logits. What is alike comes out alike, to the bit.
void add_piece(float* student, float* teacher, int64_t count, float student_top, float teacher_top, Sums& sums) {
  float students[kPartials] = {}, teachers[kPartials] = {}, apart[kPartials] = {};
  const float shift = teacher_top - student_top;
  const auto visit = [&](int64_t i, int64_t lane) {
    const float further = (teacher[i] - student[i]) - shift;
    student[i] = fast_exp(student[i] - student_top);
    teacher[i] = fast_exp(teacher[i] - teacher_top);
    students[lane] += student[i];
    teachers[lane] += teacher[i];
    apart[lane] += teacher[i] * further;
  };
  const int64_t whole = count / kPartials * kPartials;
  for (int64_t i = 0; i < whole; i += kPartials) {
#pragma omp simd
    for (int64_t lane = 0; lane < kPartials; ++lane) visit(i + lane, lane);
  }
  for (int64_t i = whole; i < count; ++i) visit(i, i - whole);
  for (int lane = 0; lane < kPartials; ++lane) {
    sums.student += double{students[lane]};
    sums.teacher += double{teachers[lane]};
    sums.apart += double{apart[lane]};
  }
}

// Leaves e in place of all logits.
Sums add_up(const Logits& logits, float student_top) {
  const float teacher_top = logits.teacher ? largest(logits.teacher, logits.count) : 0;
  Sums sums;
  for (int64_t first = 0; first < logits.count; first += kPiece) {
    const int64_t count = std::min(kPiece, logits.count - first);
    if (logits.teacher) {
      add_piece(logits.student + first, logits.teacher + first, count, student_top, teacher_top, sums);
    } else {
      sums.student += double{exp_row(logits.student + first, count, student_top)};
    }
  }
  return sums;
}

// What a token's terms weigh in the gradient.
struct Weights {
  double next_token;
  double divergence;
};

// Turns the student's e into what `weight` is summed up by.
void fill_slopes(const Logits& logits, const Sums& sums, const Weights& weights, int32_t target) {
  const auto of_student = static_cast<float>((weights.next_token + weights.divergence) / sums.student);
  if (logits.teacher) {
    const auto of_teacher = static_cast<float>(weights.divergence / sums.teacher);
#pragma omp simd
    for (int64_t v = 0; v < logits.count; ++v) {
      logits.student[v] = of_student * logits.student[v] - of_teacher * logits.teacher[v];
    }
  } else {
#pragma omp simd
    for (int64_t v = 0; v < logits.count; ++v) logits.student[v] *= of_student;
  }
  if (target >= 0) logits.student[target] -= static_cast<float>(weights.next_token);
}

// Writes the token's losses, and its slopes over the student's logits.
void rate_token(const VocabularyLossArgs& args, int64_t t, const Logits& logits) {
  const float weight = args.weights ? args.weights[t] : 1.0f;
  if (weight == 0) {
    args.next_token[t] = 0;
    if (logits.teacher) args.divergence[t] = 0;
    std::fill_n(logits.student, logits.count, 0.0f);
    return;
  }
  const int32_t target = args.targets[t];
  const float top = largest(logits.student, logits.count);
  const double below = target < 0 ? 0 : double{top} - double{logits.student[target]};
  const Sums sums = add_up(logits, top);
  const double log_sum = std::log(sums.student);
  args.next_token[t] = target < 0 ? 0.0f : static_cast<float>(log_sum + below);
  if (logits.teacher) {
    args.divergence[t] = static_cast<float>(sums.apart / sums.teacher + log_sum - std::log(sums.teacher));
  }
  const double scale = double{args.scale} * weight;
  fill_slopes(logits, sums,
              {.next_token = target < 0 ? 0 : scale * args.next_token_weight,
               .divergence = logits.teacher ? scale * args.divergence_weight : 0},
              target);
}

void multiply(const VocabularyLossArgs& args, ConstRef hidden, int64_t first, int64_t tokens, float* logits) {
  linear({.input = {.data = hidden.as<float>() + first * args.width},
          .products = {{.weight = args.weight, .output = {.data = logits}, .out = args.vocab}},
          .rows = tokens,
          .in = args.width});
}

}  // namespace

void vocabulary_loss(const VocabularyLossArgs& args) {
  KV_CHECK(args.vocab > 0);
  const int64_t most = std::min(args.tokens, std::max(kFewestTokens, kLogits / args.vocab));
  const Scratch students(most * args.vocab), teachers(args.teacher ? most * args.vocab : 0);
  for (int64_t first = 0; first < args.tokens; first += most) {
    const int64_t tokens = std::min(most, args.tokens - first);
    multiply(args, args.student, first, tokens, students.data());
    if (args.teacher) multiply(args, args.teacher, first, tokens, teachers.data());
    parallel_for(tokens, [&](int64_t t) {
      rate_token(args, first + t,
                 {.student = students.data() + t * args.vocab,
                  .teacher = args.teacher ? teachers.data() + t * args.vocab : nullptr,
                  .count = args.vocab});
    });
    if (!args.gradient) continue;
    linear_backward({.output_gradient = {.data = students.data()},
                     .weight = args.weight,
                     .input_gradient = {.data = args.gradient.as<float>() + first * args.width},
                     .rows = tokens,
                     .in = args.width,
                     .out = args.vocab});
  }
}

}  // namespace kv::cpu
