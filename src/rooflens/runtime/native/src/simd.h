/* One register at a time, in the compiler's own vector types: RL_LANES numbers of 32 bits, so that a tile's
 * sixteen are RL_PARTS registers. (Compilers keep vectors that are wider than the machine's in memory.)
 * Instructions that C cannot express are behind a few functions. */
#ifndef ROOFLENS_SIMD_H
#define ROOFLENS_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define RL_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#define RL_LANES 16
#define RL_EACH_LANE(X) X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X
#elif defined(__AVX2__)
#define RL_LANES 8
#define RL_EACH_LANE(X) X, X, X, X, X, X, X, X
#else
#define RL_LANES 4
#define RL_EACH_LANE(X) X, X, X, X
#endif
#define RL_PARTS (16 / RL_LANES)
#define RL_BYTES (4 * RL_LANES) /* of a register */

typedef float vf __attribute__((vector_size(RL_BYTES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(RL_BYTES), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(RL_BYTES), aligned(4), may_alias));
typedef uint8_t vb __attribute__((vector_size(RL_BYTES), aligned(1), may_alias));
/* A number of 8 or 16 bits for each lane. */
typedef uint8_t vb_narrow __attribute__((vector_size(RL_LANES), aligned(1), may_alias));
typedef int8_t vc_narrow __attribute__((vector_size(RL_LANES), aligned(1), may_alias));
typedef uint16_t vh_narrow __attribute__((vector_size(2 * RL_LANES), aligned(2), may_alias));

RL_INLINE vf vf_set(float x) { return (vf){RL_EACH_LANE(x)}; }
RL_INLINE vi vi_set(int32_t x) { return (vi){RL_EACH_LANE(x)}; }
RL_INLINE vf vf_load(const float *p) { return *(const vf *)p; }
RL_INLINE void vf_store(float *p, vf v) { *(vf *)p = v; }
RL_INLINE vf vf_of_int(vi v) { return __builtin_convertvector(v, vf); }
RL_INLINE vi vi_of_bytes(vb_narrow v) { return __builtin_convertvector(v, vi); }

RL_INLINE vf vf_where(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
#if defined(__AVX512F__)
RL_INLINE vf vf_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
RL_INLINE vf vf_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
RL_INLINE vf vf_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
RL_INLINE vf vf_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
RL_INLINE vf vf_max(vf a, vf b) { return vf_where(a > b, a, b); }
RL_INLINE vf vf_min(vf a, vf b) { return vf_where(a < b, a, b); }
#endif
RL_INLINE vf vf_abs(vf a) { return (vf)((vi)a & vi_set(0x7fffffff)); }

/* To the nearest whole number, ties to even, for |x| < 2^22. */
RL_INLINE vf vf_round(vf x) {
    const vf magic = vf_set(12582912.0f);
    return (x + magic) - magic;
}

#if defined(__aarch64__)
#include "arm.h"
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
/* The two halves of a register's lanes, by an operation on four lanes. */
#define RL_HALVES(OPERATION, v) OPERATION(_mm256_castps256_ps128((__m256)(v)), _mm256_extractf128_ps((__m256)(v), 1))
#endif

RL_INLINE float vf_sum(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
    const __m128 four = RL_HALVES(_mm_add_ps, v), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#elif defined(__aarch64__)
    return arm_sum(v);
#else
    return v[0] + v[2] + (v[1] + v[3]);
#endif
}

RL_INLINE float vf_top(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX2__)
    const __m128 four = RL_HALVES(_mm_max_ps, v), two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#elif defined(__aarch64__)
    return arm_top(v);
#else
    const float low = v[0] > v[1] ? v[0] : v[1], high = v[2] > v[3] ? v[2] : v[3];
    return low > high ? low : high;
#endif
}

/* e^x to about one part in 10^7: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' expf). */
RL_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_max(x, vf_set(-87.0f)), vf_set(88.0f));
    vf n = vf_round(x * vf_set(1.44269504088896341f));
    vf r = x - n * vf_set(0.693359375f);
    r = r - n * vf_set(-2.12194440e-4f);
    vf y = vf_set(1.9875691500e-4f);
    y = y * r + vf_set(1.3981999507e-3f);
    y = y * r + vf_set(8.3334519073e-3f);
    y = y * r + vf_set(4.1665795894e-2f);
    y = y * r + vf_set(1.6666665459e-1f);
    y = y * r + vf_set(5.0000001201e-1f);
    y = y * (r * r) + r + vf_set(1.0f);
    vi power = (__builtin_convertvector(n, vi) + vi_set(127)) << 23;
    return y * (vf)power;
}

