#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

namespace kv::cpu {

namespace {

struct Matrices {
  const float* a;
  int64_t m, lda, n, k;
  float* c;
  int64_t ldc;
  float alpha;
  Write write;
};

// panel(first_column, columns, first_depth, depth, scratch, ldb) returns that part of b as panel_product wants it.
template <class Panel>
void multiply(const Matrices& matrices, const Panel& panel) {
  const auto& [a, m, lda, n, k, c, ldc, alpha, write] = matrices;
  alignas(Vec) float scratch[kPanelDepth * kPanelWidth];
  // k = 0 still has to write zeros.
  for (int64_t i = 0; i == 0 || i < k; i += kPanelDepth) {
    const int64_t depth = std::min(kPanelDepth, k - i);
    for (int64_t j = 0; j < n; j += kPanelWidth) {
      const int64_t columns = std::min<int64_t>(kPanelWidth, n - j);
      int64_t ldb = kPanelWidth;
      const float* b = panel(j, columns, i, depth, scratch, ldb);
      panel_product({.a = a + i,
                     .lda = lda,
                     .b = b,
                     .ldb = ldb,
                     .k = depth,
                     .c = c + j,
                     .ldc = ldc,
                     .alpha = alpha,
                     .write = i == 0 ? write : Write::kAdd},
                    m, columns);
    }
  }
}

}  // namespace

void gemm_nt(const float* a, int64_t m, int64_t lda, const float* b, int64_t n, int64_t ldb, int64_t k, float* c,
             int64_t ldc, float alpha, Write write) {
  multiply({a, m, lda, n, k, c, ldc, alpha, write},
           [&](int64_t j, int64_t columns, int64_t i, int64_t depth, float* scratch, int64_t&) {
             pack_transposed(b + j * ldb + i, columns, ldb, depth, scratch);
             return scratch;
           });
}

void gemm_nn(const float* a, int64_t m, int64_t lda, const float* b, int64_t n, int64_t ldb, int64_t k, float* c,
             int64_t ldc, float alpha, Write write) {
  multiply({a, m, lda, n, k, c, ldc, alpha, write},
           [&](int64_t j, int64_t columns, int64_t i, int64_t depth, float* scratch, int64_t& stride) {
             const float* from = b + i * ldb + j;
             if (columns == kPanelWidth) {
               stride = ldb;
               return from;
             }
             for (int64_t row = 0; row < depth; ++row) {
               std::memcpy(scratch + row * kPanelWidth, from + row * ldb, static_cast<size_t>(columns) * sizeof(float));
               std::fill(scratch + row * kPanelWidth + columns, scratch + (row + 1) * kPanelWidth, 0.0f);
             }
             return static_cast<const float*>(scratch);
           });
}

}  // namespace kv::cpu
