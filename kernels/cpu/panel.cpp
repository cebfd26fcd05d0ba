#include "kernels/cpu/panel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cpu/looked_at.h"

namespace kv::cpu {

namespace {

template <int kRows>
void product_rows(const PanelProduct& p) {
  Vec sums[kRows][2] = {};
  for (int64_t i = 0; i < p.k; ++i) {
    const Vec b0 = load(p.b + i * p.ldb);
    const Vec b1 = load(p.b + i * p.ldb + kLanes);
    __builtin_prefetch(p.ahead + i * p.ahead_step, 0, 2);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float a = p.a[r * p.lda + i];
      sums[r][0] += a * b0;
      sums[r][1] += a * b1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* c = p.c + r * p.ldc;
    Vec c0 = p.alpha * sums[r][0];
    Vec c1 = p.alpha * sums[r][1];
    if (p.write == Write::kAdd) {
      c0 += load(c);
      c1 += load(c + kLanes);
    }
    store(c, c0);
    store(c + kLanes, c1);
  }
}

using ProductRows = void (*)(const PanelProduct&);

constexpr auto kProductRows = []<size_t... kRows>(std::index_sequence<kRows...>) {
  return std::array<ProductRows, kPanelRows>{product_rows<kRows + 1>...};
}
(std::make_index_sequence<kPanelRows>());

// c is narrower than the registers: through a tile.
void narrow_product(const PanelProduct& p, int64_t rows, int64_t columns) {
  alignas(Vec) float tile[kPanelRows * kPanelWidth];
  PanelProduct full_width = p;
  full_width.c = tile;
  full_width.ldc = kPanelWidth;
  full_width.write = Write::kReplace;
  kProductRows[static_cast<size_t>(rows - 1)](full_width);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      float& c = p.c[r * p.ldc + j];
      c = tile[r * kPanelWidth + j] + (p.write == Write::kAdd ? c : 0.0f);
    }
  }
}

// One butterfly step of a transposition: exchanges blocks of kStep lanes between two rows.
template <int kStep, size_t... kLane>
void exchange(Vec& a, Vec& b, std::index_sequence<kLane...>) {
  const Vec low = __builtin_shufflevector(a, b, ((kLane / kStep) % 2 == 0 ? kLane : kLane - kStep + kLanes)...);
  b = __builtin_shufflevector(a, b, ((kLane / kStep) % 2 == 0 ? kLane + kStep : kLane + kLanes)...);
  a = low;
}

template <int kStep>
[[gnu::always_inline]] inline void exchange_all(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    if ((r / kStep) % 2 == 0) exchange<kStep>(rows[r], rows[r + kStep], std::make_index_sequence<kLanes>());
  }
  if constexpr (kStep > 1) exchange_all<kStep / 2>(rows);
}

// to[j, i] = from[i, j] for a square of kLanes.
void transpose_square(const float* from, int64_t ldf, float* to, int64_t ldt) {
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * ldf);
  exchange_all<kLanes / 2>(rows);
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) store(to + j * ldt, rows[j]);
}

}  // namespace

void panel_product(PanelProduct product, int64_t rows, int64_t columns) {
  look_at_rows(product.a, rows, product.k, product.lda);
  look_at_rows(product.b, product.k, kPanelWidth, product.ldb);
  look_at_rows(product.c, rows, columns, product.ldc);
  while (rows > 0) {
    const int64_t group = std::min<int64_t>(rows, kPanelRows);
    if (columns == kPanelWidth) {
      kProductRows[static_cast<size_t>(group - 1)](product);
    } else {
      narrow_product(product, group, columns);
    }
    product.a += group * product.lda;
    product.c += group * product.ldc;
    product.ahead += product.k * product.ahead_step;
    rows -= group;
  }
}

void transpose(const float* from, int64_t rows, int64_t columns, int64_t ldf, float* to, int64_t ldt) {
  look_at_rows(from, rows, columns, ldf);
  look_at_rows(to, columns, rows, ldt);
  const int64_t whole_columns = columns / kLanes * kLanes;
  for (int64_t first = 0; first < rows; first += kLanes) {
    const int64_t end = std::min<int64_t>(rows, first + kLanes);
    const int64_t squares = end - first == kLanes ? whole_columns : 0;
    for (int64_t j = 0; j < squares; j += kLanes) {
      transpose_square(from + first * ldf + j, ldf, to + j * ldt + first, ldt);
    }
    for (int64_t j = squares; j < columns; ++j) {
      for (int64_t i = first; i < end; ++i) to[j * ldt + i] = from[i * ldf + j];
    }
  }
}

void pack_transposed(const float* b, int64_t n, int64_t ldb, int64_t k, float* panel) {
  transpose(b, n, k, ldb, panel, kPanelWidth);
  if (n == kPanelWidth) return;
  look_at(panel, k * kPanelWidth);
  for (int64_t i = 0; i < k; ++i) std::fill(panel + i * kPanelWidth + n, panel + (i + 1) * kPanelWidth, 0.0f);
}

float wide_dot(const float* a, const float* b, int64_t k) {
  look_at(a, k);
  look_at(b, k);
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= k; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] += load(a + i + j * kLanes) * load(b + i + j * kLanes);
  }
  for (; i + kLanes <= k; i += kLanes) sums[0] += load(a + i) * load(b + i);
  float lanes[kLanes];
  store(lanes, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (int width = kLanes / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  float sum = lanes[0];
  for (; i < k; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace kv::cpu