/* 1 / x for numbers of ordinary size, to a unit or two of the last place: by Newton's step, where a first
 * guess is to be had for less than a division. */
RL_INLINE vf vf_inverse(vf x) {
#ifdef __AVX512F__
    const vf guess = (vf)_mm512_rcp14_ps((__m512)x);
    return guess * (vf_set(2.0f) - x * guess);
#else
    return vf_set(1.0f) / x;
#endif
}

RL_INLINE vf vf_tanh(vf x) {
    vf e = vf_exp(x + x);
    return vf_set(1.0f) - vf_set(2.0f) / (e + vf_set(1.0f));
}

RL_INLINE float bf16_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* To nearest, ties to even; what is not a number stays so. */
RL_INLINE uint16_t float_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

RL_INLINE float fp16_float(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 1023u, bits;
    float y;
    if (exponent == 0) {
        y = (float)fraction * 5.9604644775390625e-8f; /* 2^-24: subnormal, or zero */
        return sign ? -y : y;
    }
    bits = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112u) << 23 | fraction << 13;
    bits |= sign;
    memcpy(&y, &bits, sizeof y);
    return y;
}

RL_INLINE vf vf_of_bf16(const uint16_t *p) {
    vu wide = __builtin_convertvector(*(const vh_narrow *)p, vu) << 16;
    return (vf)wide;
}

RL_INLINE vf vf_of_fp16(const uint16_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    return arm_of_fp16(p);
#else
    return (vf){fp16_float(p[0]), fp16_float(p[1]), fp16_float(p[2]), fp16_float(p[3])};
#endif
}

RL_INLINE void bf16_store(uint16_t *p, vf v) {
#if defined(__AVX512BF16__)
    __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &narrow, 32);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    arm_bf16_store(p, v);
#else
    vu bits = (vu)v;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu quiet = (bits >> 16) | 0x40;
    vu odd = (vu)((bits & 0x7fffffff) > 0x7f800000);
    *(vh_narrow *)p = __builtin_convertvector((quiet & odd) | (rounded & ~odd), vh_narrow);
#endif
}

/* The four bytes from `x` on, as one number. */
RL_INLINE int32_t quad_of(const void *x) {
    int32_t quad;
    memcpy(&quad, x, 4);
    return quad;
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
/* Products of two bytes of 8 bits are exact in pairs of 16 only: such machines multiply weights by inputs of 16
 * bits, which costs them no more than inputs of 8. */
#define RL_WORDS 1

/* A quad's inputs lie as its weights are taken apart: even ones first. */
RL_INLINE void words_store(int16_t *p, vi v) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storeu_si128((__m128i *)p, _mm_shufflehi_epi16(_mm_shufflelo_epi16(words, 0xd8), 0xd8));
}

RL_INLINE vi even_bytes(vb w) { return (vi)_mm256_and_si256((__m256i)w, _mm256_set1_epi16(0xff)); }
RL_INLINE vi odd_bytes(vb w) { return (vi)_mm256_srli_epi16((__m256i)w, 8); }

/* Sums are made one after another: compilers that add up products in pairs first keep them in memory. */
#if defined(__GNUC__)
#define IN_ORDER(sum) __asm__("" : "+x"(sum))
#else
#define IN_ORDER(sum) (void)(sum)
#endif

/* acc[r] += the sum of two products of `w`'s words and the two from `x` on. */
RL_INLINE vi dot_words(vi acc, vi w, const int16_t *x) {
    acc += (vi)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(quad_of(x)));
    IN_ORDER(acc);
    return acc;
}

/* Sums of 16 bits, two for each row, of weights below 16: of up to eight quads they are exact. */
RL_INLINE vi dot_tiny(vi acc, vb w, const int8_t *x) {
    acc = (vi)_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(quad_of(x))));
    IN_ORDER(acc);
    return acc;
}

RL_INLINE vi sum_tiny(vi acc) { return (vi)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1)); }
#endif

/* acc[r] += sum of four w[4 r + i] * x[i], w unsigned and x signed bytes: exact in 32 bits. */
RL_INLINE vi dot_quads(vi acc, vb w, const int8_t *x) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(quad_of(x)));
#elif defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, _mm256_set1_epi32(quad_of(x)));
#elif defined(RL_ARM_DOTS)
    return arm_dot_quads(acc, w, x);
#else
    vu quads = (vu)w;
    for (int i = 0; i < 4; i++) acc += (vi)((quads >> (8 * i)) & 255) * vi_set(x[i]);
    return acc;
#endif
}

