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
 * and inputs of eight bits cost more quality than weights do. Machines that multiply words have both in one, and
 * levels of 8 bits beside them where those of weights are few enough. `scales` and `sums`, of each half group,
 * are in the finest steps that the machine's single rows have. */
#define FINE_ROWS 4

typedef struct {
    const float *x;
    uint16_t *narrow;  /* bf16, or words */
    int8_t *levels, *fine;
    float *scales;     /* [rows][groups] */
    int32_t *sums;     /* [rows][2 groups] */
    int32_t *bases;    /* [rows][groups]: -128 times the whole group's sum, in the panels' steps */
    int64_t x_stride, padded;
} rl_input;

/* FINE: with a second level, or as words. BLOCKS: bf16 in blocks of 16 rows x 32 features, each in a row of
 * memory, as the matrix unit loads them. */
enum { NEEDS_FLOATS = 1, NEEDS_BF16 = 2, NEEDS_LEVELS = 4, NEEDS_FINE = 8, NEEDS_BLOCKS = 16 };
#define RL_BLOCK_ROWS 16

/* Whether panels multiply inputs of 8 bits with weights of a format. */
RL_INLINE int has_narrow_panels(int format) {
#ifdef RL_WORDS
    return level_bits(format) == 4;
#else
    (void)format;
    return 1;
#endif
}

RL_INLINE int needs_of(const rl_linear *linear, int64_t rows, int panels) {
    int needs = 0;
    for (int i = 0; i < linear->segments; i++) {
        const int format = linear->segment[i].format;
        if (format == RL_F32) needs |= NEEDS_FLOATS;
#ifdef RL_BF16_DOTS
        else if (format == RL_BF16) needs |= NEEDS_BF16;
#else
        else if (format == RL_BF16) needs |= NEEDS_FLOATS;
#endif
#ifdef RL_WORDS
        else needs |= panels && has_narrow_panels(format) ? NEEDS_LEVELS : NEEDS_FINE;
#else
        else needs |= rows <= FINE_ROWS ? NEEDS_FINE : NEEDS_LEVELS;
#endif
    }
    (void)rows;
    (void)panels;
    return needs;
}

#ifdef RL_WORDS
#define STEPS_A_LEVEL 256 /* of words, in one of a level of 8 bits */
#else
#define STEPS_A_LEVEL 1
#endif

/* One register of groups, from `first` on: what numbers are multiplied by to be levels, and the largest of each. */
RL_INLINE vf levels_a_number(const float *x, int64_t first, int count, float inverse[RL_LANES]) {
    vf top[RL_LANES];
    for (int i = 0; i < RL_LANES; i++) {
        const float *group = x + RL_GROUP * (first + i);
        top[i] = vf_set(0.0f);
        if (i < count)
            for (int k = 0; k < RL_GROUP; k += RL_LANES) top[i] = vf_max(top[i], vf_abs(vf_load(group + k)));
    }
    const vf tops = top_each(top);
    vf_store(inverse, vf_where((vi)(tops > vf_set(0.0f)), vf_set(127.0f) / tops, vf_set(0.0f)));
    return tops;
}

RL_INLINE vc_narrow bytes_of(vf whole) { return __builtin_convertvector(__builtin_convertvector(whole, vi), vc_narrow); }

/* A register's groups at a time, so that their sums and largest values are vectors' work. */
RL_INLINE void prepare_levels(const rl_input *in, const float *x, int64_t r, const int fine) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    const float steps = fine ? 127.0f * 256.0f : 127.0f * STEPS_A_LEVEL;
    for (int64_t first = 0; first < groups; first += RL_LANES) {
        const int count = groups - first < RL_LANES ? (int)(groups - first) : RL_LANES;
        vf half[2][RL_LANES];
        float inverse[RL_LANES], sum[2][RL_LANES];
        const vf tops = levels_a_number(x, first, count, inverse);
        float scale[RL_LANES];
        vf_store(scale, tops / vf_set(steps));
        for (int i = 0; i < RL_LANES; i++) half[0][i] = half[1][i] = vf_set(0.0f);
        for (int i = 0; i < count; i++)
            for (int k = 0; k < RL_GROUP; k += RL_LANES) {
                const int64_t at = RL_GROUP * (first + i) + k;
                const vf scaled = vf_load(x + at) * vf_set(inverse[i]), whole = vf_round(scaled);
                vf found = whole;
#ifdef RL_WORDS
                if (fine) {
                    found = vf_round(scaled * vf_set(STEPS_A_LEVEL));
                    words_store((int16_t *)in->narrow + r * padded + at, __builtin_convertvector(found, vi));
                } else {
                    *(vc_narrow *)(in->levels + r * padded + at) = bytes_of(whole);
                }
#else
                *(vc_narrow *)(in->levels + r * padded + at) = bytes_of(whole);
                if (fine) {
                    const vf rest = vf_min(vf_round((scaled - whole) * vf_set(256.0f)), vf_set(127.0f));
                    *(vc_narrow *)(in->fine + r * padded + at) = bytes_of(rest);
                    found = whole * vf_set(256.0f) + rest;
                }
#endif
                half[k / (RL_GROUP / 2)][i] += found;
            }
        /* Sums of whole numbers below 2^24 are exact in floats. */
        for (int h = 0; h < 2; h++) vf_store(sum[h], sum_each(half[h]));
        for (int i = 0; i < count; i++) {
            const int64_t g = r * groups + first + i;
            in->scales[g] = scale[i];
            if (fine || STEPS_A_LEVEL == 1)
                for (int h = 0; h < 2; h++) in->sums[2 * g + h] = (int32_t)sum[h][i];
            if (!fine) in->bases[g] = -128 * ((int32_t)sum[0][i] + (int32_t)sum[1][i]);
        }
    }
}

