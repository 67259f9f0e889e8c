/* Linears: what is made of the input once, and the tiles times it. */
#ifndef ROOFLENS_MULTIPLY_H
#define ROOFLENS_MULTIPLY_H

#include "tiles.h"

/* Rows that go over a tile together. With 16 registers more than four are kept in memory, not in them. */
#ifdef __AVX512F__
#define RL_ROWS_AT_ONCE 8
#else
#define RL_ROWS_AT_ONCE 4
#endif

/* The input of a linear in the forms that its formats read: rows of `padded` features, zeros behind the
 * last. Levels are int8 with a scale for each group of 32. Up to FINE_ROWS rows have a second level for each
 * (`fine`, else null), what the first leaves in steps of 1 / 256: weights are waited for then, not these dots,
 * and inputs of eight bits cost more quality than weights do. `sums`: of each half group, in its finest steps. */
#define FINE_ROWS 4

typedef struct {
    const float *x;
    uint16_t *narrow;
    int8_t *levels, *fine;
    float *scales;     /* [rows][groups] */
    int32_t *sums;     /* [rows][2 groups] */
    int32_t *bases;    /* [rows][groups]: -128 times the whole group's sum */
    int64_t x_stride, padded;
} rl_input;

/* BLOCKS: bf16 in blocks of 16 rows x 32 features, each in a row of memory, as the matrix unit loads them. */
enum { NEEDS_FLOATS = 1, NEEDS_BF16 = 2, NEEDS_LEVELS = 4, NEEDS_FINE = 8, NEEDS_BLOCKS = 16 };
#define RL_BLOCK_ROWS 16

RL_INLINE int needs_of(const rl_linear *linear, int64_t rows) {
    int needs = 0;
    for (int i = 0; i < linear->segments; i++) {
        const int format = linear->segment[i].format;
        if (format == RL_F32) needs |= NEEDS_FLOATS;
#ifdef RL_BF16_DOTS
        else if (format == RL_BF16) needs |= NEEDS_BF16;
#else
        else if (format == RL_BF16) needs |= NEEDS_FLOATS;
#endif
        else needs |= rows <= FINE_ROWS ? NEEDS_FINE : NEEDS_LEVELS;
    }
    return needs;
}

/* Sixteen groups at a time, so that their sums and largest values are vectors' work. */
RL_INLINE void prepare_levels(const rl_input *in, const float *x, int64_t r, const int fine) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    const float steps = fine ? 127.0f * 256.0f : 127.0f;
    for (int64_t first = 0; first < groups; first += 16) {
        const int count = groups - first < 16 ? (int)(groups - first) : 16;
        vf top[16], half[2][16];
        float inverse[16], scale[16], sum[2][16];
        for (int i = 0; i < 16; i++) {
            const float *group = x + RL_GROUP * (first + i);
            top[i] = i < count ? vf_max(vf_abs(vf_load(group)), vf_abs(vf_load(group + 16))) : vf_set(0.0f);
            half[0][i] = half[1][i] = vf_set(0.0f);
        }
        const vf tops = top_each(top);
        vf_store(inverse, vf_where((vi)(tops > vf_set(0.0f)), vf_set(127.0f) / tops, vf_set(0.0f)));
        vf_store(scale, tops / vf_set(steps));
        for (int i = 0; i < count; i++)
            for (int h = 0; h < 2; h++) {
                const int64_t at = RL_GROUP * (first + i) + 16 * h;
                const vf scaled = vf_load(x + at) * vf_set(inverse[i]), whole = vf_round(scaled);
                *(vc16 *)(in->levels + r * padded + at) = __builtin_convertvector(__builtin_convertvector(whole, vi), vc16);
                half[h][i] = whole;
                if (fine) {
                    const vf rest = vf_min(vf_round((scaled - whole) * vf_set(256.0f)), vf_set(127.0f));
                    *(vc16 *)(in->fine + r * padded + at) = __builtin_convertvector(__builtin_convertvector(rest, vi), vc16);
                    half[h][i] = whole * vf_set(256.0f) + rest;
                }
            }
        /* Sums of whole numbers below 2^24 are exact in floats. */
        for (int h = 0; h < 2; h++) vf_store(sum[h], sum_each(half[h]));
        for (int i = 0; i < count; i++) {
            const int64_t g = r * groups + first + i;
            in->scales[g] = scale[i];
            for (int h = 0; h < 2; h++) in->sums[2 * g + h] = (int32_t)sum[h][i];
            if (!fine) in->bases[g] = -128 * (in->sums[2 * g] + in->sums[2 * g + 1]);
        }
    }
}

