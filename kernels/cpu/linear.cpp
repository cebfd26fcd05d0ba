#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_input.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Up to here a weight is read once, by dot products: a panel would be mostly zeros.
constexpr int64_t kFewRows = 4;

// A block of output that one task writes: its rows of input stay in the L2 cache, and there are enough blocks for many
// threads.
constexpr int64_t kBlockRows = 6 * kPanelWidth;
constexpr int64_t kBlockOutputs = 4 * kPanelRows;

// A block of the input's gradient that one task writes: it and the output's gradients that a panel meets stay in the L2
// cache.
constexpr int64_t kGradientRows = 16 * kPanelRows;
constexpr int64_t kGradientColumns = 4 * kPanelWidth;

struct Operands {
  explicit Operands(const LinearProduct& product)
      : weight(product.weight.as<float>()),
        bias(product.bias.as<float>()),
        addend(product.addend.as<float>()),
        output(product.output.as<float>()),
        out(product.out) {}

  const float* weight;
  const float* bias;
  const float* addend;
  float* output;
  int64_t out;
};

void multiply_few_rows(const LinearArgs& args, const Operands& x) {
  const auto* input = args.input.as<float>();
  parallel_blocks(x.out, 64, [&](int64_t first, int64_t end) {
    for (int64_t o = first; o < end; ++o) {
      for (int64_t r = 0; r < args.rows; ++r) {
        float sum = wide_dot(input + r * args.in, x.weight + o * args.in, args.in);
        if (x.bias) sum += x.bias[o];
        if (x.addend) sum += x.addend[r * x.out + o];
        x.output[r * x.out + o] = sum;
      }
    }
  });
}

// A block of the output: rows [row, row + rows), outputs [first, end).
struct Block {
  int64_t row, rows, first, end;
};

// Puts bias + addend where the product will be added, tile[outputs, rows]; says whether there was anything to put.
Write prepare(const Operands& x, const Block& block, float* tile, int64_t stride) {
  if (!x.bias && !x.addend) return Write::kReplace;
  const int64_t outputs = block.end - block.first;
  if (x.addend) {
    transpose(x.addend + block.row * x.out + block.first, block.rows, outputs, x.out, tile, stride);
  }
  for (int64_t o = 0; o < outputs; ++o) {
    float* row = tile + o * stride;
    const float bias = x.bias ? x.bias[block.first + o] : 0.0f;
    for (int64_t r = 0; r < block.rows; ++r) row[r] = bias + (x.addend ? row[r] : 0.0f);
    std::fill(row + block.rows, row + round_up(block.rows, kPanelWidth), 0.0f);
  }
  return Write::kAdd;
}

void multiply_many_rows(const LinearArgs& args, const PackedInput& input, const Operands& x) {
  const int64_t block_rows = std::clamp<int64_t>(round_up(args.rows / 16, kPanelWidth), 2 * kPanelWidth, kBlockRows);
  const int64_t row_blocks = (args.rows + block_rows - 1) / block_rows;
  const int64_t output_blocks = (x.out + kBlockOutputs - 1) / kBlockOutputs;
  // One cache line more than the rows, so that those of the tile do not fight for the same cache sets.
  const int64_t stride = block_rows + 16;
  const int64_t tile_floats = kBlockOutputs * stride;
  const int64_t scratch_floats = tile_floats + PackedInput::scratch_floats(kBlockOutputs);
  const Scratch scratch(scratch_floats * thread_count());
  parallel_for(row_blocks * output_blocks, [&](int64_t task, int thread) {
    const int64_t row = task / output_blocks * block_rows;
    const int64_t first = task % output_blocks * kBlockOutputs;
    const Block block{.row = row,
                      .rows = std::min(block_rows, args.rows - row),
                      .first = first,
                      .end = std::min(x.out, first + kBlockOutputs)};
    float* tile = scratch.data() + thread * scratch_floats;
    const Write write = prepare(x, block, tile, stride);
    const int64_t next = first + kBlockOutputs * thread_count();
    input.multiply(x.weight + first * args.in, block.end - first, row, row + block.rows, tile, stride, write,
                   tile + tile_floats, next + kBlockOutputs <= x.out ? x.weight + next * args.in : nullptr);
    transpose(tile, block.end - first, block.rows, stride, x.output + row * x.out + first, x.out);
  });
}

// What is left when the norm is done.
LinearArgs after_norm(const LinearArgs& args) {
  rms_norm(norm_of(args));
  LinearArgs after = args;
  after.input = args.norm.output;
  after.norm = {};
  return after;
}

}  // namespace

void linear(const LinearArgs& args) {
  if (args.norm.weight) return linear(after_norm(args));
  const auto for_each_product = [&](const auto& multiply) {
    for (const LinearProduct& product : args.products) {
      if (product.out > 0) multiply(Operands(product));
    }
  };
  if (args.rows <= kFewRows) return for_each_product([&](const Operands& x) { multiply_few_rows(args, x); });
  const PackedInput input(args.input.as<float>(), args.rows, args.in);
  for_each_product([&](const Operands& x) { multiply_many_rows(args, input, x); });
}

void linear_backward(const LinearBackwardArgs& args) {
  const auto* output_gradient = args.output_gradient.as<float>();
  const auto* weight = args.weight.as<float>();
  const auto* addend = args.addend.as<float>();
  auto* input_gradient = args.input_gradient.as<float>();
  const int64_t row_blocks = (args.rows + kGradientRows - 1) / kGradientRows;
  const int64_t column_blocks = (args.in + kGradientColumns - 1) / kGradientColumns;
  parallel_for(row_blocks * column_blocks, [&](int64_t task) {
    const int64_t row = task / column_blocks * kGradientRows, column = task % column_blocks * kGradientColumns;
    const int64_t rows = std::min(kGradientRows, args.rows - row);
    const int64_t columns = std::min(kGradientColumns, args.in - column);
    const int64_t first = row * args.in + column;
    if (addend && addend != input_gradient) {
      for (int64_t at = first; at < first + rows * args.in; at += args.in) {
        std::copy_n(addend + at, columns, input_gradient + at);
      }
    }
    gemm_nn(output_gradient + row * args.out, rows, args.out, weight + column, columns, args.in, args.out,
            input_gradient + first, args.in, 1.0f, addend ? Write::kAdd : Write::kReplace);
  });
}

}  // namespace kv::cpu