/* The same for w below 128, where some machines need fewer instructions. */
RL_INLINE vi dot_small(vi acc, vb w, const int8_t *x) {
#if defined(RL_ARM_DOTS)
    return arm_dot_small(acc, w, x);
#else
    return dot_quads(acc, w, x);
#endif
}

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define RL_BF16_DOTS 1

/* acc[r] += w[r]'s two numbers in bf16 times the two from `x` on. */
RL_INLINE vf dot_pairs(vf acc, vu w, const uint16_t *x) {
#if defined(__AVX512BF16__)
    const __m512i pair = _mm512_set1_epi32(quad_of(x));
    __m512bh weights, inputs;
    memcpy(&weights, &w, 64);
    memcpy(&inputs, &pair, 64);
    return (vf)_mm512_dpbf16_ps((__m512)acc, weights, inputs);
#else
    return arm_dot_pairs(acc, w, x);
#endif
}
#endif

/* One register of the sums, or of the largest lanes, of RL_LANES. */
#if defined(__AVX512F__)
#define RL_EACH(NAME, OPERATION)                                                                               \
    RL_INLINE vf NAME(const vf v[RL_LANES]) {                                                                        \
        __m512 a[16];                                                                                          \
        for (int i = 0; i < 8; i++) {                                                                          \
            const __m512 x = (__m512)v[2 * i], y = (__m512)v[2 * i + 1];                                       \
            a[i] = OPERATION(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));                              \
        }                                                                                                      \
        for (int i = 0; i < 4; i++) {                                                                          \
            const __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);                  \
            a[i] = OPERATION(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),                                       \
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));                                      \
        }                                                                                                      \
        /* a[i] holds, in each of four lanes of 128 bits, parts of vectors 4 i to 4 i + 3. */                  \
        const __m512 b = OPERATION(_mm512_shuffle_f32x4(a[0], a[1], 0x88), _mm512_shuffle_f32x4(a[0], a[1], 0xdd)); \
        const __m512 c = OPERATION(_mm512_shuffle_f32x4(a[2], a[3], 0x88), _mm512_shuffle_f32x4(a[2], a[3], 0xdd)); \
        return (vf)OPERATION(_mm512_shuffle_f32x4(b, c, 0x88), _mm512_shuffle_f32x4(b, c, 0xdd));              \
    }
RL_EACH(sum_each, _mm512_add_ps)
RL_EACH(top_each, _mm512_max_ps)
#elif defined(__AVX2__)
#define RL_EACH(NAME, OPERATION)                                                                               \
    RL_INLINE vf NAME(const vf v[RL_LANES]) {                                                                  \
        __m256 a[4], b[2];                                                                                     \
        for (int i = 0; i < 4; i++) {                                                                          \
            const __m256 x = (__m256)v[2 * i], y = (__m256)v[2 * i + 1];                                       \
            a[i] = OPERATION(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));                              \
        }                                                                                                      \
        for (int i = 0; i < 2; i++) {                                                                          \
            const __m256d x = _mm256_castps_pd(a[2 * i]), y = _mm256_castps_pd(a[2 * i + 1]);                  \
            b[i] = OPERATION(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),                                       \
                             _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));                                      \
        }                                                                                                      \
        /* b[i] holds, in both halves, parts of vectors 4 i to 4 i + 3. */                                     \
        return (vf)OPERATION(_mm256_permute2f128_ps(b[0], b[1], 0x20), _mm256_permute2f128_ps(b[0], b[1], 0x31)); \
    }
RL_EACH(sum_each, _mm256_add_ps)
RL_EACH(top_each, _mm256_max_ps)
#else
RL_INLINE vf sum_each(const vf v[RL_LANES]) {
#if defined(__aarch64__)
    return arm_sum_each(v);
#else
    return (vf){vf_sum(v[0]), vf_sum(v[1]), vf_sum(v[2]), vf_sum(v[3])};
#endif
}

RL_INLINE vf top_each(const vf v[RL_LANES]) { return (vf){vf_top(v[0]), vf_top(v[1]), vf_top(v[2]), vf_top(v[3])}; }
#endif
#undef RL_EACH

RL_INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

/* Ask for what follows `here` in a stream. The hardware's prefetchers stop at a page's end, and see nothing in
 * time where there is much to compute on each byte. The second cache takes many more requests at once than the
 * first, so it is asked far ahead and the first nearer: measured, docs/runtime.md. */
#define RL_FAR 16384
#define RL_NEAR 4096
RL_INLINE void ask_ahead(const uint8_t *here) {
    __builtin_prefetch(here + RL_FAR, 0, 2);
    __builtin_prefetch(here + RL_NEAR, 0, 3);
}

#endif