/* `x` as row `r` of the input, in the forms of `needs`. */
static void prepare_row(const rl_input *in, const float *x, int64_t r, int needs) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    if (needs & NEEDS_BF16)
        for (int64_t k = 0; k < padded; k += RL_LANES) bf16_store(in->narrow + r * padded + k, vf_load(x + k));
    if (needs & NEEDS_BLOCKS)
        for (int64_t g = 0; g < groups; g++) {
            uint16_t *to = in->narrow + ((r / RL_BLOCK_ROWS * groups + g) * RL_BLOCK_ROWS + r % RL_BLOCK_ROWS) * RL_GROUP;
            for (int k = 0; k < RL_GROUP; k += RL_LANES) bf16_store(to + k, vf_load(x + RL_GROUP * g + k));
        }
    if (needs & NEEDS_FINE) prepare_levels(in, x, r, 1);
    if (needs & NEEDS_LEVELS) prepare_levels(in, x, r, 0);
}

RL_INLINE vi dot_levels(const int format, vi acc, vb w, const int8_t *x) {
    return level_bits(format) < 8 ? dot_small(acc, w, x) : dot_quads(acc, w, x);
}

/* What a part's eight registers of levels and `rows` rows' inputs add up to, in the inputs' finest steps: of each
 * row the first half group, and the second one (with Q6_K; else the first has all). `x`: the place of the first
 * row's numbers; `own`: of each row the sums of both halves in those steps, `groups` pairs apart. */
RL_INLINE void group_sums(const int format, const int rows, const int fine, const vb w[8], const rl_input *in, int64_t x,
                          const int32_t *own, int64_t groups, vi first[RL_ROWS_AT_ONCE], vi second[RL_ROWS_AT_ONCE]) {
    const int halves = format == RL_Q6_K, offset = -level_offset(format);
#ifdef RL_WORDS
    (void)fine;
    for (int r = 0; r < rows; r++) {
        first[r] = vi_set(offset * (halves ? own[2 * r * groups] : own[2 * r * groups] + own[2 * r * groups + 1]));
        second[r] = vi_set(halves ? offset * own[2 * r * groups + 1] : 0);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const vi even = even_bytes(w[j]), odd = odd_bytes(w[j]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            /* One row alone has two chains of sums: more wait less for one another. */
            vi *to = (halves ? j >= 4 : rows == 1 && j % 2) ? &second[r] : &first[r];
            const int16_t *words = (const int16_t *)in->narrow + x + r * in->padded + 4 * j;
            *to = dot_words(dot_words(*to, even, words), odd, words + 2);
        }
    }
    if (!halves && rows == 1) first[0] += second[0];
#else
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const int8_t *quads = in->levels + x + r * in->padded;
        const int32_t *sums = own + 2 * r * groups;
        vi a = vi_set(fine ? 0 : offset * sums[0]), b = vi_set(fine ? 0 : offset * sums[1]);
        for (int j = 0; j < 4; j++) {
            a = dot_levels(format, a, w[j], quads + 4 * j);
            b = dot_levels(format, b, w[4 + j], quads + 16 + 4 * j);
        }
        if (fine) {
            const int8_t *rest = in->fine + x + r * in->padded;
            vi c = vi_set(offset * sums[0]), d = vi_set(offset * sums[1]);
            for (int j = 0; j < 4; j++) {
                c = dot_levels(format, c, w[j], rest + 4 * j);
                d = dot_levels(format, d, w[4 + j], rest + 16 + 4 * j);
            }
            if (halves) {
                a = (a << 8) + c;
                b = (b << 8) + d;
            } else {
                a = ((a + b) << 8) + c;
                b = d;
            }
        }
        first[r] = a;
        second[r] = b;
        if (!halves) first[r] += b;
    }
#endif
}

