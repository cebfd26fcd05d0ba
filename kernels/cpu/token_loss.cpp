#include "kernels/token_loss.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduce.h"

namespace kv::cpu {

namespace {

// A tile of logits (384 kB) and the rows' hidden states stay in the L2 cache.
constexpr int64_t kRows = 8 * kPanelRows;
constexpr int64_t kTokens = 1024;

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

}  // namespace

void token_loss(const TokenLossArgs& args) {
  const auto* hidden = args.hidden.as<float>();
  const PackedWeight weight(args.weight.as<float>(), args.vocab, args.width);
  // One cache line more than the tile, so that its rows do not fight for the same cache sets.
  constexpr int64_t kTileStride = kTokens + 16;
  const int64_t scratch_floats = kRows * kTileStride + PackedWeight::scratch_floats(kRows);
  const Scratch scratch(scratch_floats * thread_count());
  const int64_t row_blocks = (args.rows + kRows - 1) / kRows;
  parallel_for(row_blocks, [&](int64_t task, int thread) {
    const int64_t first_row = task * kRows;
    const int64_t rows = std::min(kRows, args.rows - first_row);
    float* tile = scratch.data() + thread * scratch_floats;
    RowState states[kRows];
    for (int64_t token = 0; token < args.vocab; token += kTokens) {
      const int64_t count = std::min(kTokens, args.vocab - token);
      weight.multiply(hidden + first_row * args.width, rows, token, token + count, tile, kTileStride, Write::kReplace,
                      tile + kRows * kTileStride);
      for (int64_t r = 0; r < rows; ++r) {
        const float* logits = tile + r * kTileStride;
        add_logits(states[r], logits, token, count, args.targets[first_row + r]);
        if (args.logits) {
          std::memcpy(args.logits + (first_row + r) * args.vocab + token, logits,
                      static_cast<size_t>(count) * sizeof(float));
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) finish(args, states[r], first_row + r);
  });
}

}  // namespace kv::cpu