/* `x` as row `r` of the input, in the forms of `needs`. */
static void prepare_row(const rl_input *in, const float *x, int64_t r, int needs) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    if (needs & NEEDS_BF16)
        for (int64_t k = 0; k < padded; k += 16) bf16_store(in->narrow + r * padded + k, vf_load(x + k));
    if (needs & NEEDS_BLOCKS)
        for (int64_t g = 0; g < groups; g++) {
            uint16_t *to = in->narrow + ((r / RL_BLOCK_ROWS * groups + g) * RL_BLOCK_ROWS + r % RL_BLOCK_ROWS) * RL_GROUP;
            bf16_store(to, vf_load(x + RL_GROUP * g));
            bf16_store(to + 16, vf_load(x + RL_GROUP * g + 16));
        }
    if (needs & NEEDS_FINE) prepare_levels(in, x, r, 1);
    else if (needs & NEEDS_LEVELS) prepare_levels(in, x, r, 0);
}

RL_INLINE vi dot_levels(const int format, vi acc, vb w, const int8_t *x) {
    return level_bits(format) < 8 ? dot_small(acc, w, x) : dot_quads(acc, w, x);
}

/* sum[r] = a tile of quantised weights times rows `row` to `row + rows`. */
RL_INLINE void tile_levels(const int format, const int rows, const int fine, const uint8_t *tile, const rl_input *in,
                           int64_t row, vf *sum) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    const uint8_t *levels = tile + scale_plane_bytes(format, groups);
    const int8_t *x = in->levels + row * padded;
    const int64_t to_fine = fine ? in->fine - in->levels : 0;
    const float *scales = in->scales + row * groups;
    const int32_t *sums = in->sums + 2 * row * groups;
    vf total[RL_ROWS_AT_ONCE];
    for (int r = 0; r < rows; r++) total[r] = vf_set(0.0f);
    const int a_block = groups_a_block(format);
    /* The scales' part of the stream at once: what is asked for must have no gaps. */
    for (const uint8_t *line = tile; line < levels; line += 64) ask_ahead(line);
    for (int64_t block = 0; block < groups / a_block; block++) {
        for (int place = 0; place < a_block; place++) {
            const int64_t g = block * a_block + place;
            vb w[8];
            vf factor = vf_set(0.0f), second = vf_set(0.0f);
            const uint8_t *here = levels + g * group_bytes(format);
            for (int line = 0; line < group_bytes(format); line += 64) ask_ahead(here + line);
            unpack_levels(format, here, w);
            group_scales(format, tile, block, place, &factor, &second);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const int8_t *quads = x + r * padded + RL_GROUP * g;
                const int32_t *own = sums + 2 * (r * groups + g);
                vi a = vi_set(fine ? 0 : -level_offset(format) * own[0]), b = vi_set(fine ? 0 : -level_offset(format) * own[1]);
                for (int j = 0; j < 4; j++) {
                    a = dot_levels(format, a, w[j], quads + 4 * j);
                    b = dot_levels(format, b, w[4 + j], quads + 16 + 4 * j);
                }
                if (fine) {
                    vi c = vi_set(-level_offset(format) * own[0]), d = vi_set(-level_offset(format) * own[1]);
                    for (int j = 0; j < 4; j++) {
                        c = dot_levels(format, c, w[j], quads + to_fine + 4 * j);
                        d = dot_levels(format, d, w[4 + j], quads + to_fine + 16 + 4 * j);
                    }
                    if (format == RL_Q6_K) {
                        a = (a << 8) + c;
                        b = (b << 8) + d;
                    } else {
                        a = ((a + b) << 8) + c;
                        b = d;
                    }
                }
                const float scale = scales[r * groups + g];
                if (format == RL_Q6_K)
                    total[r] += (vf_of_int(a) * factor + vf_of_int(b) * second) * vf_set(scale);
                else
                    total[r] += vf_of_int(a + b) * (factor * vf_set(scale));
                if (has_minimum(format)) total[r] += second * vf_set(scale * (float)(own[0] + own[1]));
            }
        }
    }
    for (int r = 0; r < rows; r++) sum[r] = total[r];
}

RL_INLINE void tile_bf16(const int rows, const uint8_t *tile, const rl_input *in, int64_t row, vf *sum) {
    const int64_t padded = in->padded;
    const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    vf total[RL_ROWS_AT_ONCE][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < chains; c++) total[r][c] = vf_set(0.0f);
    for (int64_t p = 0; p < padded / 2; p += 4) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *here = tile + 64 * (p + c);
            const vu pair = *(const vu *)here;
            ask_ahead(here);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf *to = &total[r][c % chains];
#ifdef RL_BF16_DOTS
                *to = dot_pairs(*to, pair, in->narrow + (row + r) * padded + 2 * (p + c));
#else
                const float *x = in->x + (row + r) * in->x_stride + 2 * (p + c);
                *to += (vf)(pair << 16) * vf_set(x[0]);
                *to += (vf)(pair & 0xffff0000u) * vf_set(x[1]);
#endif
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        sum[r] = total[r][0];
        for (int c = 1; c < chains; c++) sum[r] += total[r][c];
    }
}

