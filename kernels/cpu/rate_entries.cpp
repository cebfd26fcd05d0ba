#include "kernels/rate_entries.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/page_gather.h"
#include "kernels/cpu/parallel.h"

namespace kv::cpu {

namespace {

// Entries at a time: their inputs stay in the second-level cache.
constexpr int64_t kTile = 256;

// Φ(a), the normal distribution.
float normal_below(float a) { return 0.5F * (1.0F + std::erf(a * std::numbers::sqrt2_v<float> / 2)); }
float normal_density(float a) {
  return std::exp(-0.5F * a * a) * (std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>);
}

// One row of the cache and the parameters of its head.
class RatedRow {
 public:
  RatedRow(const PagedView& cache, const EntryNetwork& network, int64_t row)
      : cache_(cache),
        network_(network),
        row_(row),
        inputs_(network.inputs()),
        hidden_(network.hidden),
        parameters_(network.parameters + row % cache.kv_heads * network.parameter_count()),
        x_(kTile * inputs_),
        a_(kTile * hidden_) {}

  const float* bias() const { return parameters_ + inputs_ * hidden_; }
  const float* output_weights() const { return bias() + hidden_; }
  float output_bias() const { return output_weights()[hidden_]; }
  const float* x() const { return x_.data(); }                                 // [entries, inputs]
  const float* a(int64_t entry) const { return a_.data() + entry * hidden_; }  // before GELU

  void load(int64_t first, int64_t entries) {
    gather_inputs(first, entries);
    for (int64_t i = 0; i < entries; ++i) std::copy_n(bias(), hidden_, a_.data() + i * hidden_);
    gemm_nn(x_.data(), entries, inputs_, parameters_, hidden_, hidden_, inputs_, a_.data(), hidden_, 1.0F, Write::kAdd);
  }

 private:
  void gather_inputs(int64_t first, int64_t entries) {
    const int64_t dim = network_.entry_dim;
    if (dim > 0) {
      const auto copy = [&](const float* pool, int64_t to) {
        for_page_runs(cache_, row_, first, entries, [&](int64_t page, int64_t place, int64_t done, int64_t run) {
          for (int64_t i = 0; i < run; ++i) {
            std::copy_n(pool + (page * kPageTokens + place + i) * dim, dim, x_.data() + (done + i) * inputs_ + to);
          }
        });
      };
      copy(cache_.keys.as<float>(), 0);
      copy(cache_.values.as<float>(), dim);
    }
    for (int64_t f = 0; f < network_.feature_count; ++f) {
      const float* feature = network_.features.row(row_ * network_.feature_count + f) + first;
      for (int64_t i = 0; i < entries; ++i) x_.data()[i * inputs_ + 2 * dim + f] = feature[i];
    }
  }

  const PagedView& cache_;
  const EntryNetwork& network_;
  int64_t row_, inputs_, hidden_;
  const float* parameters_;
  Scratch x_, a_;
};

template <class Args>
void check(const Args& args) {
  const EntryNetwork& network = args.network;
  KV_CHECK(network.hidden == 8 || network.hidden == 16 || network.hidden == 32 || network.hidden == 64);
  KV_CHECK(network.inputs() > 0 && (network.entry_dim == 0 || network.entry_dim == args.cache.head_dim));
}

// Visits the rated entries of a row, loaded a tile at a time.
template <class Args, class Visit>
void for_tiles(const Args& args, int64_t row, const Visit& visit) {
  RatedRow rated(args.cache, args.network, row);
  const int64_t count = args.cache.lengths[row] - args.drop_newest;
  for (int64_t first = 0; first < count; first += kTile) {
    const int64_t entries = std::min(kTile, count - first);
    rated.load(first, entries);
    visit(rated, first, entries);
  }
}

void rate_row(const RateEntriesArgs& args, int64_t row) {
  const int hidden = args.network.hidden;
  for_tiles(args, row, [&](const RatedRow& rated, int64_t first, int64_t entries) {
    for (int64_t i = 0; i < entries; ++i) {
      const float* a = rated.a(i);
      float y = rated.output_bias();
      for (int h = 0; h < hidden; ++h) y += rated.output_weights()[h] * (a[h] * normal_below(a[h]));
      args.output.row(row)[first + i] = y;
    }
  });
}

void rate_row_backward(const RateEntriesBackwardArgs& args, int64_t row) {
  const int64_t inputs = args.network.inputs(), hidden = args.network.hidden;
  float* weights = args.gradients + row * args.network.parameter_count();
  float* bias = weights + inputs * hidden;
  float* output_weights = bias + hidden;
  const Scratch slope(kTile * hidden), x_by_input(kTile * inputs);
  for_tiles(args, row, [&](const RatedRow& rated, int64_t first, int64_t entries) {
    for (int64_t i = 0; i < entries; ++i) {
      const float* a = rated.a(i);
      const float dy = args.output_gradient.row(row)[first + i];
      for (int64_t h = 0; h < hidden; ++h) {
        const float below = normal_below(a[h]);
        const float da = dy * rated.output_weights()[h] * (below + a[h] * normal_density(a[h]));
        slope.data()[i * hidden + h] = da;
        bias[h] += da;
        output_weights[h] += dy * (a[h] * below);
      }
      output_weights[hidden] += dy;
    }
    transpose(rated.x(), entries, inputs, inputs, x_by_input.data(), kTile);
    gemm_nn(x_by_input.data(), inputs, kTile, slope.data(), hidden, hidden, entries, weights, hidden, 1.0F,
            Write::kAdd);
  });
}

}  // namespace

void rate_entries(const RateEntriesArgs& args) {
  check(args);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) rate_row(args, row);
  });
}

void rate_entries_backward(const RateEntriesBackwardArgs& args) {
  check(args);
  parallel_for(args.cache.rows, [&](int64_t row) {
    if (!args.rows_due || args.rows_due[row]) rate_row_backward(args, row);
  });
}

}  // namespace kv::cpu
