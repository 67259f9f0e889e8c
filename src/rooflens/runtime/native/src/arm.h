/* What simd.h asks of 64-bit Arm: sixteen lanes are four registers of 128 bits. */
#ifndef ROOFLENS_ARM_H
#define ROOFLENS_ARM_H

#include <arm_neon.h>

typedef struct {
    float32x4_t part[4];
} arm_floats;

RL_INLINE arm_floats arm_parts(vf v) {
    arm_floats made;
    memcpy(&made, &v, sizeof v);
    return made;
}

RL_INLINE float arm_sum(vf v) {
    const arm_floats a = arm_parts(v);
    return vaddvq_f32(vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3])));
}

RL_INLINE float arm_top(vf v) {
    const arm_floats a = arm_parts(v);
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[2]), vmaxq_f32(a.part[1], a.part[3])));
}

RL_INLINE vf arm_of_fp16(const uint16_t *p) {
    arm_floats made;
    for (int i = 0; i < 4; i++)
        made.part[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    vf v;
    memcpy(&v, &made, sizeof v);
    return v;
}

/* Pairwise sums, three times: of lanes, of pairs of lanes, of vectors. */
RL_INLINE vf arm_sum_each(const vf v[16]) {
    arm_floats made;
    for (int i = 0; i < 4; i++) {
        float32x4_t four[4];
        for (int j = 0; j < 4; j++) {
            const arm_floats a = arm_parts(v[4 * i + j]);
            four[j] = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
        }
        made.part[i] = vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3]));
    }
    vf sums;
    memcpy(&sums, &made, sizeof sums);
    return sums;
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
    const int8x16_t quad = arm_quad(x);
    int32x4_t sum[4];
    int8x16_t part[4];
    memcpy(sum, &acc, sizeof acc);
    memcpy(part, &w, sizeof w);
    for (int i = 0; i < 4; i++) sum[i] = vdotq_s32(sum[i], part[i], quad);
    memcpy(&acc, sum, sizeof acc);
    return acc;
}

RL_INLINE vi arm_dot_quads(vi acc, vb w, const int8_t *x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const int8x16_t quad = arm_quad(x);
    int32x4_t sum[4];
    uint8x16_t part[4];
    memcpy(sum, &acc, sizeof acc);
    memcpy(part, &w, sizeof w);
    for (int i = 0; i < 4; i++) sum[i] = vusdotq_s32(sum[i], part[i], quad);
    memcpy(&acc, sum, sizeof acc);
    return acc;
#else
    /* w = (w - 128) + 128, and the first is what a signed byte holds: w x = (w - 128) x + 64 x + 64 x. */
    const int8x16_t quad = arm_quad(x), half = vdupq_n_s8(64);
    const int32x4_t rest = vdotq_s32(vdotq_s32(vdupq_n_s32(0), half, quad), half, quad);
    const int32x4_t all[4] = {rest, rest, rest, rest};
    vi more;
    memcpy(&more, all, sizeof more);
    return arm_dot_small(acc + more, w ^ 128, x);
#endif
}
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
RL_INLINE void arm_bf16_store(uint16_t *p, vf v) {
    const arm_floats a = arm_parts(v);
    for (int i = 0; i < 4; i += 2) {
        const bfloat16x8_t both = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a.part[i]), a.part[i + 1]);
        memcpy(p + 4 * i, &both, sizeof both);
    }
}

/* See dot_pairs. */
RL_INLINE vf arm_dot_pairs(vf acc, vu w, const uint16_t *x) {
    uint32_t pair;
    memcpy(&pair, x, 4);
    const bfloat16x8_t inputs = vreinterpretq_bf16_u32(vdupq_n_u32(pair));
    arm_floats sum = arm_parts(acc);
    uint32x4_t part[4];
    memcpy(part, &w, sizeof w);
    for (int i = 0; i < 4; i++) sum.part[i] = vbfdotq_f32(sum.part[i], vreinterpretq_bf16_u32(part[i]), inputs);
    memcpy(&acc, &sum, sizeof acc);
    return acc;
}
#endif

#endif
