#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Up to here a weight is read once and in place: packing it would take longer than the product.
constexpr int64_t kFewRows = 4;

// A block of output that one task writes: its rows of input stay in the L2 cache, and there are enough blocks for many
// threads.
constexpr int64_t kBlockRows = 16 * kPanelRows;
constexpr int64_t kBlockOutputs = 256;

struct Operands {
  const float* input;
  const float* weight;
  const float* bias;
  const float* addend;
  float* output;
};

void multiply_few_rows(const LinearArgs& args, const Operands& x) {
  parallel_blocks(args.out, 64, [&](int64_t first, int64_t end) {
    for (int64_t o = first; o < end; ++o) {
      for (int64_t r = 0; r < args.rows; ++r) {
        float sum = wide_dot(x.input + r * args.in, x.weight + o * args.in, args.in);
        if (x.bias) sum += x.bias[o];
        if (x.addend) sum += x.addend[r * args.out + o];
        x.output[r * args.out + o] = sum;
      }
    }
  });
}

// Puts bias + addend where the product will be added; says whether there was anything to put.
Write prepare(const LinearArgs& args, const Operands& x, int64_t row, int64_t first, int64_t end) {
  if (!x.bias && !x.addend) return Write::kReplace;
  float* output = x.output + row * args.out;
  const float* addend = x.addend ? x.addend + row * args.out : nullptr;
  for (int64_t o = first; o < end; ++o) {
    output[o] = (x.bias ? x.bias[o] : 0.0f) + (addend ? addend[o] : 0.0f);
  }
  return Write::kAdd;
}

void multiply_many_rows(const LinearArgs& args, const Operands& x) {
  const PackedWeight weight(x.weight, args.out, args.in);
  const int64_t block_rows = std::clamp<int64_t>(round_up(args.rows / 16, kPanelRows), 4 * kPanelRows, kBlockRows);
  const int64_t row_blocks = (args.rows + block_rows - 1) / block_rows;
  const int64_t column_blocks = (args.out + kBlockOutputs - 1) / kBlockOutputs;
  const int64_t scratch_floats = PackedWeight::scratch_floats(block_rows);
  const Scratch scratch(scratch_floats * thread_count());
  parallel_for(row_blocks * column_blocks, [&](int64_t task, int thread) {
    const int64_t row = task / column_blocks * block_rows;
    const int64_t rows = std::min(block_rows, args.rows - row);
    const int64_t first = task % column_blocks * kBlockOutputs;
    const int64_t end = std::min(args.out, first + kBlockOutputs);
    Write write = Write::kReplace;
    for (int64_t r = row; r < row + rows; ++r) write = prepare(args, x, r, first, end);
    weight.multiply(x.input + row * args.in, rows, first, end, x.output + row * args.out + first, args.out, write,
                    scratch.data() + thread * scratch_floats);
  });
}

}  // namespace

void linear(const LinearArgs& args) {
  const Operands x{.input = args.input.as<float>(),
                   .weight = args.weight.as<float>(),
                   .bias = args.bias.as<float>(),
                   .addend = args.addend.as<float>(),
                   .output = args.output.as<float>()};
  if (args.rows <= kFewRows) {
    multiply_few_rows(args, x);
  } else {
    multiply_many_rows(args, x);
  }
}

}  // namespace kv::cpu
