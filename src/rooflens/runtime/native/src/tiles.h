/* The layout of weights: tiles of 16 output features over all input features.
 *
 * A tile is a plane of scales, rounded up to 64 bytes, then a plane of levels. Levels come by groups of 32
 * input features, as eight vectors of 64 bytes: vector j holds, for each of the 16 rows, the four levels of
 * input features 4 j to 4 j + 3. That is the operand of the 8-bit dot instructions, so nothing is shuffled
 * while multiplying, and a thread reads its tiles as one linear stream.
 *
 *   8 bits   the vectors as they are, levels stored with 128 added
 *   4 bits   four vectors: vector 2 v in the low and 2 v + 1 in the high halves of bytes
 *   5 bits   as 4 bits, then one vector whose bit j is bit 4 of vector j
 *   6 bits   as 4 bits, then two vectors: bits 2 (j % 4) and up of vector j / 4 are bits 4, 5 of vector j
 *   bf16     per pair of input features a vector of 16 x 2 numbers; fp32: per feature a vector of 16
 *
 * Scales are as in the formats of ggml, so that its blocks are repacked without any loss:
 *
 *   Q8 by channel        fp32 [16] for the whole tile
 *   Q8_0, Q4_0, Q5_0     per group fp16 d [16]: w = d (level - 128, 8, 16)
 *   Q4_1, Q5_1           per group fp16 d [16], m [16]: w = d level + m
 *   Q4_K, Q5_K           per 256 features fp16 d [16], dmin [16], and for each of eight groups 6-bit sc, mn:
 *                        16 bytes of their low halves (sc | mn << 4) for each group, then 16 bytes for each
 *                        pair of groups s, s + 4 of their high bits: w = d sc level - dmin mn
 *   Q6_K                 per 256 features fp16 d [16], then for each 16 features int8 sc [16]:
 *                        w = d sc (level - 32)
 */
#ifndef ROOFLENS_TILES_H
#define ROOFLENS_TILES_H

#include "rooflens_native.h"
#include "simd.h"

#define RL_SUPER 256 /* input features of a block of the K formats */
#define RL_SUPER_GROUPS (RL_SUPER / RL_GROUP)
#define K_SCALE_BYTES 256
#define Q6_SCALE_BYTES 288

RL_INLINE int level_bits(int format) {
    switch (format) {
    case RL_Q4_0: case RL_Q4_1: case RL_Q4_K: return 4;
    case RL_Q5_0: case RL_Q5_1: case RL_Q5_K: return 5;
    case RL_Q6_K: return 6;
    default: return 8;
    }
}

/* What is subtracted from every level. */
RL_INLINE int level_offset(int format) {
    switch (format) {
    case RL_Q8_CHANNEL: case RL_Q8_0: return 128;
    case RL_Q4_0: return 8;
    case RL_Q5_0: return 16;
    case RL_Q6_K: return 32;
    default: return 0;
    }
}

RL_INLINE int has_minimum(int format) {
    return format == RL_Q4_1 || format == RL_Q5_1 || format == RL_Q4_K || format == RL_Q5_K;
}

/* Bytes of a group's levels, 16 rows together. */
RL_INLINE int64_t group_bytes(int format) {
    if (format == RL_F32) return RL_GROUP * 64;
    if (format == RL_BF16) return RL_GROUP / 2 * 64;
    return level_bits(format) * 64;
}

RL_INLINE int64_t scale_plane_bytes(int format, int64_t groups) {
    int64_t bytes = 0;
    switch (format) {
    case RL_Q8_CHANNEL: bytes = 64; break;
    case RL_Q8_0: case RL_Q4_0: case RL_Q5_0: bytes = 32 * groups; break;
    case RL_Q4_1: case RL_Q5_1: bytes = 64 * groups; break;
    case RL_Q4_K: case RL_Q5_K: bytes = groups / RL_SUPER_GROUPS * K_SCALE_BYTES; break;
    case RL_Q6_K: bytes = groups / RL_SUPER_GROUPS * Q6_SCALE_BYTES; break;
    default: break;
    }
    return (bytes + 63) / 64 * 64;
}

RL_INLINE int64_t bytes_of_tile(int format, int64_t padded) {
    int64_t groups = padded / RL_GROUP;
    return scale_plane_bytes(format, groups) + groups * group_bytes(format);
}

RL_INLINE vu moved(vu x, int left) { return left >= 0 ? x << left : x >> -left; }

/* Part `part` of the eight vectors of a group's levels. */
RL_INLINE void unpack_levels(int format, const uint8_t *levels, int part, vb w[8]) {
    const int bits = level_bits(format);
    vb v[8];
    for (int i = 0; i < bits; i++) v[i] = *(const vb *)(levels + 64 * i + RL_BYTES * part);
    if (bits == 8) {
        for (int j = 0; j < 8; j++) w[j] = v[j];
        return;
    }
    for (int i = 0; i < 4; i++) {
        w[2 * i] = v[i] & 15;
        w[2 * i + 1] = v[i] >> 4;
    }
    /* Upper bits are moved to their place in whole words: what crosses into another byte is masked. */
    if (bits == 5)
        for (int j = 0; j < 8; j++) w[j] |= (vb)(moved((vu)v[4], 4 - j) & 0x10101010u);
    if (bits == 6)
        for (int j = 0; j < 8; j++) w[j] |= (vb)(moved((vu)v[4 + j / 4], 4 - 2 * (j % 4)) & 0x30303030u);
}

