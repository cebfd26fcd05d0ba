#pragma once

#include <cstdint>

#include "kernels/cpu/panel.h"

namespace kv::cpu {

// Single-threaded f32 products of row-major matrices; callers split the work in fixed blocks. `c` may not alias `a`,
// `b`.

// c[m, n] (+)= alpha · a[m, k] · b[n, k]ᵀ
void gemm_nt(const float* a, int64_t m, int64_t lda, const float* b, int64_t n, int64_t ldb, int64_t k, float* c,
             int64_t ldc, float alpha = 1.0f, Write write = Write::kReplace);

// c[m, n] (+)= alpha · a[m, k] · b[k, n]
void gemm_nn(const float* a, int64_t m, int64_t lda, const float* b, int64_t n, int64_t ldb, int64_t k, float* c,
             int64_t ldc, float alpha = 1.0f, Write write = Write::kReplace);

}  // namespace kv::cpu