/* sum[16 r] on = a tile of quantised weights times rows `row` to `row + rows`. */
RL_INLINE void tile_levels(const int format, const int rows, const int fine, const uint8_t *tile, const rl_input *in,
                           int64_t row, float *sum) {
    const int64_t padded = in->padded, groups = padded / RL_GROUP;
    const uint8_t *levels = tile + scale_plane_bytes(format, groups);
    const float *scales = in->scales + row * groups;
    const int32_t *sums = in->sums + 2 * row * groups;
    vf total[RL_ROWS_AT_ONCE][RL_PARTS];
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < RL_PARTS; part++) total[r][part] = vf_set(0.0f);
    const int a_block = groups_a_block(format);
    /* The scales' part of the stream at once: what is asked for must have no gaps. */
    for (const uint8_t *line = tile; line < levels; line += 64) ask_ahead(line);
    for (int64_t block = 0; block < groups / a_block; block++) {
        for (int place = 0; place < a_block; place++) {
            const int64_t g = block * a_block + place;
            const uint8_t *here = levels + g * group_bytes(format);
            for (int line = 0; line < group_bytes(format); line += 64) ask_ahead(here + line);
#pragma GCC unroll 4
            for (int part = 0; part < RL_PARTS; part++) {
                vb w[8];
                vf factor = vf_set(0.0f), second = vf_set(0.0f);
                unpack_levels(format, here, part, w);
                group_scales(format, tile, block, place, part, &factor, &second);
                vi a[RL_ROWS_AT_ONCE], b[RL_ROWS_AT_ONCE];
                group_sums(format, rows, fine, w, in, row * padded + RL_GROUP * g, sums + 2 * g, groups, a, b);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    const int32_t *own = sums + 2 * (r * groups + g);
                    const float scale = scales[r * groups + g];
                    vf *to = &total[r][part];
                    if (format == RL_Q6_K)
                        *to += (vf_of_int(a[r]) * factor + vf_of_int(b[r]) * second) * vf_set(scale);
                    else
                        *to += vf_of_int(a[r]) * (factor * vf_set(scale));
                    if (has_minimum(format)) *to += second * vf_set(scale * (float)(own[0] + own[1]));
                }
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < RL_PARTS; part++) vf_store(sum + RL_TILE * r + RL_LANES * part, total[r][part]);
}

/* The sums of `chains` chains each to their places. */
RL_INLINE void put_sums(const int rows, const int chains, vf total[RL_ROWS_AT_ONCE][4][RL_PARTS], float *sum) {
    for (int r = 0; r < rows; r++)
        for (int part = 0; part < RL_PARTS; part++) {
            vf all = total[r][0][part];
            for (int c = 1; c < chains; c++) all += total[r][c][part];
            vf_store(sum + RL_TILE * r + RL_LANES * part, all);
        }
}

RL_INLINE void tile_bf16(const int rows, const uint8_t *tile, const rl_input *in, int64_t row, float *sum) {
    const int64_t padded = in->padded;
    const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    vf total[RL_ROWS_AT_ONCE][4][RL_PARTS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < chains; c++)
            for (int part = 0; part < RL_PARTS; part++) total[r][c][part] = vf_set(0.0f);
    for (int64_t p = 0; p < padded / 2; p += 4) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *here = tile + 64 * (p + c);
            ask_ahead(here);
#pragma GCC unroll 4
            for (int part = 0; part < RL_PARTS; part++) {
                const vu pair = *(const vu *)(here + RL_BYTES * part);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    vf *to = &total[r][c % chains][part];
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
    }
    put_sums(rows, chains, total, sum);
}

RL_INLINE void tile_f32(const int rows, const uint8_t *tile, const rl_input *in, int64_t row, float *sum) {
    const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
    vf total[RL_ROWS_AT_ONCE][4][RL_PARTS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < chains; c++)
            for (int part = 0; part < RL_PARTS; part++) total[r][c][part] = vf_set(0.0f);
    for (int64_t k = 0; k < in->padded; k += 4) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const uint8_t *here = tile + 64 * (k + c);
            ask_ahead(here);
#pragma GCC unroll 4
            for (int part = 0; part < RL_PARTS; part++) {
                const vf w = vf_load((const float *)here + RL_LANES * part);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    total[r][c % chains][part] += w * vf_set(in->x[(row + r) * in->x_stride + k + c]);
            }
        }
    }
    put_sums(rows, chains, total, sum);
}

typedef void (*tile_kernel)(const uint8_t *, const rl_input *, int64_t, float *);

#define TILE_LEVELS(FORMAT, ROWS)                                                                       \
    static void FORMAT##_##ROWS(const uint8_t *tile, const rl_input *in, int64_t row, float *sum) {        \
        if (in->fine) tile_levels(RL_##FORMAT, ROWS, 1, tile, in, row, sum);                            \
        else tile_levels(RL_##FORMAT, ROWS, 0, tile, in, row, sum);                                     \
    }
#define TILE_FLOATS(FORMAT, KERNEL, ROWS)                                                               \
    static void FORMAT##_##ROWS(const uint8_t *tile, const rl_input *in, int64_t row, float *sum) {        \
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

/* sum[16 r] on = a tile times rows `row` to `row + rows`, at most RL_ROWS_AT_ONCE of them. */
static void tile_rows(int format, const uint8_t *tile, const rl_input *in, int64_t row, int rows, float *sum) {
    int size = KERNEL_SIZES - 1;
    for (int done = 0; done < rows; done += kernel_rows[size]) {
        while (kernel_rows[size] > rows - done) size--;
        tile_kernels[format][size](tile, in, row + done, sum + RL_TILE * done);
    }
}

/* The `index`th of `count` even shares of `total` things. */
RL_INLINE int64_t share(int64_t total, int index, int count) { return total * index / count; }

#endif