/* Groups whose scales have parts in common. */
RL_INLINE int groups_a_block(int format) { return format >= RL_Q4_K ? RL_SUPER_GROUPS : 1; }

/* The factor and minimum of the group at `place` of a block (Q6_K: the factors of its two halves), of a part. */
RL_INLINE void group_scales(int format, const uint8_t *scales, int64_t block, int place, int part, vf *factor, vf *second) {
    const int64_t g = block; /* where a block is a group */
    const int bytes = RL_LANES * part, halves = 2 * bytes; /* the part's place among 16 of 8 or 16 bits */
    switch (format) {
    case RL_Q8_CHANNEL:
        *factor = vf_load((const float *)scales + RL_LANES * part);
        break;
    case RL_Q8_0: case RL_Q4_0: case RL_Q5_0:
        *factor = vf_of_fp16((const uint16_t *)(scales + 32 * g + halves));
        break;
    case RL_Q4_1: case RL_Q5_1:
        *factor = vf_of_fp16((const uint16_t *)(scales + 64 * g + halves));
        *second = vf_of_fp16((const uint16_t *)(scales + 64 * g + 32 + halves));
        break;
    case RL_Q4_K: case RL_Q5_K: {
        const uint8_t *s = scales + block * K_SCALE_BYTES;
        const vb_narrow low = *(const vb_narrow *)(s + 64 + 16 * place + bytes);
        const vb_narrow high = *(const vb_narrow *)(s + 192 + 16 * (place % 4) + bytes) >> (4 * (place / 4));
        *factor = vf_of_fp16((const uint16_t *)(s + halves)) * vf_of_int(vi_of_bytes((low & 15) | (high & 3) << 4));
        *second = -vf_of_fp16((const uint16_t *)(s + 32 + halves)) *
                  vf_of_int(vi_of_bytes((low >> 4) | ((high >> 2) & 3) << 4));
        break;
    }
    case RL_Q6_K: {
        const uint8_t *s = scales + block * Q6_SCALE_BYTES;
        const vf d = vf_of_fp16((const uint16_t *)(s + halves));
        *factor = d * vf_of_int(__builtin_convertvector(*(const vc_narrow *)(s + 32 + 32 * place + bytes), vi));
        *second = d * vf_of_int(__builtin_convertvector(*(const vc_narrow *)(s + 48 + 32 * place + bytes), vi));
        break;
    }
    default: break;
    }
}

/* Input features [32 g, 32 g + 32) of a part of a tile's rows: value[k] holds those of feature 32 g + k. */
RL_INLINE void group_values(int format, const uint8_t *tile, int64_t groups, int64_t g, int part, vf value[RL_GROUP]) {
    const uint8_t *levels = tile + scale_plane_bytes(format, groups) + g * group_bytes(format);
    if (format == RL_F32) {
        for (int k = 0; k < RL_GROUP; k++) value[k] = vf_load((const float *)levels + RL_TILE * k + RL_LANES * part);
        return;
    }
    if (format == RL_BF16) {
        for (int p = 0; p < RL_GROUP / 2; p++) {
            const vu pair = *(const vu *)(levels + 64 * p + RL_BYTES * part);
            value[2 * p] = (vf)(pair << 16);
            value[2 * p + 1] = (vf)(pair & 0xffff0000u);
        }
        return;
    }
    vb w[8];
    vf factor = vf_set(0.0f), second = vf_set(0.0f);
    unpack_levels(format, levels, part, w);
    group_scales(format, tile, g / groups_a_block(format), (int)(g % groups_a_block(format)), part, &factor, &second);
    for (int k = 0; k < RL_GROUP; k++) {
        const vi level = (vi)(((vu)w[k / 4] >> (8 * (k % 4))) & 255) - vi_set(level_offset(format));
        vf f = format == RL_Q6_K && k >= RL_GROUP / 2 ? second : factor;
        value[k] = vf_of_int(level) * f;
        if (has_minimum(format)) value[k] += second;
    }
}

/* Input features [32 g, 32 g + 32) of one row of a tile. */
RL_INLINE void row_values(int format, const uint8_t *tile, int64_t groups, int64_t g, int64_t row, float to[RL_GROUP]) {
    vf value[RL_GROUP];
    group_values(format, tile, groups, g, (int)(row / RL_LANES), value);
    for (int k = 0; k < RL_GROUP; k++) to[k] = ((const float *)&value[k])[row % RL_LANES];
}

#endif
