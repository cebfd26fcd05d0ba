#include <cpuid.h>
#include <immintrin.h>

#include "sim/io/sha256_blocks.h"

namespace kv {
namespace {

__m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
void store(void* to, __m128i words) { _mm_storeu_si128(static_cast<__m128i*>(to), words); }

// Four words of the message schedule from the sixteen before them, of which `words` holds the oldest four at `i % 4`.
[[gnu::target("sha,sse4.1"), gnu::always_inline]] inline __m128i next_words(const __m128i (&words)[4], int i) {
  const __m128i oldest = words[i % 4], older = words[(i + 1) % 4], old = words[(i + 2) % 4], last = words[(i + 3) % 4];
  const __m128i sums = _mm_add_epi32(_mm_sha256msg1_epu32(oldest, older), _mm_alignr_epi8(last, old, 4));
  return _mm_sha256msg2_epu32(sums, last);
}

// The instructions want the state as ABEF and CDGH.
[[gnu::target("sha,sse4.1")]] void take_blocks(Sha256State& state, const std::byte* bytes, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i cdab = _mm_shuffle_epi32(load(&state[0]), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(load(&state[4]), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; blocks > 0; --blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      words[i % 4] = i < 4 ? _mm_shuffle_epi8(load(bytes + 16 * i), big_endian) : next_words(words, i);
      const __m128i inputs = _mm_add_epi32(words[i % 4], load(&kSha256Rounds[static_cast<size_t>(4 * i)]));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, inputs);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(inputs, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  store(&state[0], _mm_blend_epi16(feba, dchg, 0xF0));
  store(&state[4], _mm_alignr_epi8(dchg, feba, 8));
}

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSha = 1u << 29, kSse41 = 1u << 19;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & kSha)) return false;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & kSse41);
}

}  // namespace

Sha256Blocks sha256_instructions() { return has_instructions() ? take_blocks : nullptr; }

}  // namespace kv
