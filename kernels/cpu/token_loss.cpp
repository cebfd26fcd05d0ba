#include "kernels/token_loss.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/packed_input.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// The logits of a strip of the vocabulary, of these rows, are held at once: so all threads share in them, however few
// rows a step has. A row adds them in pieces.
constexpr int64_t kRows = 3 * kPanelWidth;
constexpr int64_t kPiece = 1024;
constexpr int64_t kStrip = 8 * kPiece;
// Logits of a row that one task makes.
constexpr int64_t kTaskTokens = 8 * kPanelRows;

// What is known of a row after some of its vocabulary. sum = Σ e^(logit − largest), weighted = Σ e^(logit − largest) ·
// (logit − largest): both in double across pieces; inside a piece 32 f32 partial sums of 32 terms each.
struct RowState {
  float largest = -std::numeric_limits<float>::infinity();
  int32_t argmax = 0;
  float target = 0;
  double sum = 0;
  double weighted = 0;
};

constexpr int kPartials = 32;

// When the largest logit grows, the sums so far are restated relative to the new one.
void raise_largest(RowState& state, float largest) {
  if (state.sum > 0) {
    const double step = static_cast<double>(state.largest) - static_cast<double>(largest);
    const double factor = std::exp(step);
    state.weighted = factor * (state.weighted + step * state.sum);
    state.sum *= factor;
  }
  state.largest = largest;
}

void add_piece(RowState& state, const float* logits, int64_t count) {
  float sums[kPartials] = {};
  float weighted[kPartials] = {};
  const float top = state.largest;
  int64_t i = 0;
  for (; i + kPartials <= count; i += kPartials) {
#pragma omp simd
    for (int lane = 0; lane < kPartials; ++lane) {
      const float y = logits[i + lane] - top;
      const float e = fast_exp(y);
      sums[lane] += e;
      weighted[lane] += e * y;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const float y = logits[i] - top;
    const float e = fast_exp(y);
    sums[lane] += e;
    weighted[lane] += e * y;
  }
  for (int lane = 0; lane < kPartials; ++lane) {
    state.sum += static_cast<double>(sums[lane]);
    state.weighted += static_cast<double>(weighted[lane]);
  }
}

void add_logits(RowState& state, const float* logits, int64_t first_token, int64_t count, int32_t target) {
  const float top = largest(logits, count);
  if (top > state.largest) {
    state.argmax = static_cast<int32_t>(first_token + (std::find(logits, logits + count, top) - logits));
    raise_largest(state, top);
  }
  if (target >= first_token && target < first_token + count) state.target = logits[target - first_token];
  add_piece(state, logits, count);
}

void finish(const TokenLossArgs& args, const RowState& state, int64_t row) {
  const double log_sum = std::log(state.sum);
  const double target = static_cast<double>(state.target) - static_cast<double>(state.largest);
  args.nll[row] = args.targets[row] < 0 ? 0.0f : static_cast<float>(log_sum - target);
  args.entropy[row] = static_cast<float>(log_sum - state.weighted / state.sum);
  args.argmax[row] = state.argmax;
}

// One cache line more than the rows or columns, so that rows do not fight for the same cache sets.
constexpr int64_t kTileStride = kRows + 16;
constexpr int64_t kStripStride = kStrip + 16;

// logits[rows, count] of rows [first_row, first_row + rows) and of tokens [first_token, first_token + count).
class Strips {
 public:
  explicit Strips(const TokenLossArgs& args)
      : args_(args),
        input_(args.hidden.as<float>(), args.rows, args.width),
        thread_floats_(kTaskTokens * kTileStride + PackedInput::scratch_floats(kTaskTokens)),
        scratch_(thread_floats_ * thread_count()),
        logits_(kRows * kStripStride) {}

  void fill(int64_t first_row, int64_t rows, int64_t first_token, int64_t count) {
    parallel_for((count + kTaskTokens - 1) / kTaskTokens, [&](int64_t task, int thread) {
      const int64_t first = task * kTaskTokens;
      const int64_t tokens = std::min(kTaskTokens, count - first);
      const int64_t next = first_token + first + kTaskTokens * thread_count();
      float* tile = scratch_.data() + thread * thread_floats_;
      input_.multiply(weight(first_token + first), tokens, first_row, first_row + rows, tile, kTileStride,
                      Write::kReplace, tile + kTaskTokens * kTileStride,
                      next + kTaskTokens <= args_.vocab ? weight(next) : nullptr);
      transpose(tile, tokens, rows, kTileStride, logits_.data() + first, kStripStride);
    });
  }

  const float* row(int64_t r) const { return logits_.data() + r * kStripStride; }

 private:
  const float* weight(int64_t token) const { return args_.weight.as<float>() + token * args_.width; }

  const TokenLossArgs& args_;
  PackedInput input_;
  int64_t thread_floats_;
  Scratch scratch_;
  Scratch logits_;
};

}  // namespace

void token_loss(const TokenLossArgs& args) {
  Strips strips(args);
  for (int64_t first_row = 0; first_row < args.rows; first_row += kRows) {
    const int64_t rows = std::min(kRows, args.rows - first_row);
    RowState states[kRows];
    for (int64_t first_token = 0; first_token < args.vocab; first_token += kStrip) {
      const int64_t count = std::min(kStrip, args.vocab - first_token);
      strips.fill(first_row, rows, first_token, count);
      parallel_for(rows, [&](int64_t r) {
        const int64_t row = first_row + r;
        const float* logits = strips.row(r);
        for (int64_t i = 0; i < count; i += kPiece) {
          add_logits(states[r], logits + i, first_token + i, std::min(kPiece, count - i), args.targets[row]);
        }
        if (!args.logits) return;
        std::memcpy(args.logits + row * args.vocab + first_token, logits, static_cast<size_t>(count) * sizeof(float));
      });
    }
    for (int64_t r = 0; r < rows; ++r) finish(args, states[r], first_row + r);
  }
}

}  // namespace kv::cpu
