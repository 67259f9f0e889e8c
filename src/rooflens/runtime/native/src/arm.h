/* What simd.h asks of 64-bit Arm. */
#ifndef ROOFLENS_ARM_H
#define ROOFLENS_ARM_H

#include <arm_neon.h>

RL_INLINE float arm_sum(vf v) { return vaddvq_f32((float32x4_t)v); }

RL_INLINE float arm_top(vf v) { return vmaxvq_f32((float32x4_t)v); }

RL_INLINE vf arm_of_fp16(const uint16_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

RL_INLINE vf arm_sum_each(const vf v[4]) {
    return (vf)vpaddq_f32(vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]), vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
}

#if defined(__ARM_FEATURE_DOTPROD)
#define RL_ARM_DOTS 1

RL_INLINE int8x16_t arm_quad(const int8_t *x) {
    int32_t quad;
    memcpy(&quad, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(quad));
}

/* See dot_small: as signed numbers the weights are the same. */
RL_INLINE vi arm_dot_small(vi acc, vb w, const int8_t *x) {
    return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, arm_quad(x));
}

RL_INLINE vi arm_dot_quads(vi acc, vb w, const int8_t *x) {
    const int8x16_t quad = arm_quad(x);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return (vi)vusdotq_s32((int32x4_t)acc, (uint8x16_t)w, quad);
#else
    /* w = (w - 128) + 128, and the first is what a signed byte holds: w x = (w - 128) x + 64 x + 64 x. */
    const int8x16_t half = vdupq_n_s8(64);
    const int32x4_t rest = vdotq_s32(vdotq_s32((int32x4_t)acc, half, quad), half, quad);
    return (vi)vdotq_s32(rest, (int8x16_t)(w ^ 128), quad);
#endif
}
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
RL_INLINE void arm_bf16_store(uint16_t *p, vf v) {
    const bfloat16x4_t narrow = vcvt_bf16_f32((float32x4_t)v);
    memcpy(p, &narrow, sizeof narrow);
}

/* See dot_pairs. */
RL_INLINE vf arm_dot_pairs(vf acc, vu w, const uint16_t *x) {
    uint32_t pair;
    memcpy(&pair, x, 4);
    return (vf)vbfdotq_f32((float32x4_t)acc, vreinterpretq_bf16_u32((uint32x4_t)w), vreinterpretq_bf16_u32(vdupq_n_u32(pair)));
}
#endif

#endif
