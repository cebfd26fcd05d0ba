#pragma once

#include <cstdint>

namespace kv::cpu {

// The register-blocked product under linear, attend, token_loss and gemm. Every element of c is one chain of k fused
// multiply-adds in the order of k, whatever the blocking around it: a result depends on neither rows nor columns a
// call.

enum class Write : uint8_t { kReplace, kAdd };

// As wide as the machine's vectors, whichever compiler it is.
#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif
using Vec = float __attribute__((vector_size(kVecBytes)));
inline constexpr int kLanes = sizeof(Vec) / sizeof(float);

inline Vec load(const float* from) {
  Vec v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, const Vec& v) { __builtin_memcpy(to, &v, sizeof v); }

// Columns of b that a call handles, and rows of c that fit the registers beside them.
inline constexpr int kPanelWidth = 2 * kLanes;
inline constexpr int kPanelRows = kLanes == 16 ? 12 : 6;

// Depth to which callers cut k: a panel of that depth stays in the L1 cache.
inline constexpr int64_t kPanelDepth = 128;

constexpr int64_t round_up(int64_t count, int64_t step) { return (count + step - 1) / step * step; }

struct PanelProduct {
  const float* a = nullptr;  // [rows, k], stride lda
  int64_t lda = 0;
  const float* b = nullptr;  // [k, kPanelWidth], stride ldb; readable to its full width
  int64_t ldb = kPanelWidth;
  int64_t k = 0;
  float* c = nullptr;  // [rows, columns], stride ldc
  int64_t ldc = 0;
  float alpha = 1;
  Write write = Write::kReplace;
  // Memory that will be wanted next, on its way into the cache while the product runs: of every `rows * k` steps of the
  // depth one asks for ahead[step * ahead_step]. Null: none.
  const float* ahead = nullptr;
  int64_t ahead_step = 0;
};

// c[rows, columns] (+)= alpha · a · b, columns <= kPanelWidth, any number of rows.
void panel_product(PanelProduct product, int64_t rows, int64_t columns = kPanelWidth);

// panel[i, j] = b[j, i] for i < k, j < n <= kPanelWidth; 0 in the columns beyond n. panel is [k, kPanelWidth].
void pack_transposed(const float* b, int64_t n, int64_t ldb, int64_t k, float* panel);

// to[j, i] = from[i, j] for i < rows, j < columns, strides ldf and ldt.
void transpose(const float* from, int64_t rows, int64_t columns, int64_t ldf, float* to, int64_t ldt);

// a·b in four chains at once, which keeps up with memory: for vectors used once, where packing would cost more than it
// saves. The order depends on k alone.
float wide_dot(const float* a, const float* b, int64_t k);

}  // namespace kv::cpu