RL_INLINE void tile_f32(const int rows, const uint8_t *tile, const rl_input *in, int64_t row, vf *sum) {
    const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    vf total[RL_ROWS_AT_ONCE][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < chains; c++) total[r][c] = vf_set(0.0f);
    for (int64_t k = 0; k < in->padded; k += 4) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *here = tile + 64 * (k + c);
            const vf w = vf_load((const float *)here);
            ask_ahead(here);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                total[r][c % chains] += w * vf_set(in->x[(row + r) * in->x_stride + k + c]);
        }
    }
    for (int r = 0; r < rows; r++) {
        sum[r] = total[r][0];
        for (int c = 1; c < chains; c++) sum[r] += total[r][c];
    }
}

typedef void (*tile_kernel)(const uint8_t *, const rl_input *, int64_t, vf *);

#define TILE_LEVELS(FORMAT, ROWS)                                                                       \
    static void FORMAT##_##ROWS(const uint8_t *tile, const rl_input *in, int64_t row, vf *sum) {        \
        if (in->fine) tile_levels(RL_##FORMAT, ROWS, 1, tile, in, row, sum);                            \
        else tile_levels(RL_##FORMAT, ROWS, 0, tile, in, row, sum);                                     \
    }
#define TILE_FLOATS(FORMAT, KERNEL, ROWS)                                                               \
    static void FORMAT##_##ROWS(const uint8_t *tile, const rl_input *in, int64_t row, vf *sum) {        \
        KERNEL(ROWS, tile, in, row, sum);                                                               \
    }
#if RL_ROWS_AT_ONCE == 8
#define EACH_ROWS(MAKE, ...) MAKE(__VA_ARGS__, 1) MAKE(__VA_ARGS__, 2) MAKE(__VA_ARGS__, 4) MAKE(__VA_ARGS__, 8)
#define KERNELS(FORMAT) [RL_##FORMAT] = {FORMAT##_1, FORMAT##_2, FORMAT##_4, FORMAT##_8}
static const int kernel_rows[] = {1, 2, 4, 8};
#else
#define EACH_ROWS(MAKE, ...) MAKE(__VA_ARGS__, 1) MAKE(__VA_ARGS__, 4)
#define KERNELS(FORMAT) [RL_##FORMAT] = {FORMAT##_1, FORMAT##_4}
static const int kernel_rows[] = {1, 4};
#endif
#define KERNEL_SIZES (int)(sizeof kernel_rows / sizeof *kernel_rows)

EACH_ROWS(TILE_FLOATS, F32, tile_f32)
EACH_ROWS(TILE_FLOATS, BF16, tile_bf16)
EACH_ROWS(TILE_LEVELS, Q8_CHANNEL)
EACH_ROWS(TILE_LEVELS, Q8_0)
EACH_ROWS(TILE_LEVELS, Q4_0)
EACH_ROWS(TILE_LEVELS, Q4_1)
EACH_ROWS(TILE_LEVELS, Q5_0)
EACH_ROWS(TILE_LEVELS, Q5_1)
EACH_ROWS(TILE_LEVELS, Q4_K)
EACH_ROWS(TILE_LEVELS, Q5_K)
EACH_ROWS(TILE_LEVELS, Q6_K)

static const tile_kernel tile_kernels[RL_FORMATS][sizeof kernel_rows / sizeof *kernel_rows] = {
    KERNELS(F32),  KERNELS(BF16), KERNELS(Q8_CHANNEL), KERNELS(Q8_0), KERNELS(Q4_0), KERNELS(Q4_1),
    KERNELS(Q5_0), KERNELS(Q5_1), KERNELS(Q4_K),       KERNELS(Q5_K), KERNELS(Q6_K),
};

/* sum[r] = a tile times rows `row` to `row + rows`, at most RL_ROWS_AT_ONCE of them. */
static void tile_rows(int format, const uint8_t *tile, const rl_input *in, int64_t row, int rows, vf *sum) {
    int size = KERNEL_SIZES - 1;
    for (int done = 0; done < rows; done += kernel_rows[size]) {
        while (kernel_rows[size] > rows - done) size--;
        tile_kernels[format][size](tile, in, row + done, sum + done);
    }
}

/* The `index`th of `count` even shares of `total` things. */
RL_INLINE int64_t share(int64_t total, int index, int count) { return total * index / count; }

#endif
