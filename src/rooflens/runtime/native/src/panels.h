/* Many rows at once by the dot instructions: blocks of rows times panels of two tiles.
 *
 * A thread takes one panel after another and goes over all rows with it, so that memory is read once for
 * all of them; meanwhile it asks for its next panel. A block's sums stay in registers over all input
 * features. Levels of 5 and 6 bits are brought to 8 with 128 added, scales to floats, in a buffer of the
 * thread's own; levels of 8 bits are read where they are, and tiles of 4 bits whole.
 */
#ifndef ROOFLENS_PANELS_H
#define ROOFLENS_PANELS_H

#include <stdatomic.h>

#include "multiply.h"

#define PANEL_TILES 2
#define PANEL_FEATURES (PANEL_TILES * RL_TILE)

/* Registers of results that a row has in one pass: both tiles', or one tile's where it takes several. */
#define PASS_TILES (RL_PARTS == 1 ? PANEL_TILES : 1)
#define COLUMNS (PASS_TILES * RL_PARTS)

/* Rows of a block: 24 sums in 32 registers. In 8 bits half as many rows, since each group of 32 features has a
 * scale of its own, so that sums in whole numbers are added to others in floats; eight spill some. With 16
 * registers 12 sums. */
#ifdef __AVX512F__
#define BLOCK_ROWS 12
#define LEVEL_ROWS 8
#define EACH_BLOCK(MAKE, ...) \
    MAKE(__VA_ARGS__, 1) MAKE(__VA_ARGS__, 2) MAKE(__VA_ARGS__, 4) MAKE(__VA_ARGS__, 8) MAKE(__VA_ARGS__, 12)
#define EACH_LEVEL_BLOCK(MAKE, ...) MAKE(__VA_ARGS__, 1) MAKE(__VA_ARGS__, 2) MAKE(__VA_ARGS__, 4) MAKE(__VA_ARGS__, 6) MAKE(__VA_ARGS__, 8)
static const int block_rows[] = {1, 2, 4, 8, 12}, level_rows[] = {1, 2, 4, 6, 8};
#else
#define BLOCK_ROWS 6
#define LEVEL_ROWS 6
#define EACH_BLOCK(MAKE, ...) MAKE(__VA_ARGS__, 1) MAKE(__VA_ARGS__, 2) MAKE(__VA_ARGS__, 4) MAKE(__VA_ARGS__, 6)
#define EACH_LEVEL_BLOCK EACH_BLOCK
static const int block_rows[] = {1, 2, 4, 6}, level_rows[] = {1, 2, 4, 6};
#endif
#define BLOCK_SIZES (int)(sizeof block_rows / sizeof *block_rows)
#define LEVEL_SIZES (int)(sizeof level_rows / sizeof *level_rows)

/* What is asked for meanwhile: `lines` of 64 bytes of each tile with every four steps (or every group). */
typedef struct {
    const uint8_t *tile[PANEL_TILES];
    int64_t lines;
} rl_ahead;

RL_INLINE void ask(const rl_ahead *ahead, const int first, int64_t turn) {
    for (int64_t i = ahead->lines * turn; i < ahead->lines * (turn + 1); i++)
        for (int n = first; n < first + PASS_TILES; n++) __builtin_prefetch(ahead->tile[n] + 64 * i, 0, 2);
}

/* Where column `c` of a pass's registers is in a vector of 64 bytes of its tile, tiles `tile_bytes` apart. */
RL_INLINE int64_t column_place(int c, int64_t tile_bytes) { return c / RL_PARTS * tile_bytes + c % RL_PARTS * RL_BYTES; }

/* What a vector of a tile holds for each row, and of which type inputs are. */
enum {
    PLAIN_F32,     /* a float; floats */
    PLAIN_PAIRS,   /* two of bf16; two of bf16 */
    PLAIN_WIDENED, /* two of bf16; floats */
    PLAIN_KINDS
};
#ifdef RL_BF16_DOTS
#define PLAIN_OF_BF16 PLAIN_PAIRS
#else
#define PLAIN_OF_BF16 PLAIN_WIDENED
#endif

/* Three rows are reached from one pointer (at 0, 1 and 2 strides, as addresses have it). HIDE keeps compilers
 * from making a pointer for each row: there are not enough registers for them. */
#define ROWS_A_POINTER 3
#if defined(__GNUC__)
#define HIDE(value) __asm__("" : "+r"(value))
#else
#define HIDE(value) (void)(value)
#endif

/* to[r][32] (+)= rows of x times the tiles of one pass, `steps` vectors, a multiple of four. */
RL_INLINE void plain_pass(const int kind, const int rows, const void *x, int64_t x_stride, const uint8_t *w,
                          int64_t tile_bytes, int64_t steps, float *to, int64_t to_stride, int add,
                          const rl_ahead *ahead, const int first) {
    const int words = kind == PLAIN_WIDENED ? 2 : 1; /* of 32 bits of a row's input, in a step */
    vf sum[BLOCK_ROWS][COLUMNS];
    const float *line[BLOCK_ROWS / ROWS_A_POINTER + 1];
    for (int r = 0; r < rows; r += ROWS_A_POINTER) line[r / ROWS_A_POINTER] = (const float *)x + r * x_stride;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++)
            sum[r][c] = add ? vf_load(to + r * to_stride + RL_LANES * c) : vf_set(0.0f);
    for (int64_t k = 0; k < steps; k += 4) {
        ask(ahead, first, k / 4);
        for (int r = 0; r < rows; r += ROWS_A_POINTER) HIDE(line[r / ROWS_A_POINTER]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            vf weights[COLUMNS];
            HIDE(x_stride);
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) weights[c] = *(const vf *)(w + column_place(c, tile_bytes) + 64 * (k + i));
#pragma GCC unroll 2
            for (int word = 0; word < words; word++) {
                vf factor[COLUMNS];
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++)
                    factor[c] = words == 1 ? weights[c] : word ? (vf)((vu)weights[c] & 0xffff0000u) : (vf)((vu)weights[c] << 16);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    const float *input = line[r / ROWS_A_POINTER] + r % ROWS_A_POINTER * x_stride + words * i + word;
#ifdef RL_BF16_DOTS
                    if (kind == PLAIN_PAIRS) {
#pragma GCC unroll 4
                        for (int c = 0; c < COLUMNS; c++) sum[r][c] = dot_pairs(sum[r][c], (vu)factor[c], (const uint16_t *)input);
                        continue;
                    }
#endif
#pragma GCC unroll 4
                    for (int c = 0; c < COLUMNS; c++) sum[r][c] += factor[c] * vf_set(*input);
                }
            }
        }
        for (int r = 0; r < rows; r += ROWS_A_POINTER) line[r / ROWS_A_POINTER] += 4 * words;
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) vf_store(to + r * to_stride + RL_LANES * c, sum[r][c]);
}

/* to[r][32] (+)= rows of x times two tiles; `x_stride` in words of 32 bits. */
RL_INLINE void plain_block(const int kind, const int rows, const void *x, int64_t x_stride, const uint8_t *w,
                           int64_t tile_bytes, int64_t steps, float *to, int64_t to_stride, int add,
                           const rl_ahead *ahead) {
#pragma GCC unroll 2
    for (int n = 0; n < PANEL_TILES; n += PASS_TILES)
        plain_pass(kind, rows, x, x_stride, w + n * tile_bytes, tile_bytes, steps, to + RL_TILE * n, to_stride, add, ahead, n);
}

typedef void (*plain_kernel)(const void *, int64_t, const uint8_t *, int64_t, int64_t, float *, int64_t, int,
                             const rl_ahead *);
#define PLAIN_BLOCK(KIND, ROWS)                                                                           \
    static void KIND##_##ROWS(const void *x, int64_t x_stride, const uint8_t *w, int64_t tile_bytes,      \
                              int64_t steps, float *to, int64_t to_stride, int add, const rl_ahead *ahead) { \
        plain_block(KIND, ROWS, x, x_stride, w, tile_bytes, steps, to, to_stride, add, ahead);            \
    }
#define BLOCK_NAME(PREFIX, ROWS) PREFIX##_##ROWS,
EACH_BLOCK(PLAIN_BLOCK, PLAIN_F32)
#ifdef RL_BF16_DOTS
EACH_BLOCK(PLAIN_BLOCK, PLAIN_PAIRS)
#else
EACH_BLOCK(PLAIN_BLOCK, PLAIN_WIDENED)
#endif
static const plain_kernel plain_kernels[PLAIN_KINDS][BLOCK_SIZES] = {
    [PLAIN_F32] = {EACH_BLOCK(BLOCK_NAME, PLAIN_F32)},
#ifdef RL_BF16_DOTS
    [PLAIN_PAIRS] = {EACH_BLOCK(BLOCK_NAME, PLAIN_PAIRS)},
#else
    [PLAIN_WIDENED] = {EACH_BLOCK(BLOCK_NAME, PLAIN_WIDENED)},
#endif
};

/* The number of the largest of `sizes` sizes that `left` rows fill. */
RL_INLINE int block_of(int64_t left, const int *size, int sizes) {
    while (size[sizes - 1] > left) sizes--;
    return sizes - 1;
}

/* The same for levels: eight rows as the last ones, else six, whose sums all stay in registers. */
RL_INLINE int level_block_of(int64_t left) {
    const int size = block_of(left, level_rows, LEVEL_SIZES);
    return level_rows[size] == 8 && left != 8 ? size - 1 : size;
}

/* As plain_block, for any number of rows. */
static void plain_rows(int kind, const void *x, int64_t x_stride, int64_t rows, const uint8_t *w, int64_t tile_bytes,
                       int64_t steps, float *to, int64_t to_stride, int add) {
    const rl_ahead nothing = {{w, w}, 0};
    for (int64_t row = 0; row < rows;) {
        const int size = block_of(rows - row, block_rows, BLOCK_SIZES);
        plain_kernels[kind][size]((const float *)x + row * x_stride, x_stride, w, tile_bytes, steps,
                                  to + row * to_stride, to_stride, add, &nothing);
        row += block_rows[size];
    }
}

/* Two tiles as the multiplies read them: levels of 8 bits with 128 added, and for each group 16 factors; the
 * second ones are minima, or the factors of groups' second halves. */
typedef struct {
    const uint8_t *tile[PANEL_TILES];
    const float *factor[PANEL_TILES], *second[PANEL_TILES];
    const uint8_t *scales[PANEL_TILES]; /* of tiles that are read as they are stored */
} rl_panel;

RL_INLINE int is_widened(int format) { return level_bits(format) == 5 || level_bits(format) == 6; }

enum { SCALE_ONLY, SCALE_AND_MINIMUM, SCALE_OF_HALVES };

RL_INLINE int scales_of(int format) {
    return format == RL_Q6_K ? SCALE_OF_HALVES : has_minimum(format) ? SCALE_AND_MINIMUM : SCALE_ONLY;
}

/* Column `c` of vector `j` of a group's eight; `packed`: those of 4 bits come in pairs from one. */
RL_INLINE vb level_vector(const int packed, const uint8_t *tile, int64_t g, int j, int c) {
    const int64_t place = column_place(c, 0);
    if (!packed) return *(const vb *)(tile + 512 * g + 64 * j + place);
    vb both = *(const vb *)(tile + 256 * g + 64 * (j / 2) + place);
    if (j % 2) both >>= 4;
    else both &= 15;
    return both;
}

/* to[r][32] = rows `row` and on of the input's levels times the tiles of one pass. `packed`: a format of 4 bits,
 * whose tiles are read as they are stored, which is faster for any number of rows (measured); else 0. */
RL_INLINE void level_pass(const int scaling, const int packed, const int rows, const rl_input *in, int64_t row,
                          const rl_panel *panel, float *to, const rl_ahead *ahead, const int from) {
    int64_t padded = in->padded, groups = padded / RL_GROUP;
    const int64_t count = groups;
    const int parts = scaling == SCALE_OF_HALVES ? 2 : 1;
    const int words = STEPS_A_LEVEL > 1 && !packed, size = words ? 2 : 1; /* inputs of 16 bits, and their bytes */
    const int8_t *const inputs = words ? (const int8_t *)in->narrow : in->levels;
    const int8_t *line[LEVEL_ROWS / ROWS_A_POINTER + 1];
    const float *scales[LEVEL_ROWS / ROWS_A_POINTER + 1];
    const int32_t *bases[LEVEL_ROWS / ROWS_A_POINTER + 1];
    for (int r = 0; r < rows; r += ROWS_A_POINTER) {
        line[r / ROWS_A_POINTER] = inputs + (row + r) * padded * size;
        scales[r / ROWS_A_POINTER] = in->scales + (row + r) * groups;
        bases[r / ROWS_A_POINTER] = words ? in->sums + 2 * (row + r) * groups : in->bases + (row + r) * groups;
    }
    vf total[LEVEL_ROWS][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) total[r][c] = vf_set(0.0f);
    for (int64_t g = 0; g < count; g++) {
        ask(ahead, from, g);
        for (int r = 0; r < rows; r += ROWS_A_POINTER) {
            HIDE(line[r / ROWS_A_POINTER]);
            HIDE(scales[r / ROWS_A_POINTER]);
            HIDE(bases[r / ROWS_A_POINTER]);
        }
        for (int part = 0; part < parts; part++) {
            vi sum[LEVEL_ROWS][COLUMNS];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vi first = vi_set(0);
                if (words) {
                    const int32_t *own = bases[r / ROWS_A_POINTER] + r % ROWS_A_POINTER * 2 * groups;
                    first = vi_set(-128 * (parts == 2 ? own[part] : own[0] + own[1]));
                } else if (STEPS_A_LEVEL == 1) {
                    /* -128 times the inputs' sum; of levels without an addend none, or the format's own. */
                    int32_t start = bases[r / ROWS_A_POINTER][r % ROWS_A_POINTER * groups];
                    if (packed) start = start / 128 * level_offset(packed);
                    const int32_t half = parts == 1 ? 0 : -128 * in->sums[2 * ((row + r) * count + g)];
                    first = vi_set(parts == 1 ? start : part ? start - half : half);
                }
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = first;
            }
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                if (parts == 2 && j / 4 != part) continue;
                HIDE(padded);
#ifdef RL_WORDS
                if (words) {
#pragma GCC unroll 2
                    for (int odd = 0; odd < 2; odd++) {
                        vi weights[COLUMNS];
#pragma GCC unroll 4
                        for (int c = 0; c < COLUMNS; c++) {
                            const vb all = level_vector(0, panel->tile[from + c / RL_PARTS], g, j, c);
                            weights[c] = odd ? odd_bytes(all) : even_bytes(all);
                        }
#pragma GCC unroll 8
                        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                            for (int c = 0; c < COLUMNS; c++)
                                sum[r][c] = dot_words(sum[r][c], weights[c], (const int16_t *)(line[r / ROWS_A_POINTER] +
                                                      r % ROWS_A_POINTER * 2 * padded + 8 * j + 4 * odd));
                    }
                    continue;
                }
#endif
                vb weights[COLUMNS];
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++) weights[c] = level_vector(packed, panel->tile[from + c / RL_PARTS], g, j, c);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                    for (int c = 0; c < COLUMNS; c++) {
                        const int8_t *quad = line[r / ROWS_A_POINTER] + r % ROWS_A_POINTER * padded + 4 * j;
#ifdef RL_WORDS
                        sum[r][c] = dot_tiny(sum[r][c], weights[c], quad);
#else
                        sum[r][c] = dot_quads(sum[r][c], weights[c], quad);
#endif
                    }
            }
            HIDE(groups);
            vf factor[COLUMNS], minimum[COLUMNS];
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) {
                const int n = from + c / RL_PARTS, lanes = c % RL_PARTS * RL_LANES;
                if (packed) {
                    const int a_block = groups_a_block(packed);
                    group_scales(packed, panel->scales[n], g / a_block, (int)(g % a_block), c % RL_PARTS, &factor[c], &minimum[c]);
                } else {
                    factor[c] = vf_load((part ? panel->second : panel->factor)[n] + RL_TILE * g + lanes);
                    if (scaling == SCALE_AND_MINIMUM) minimum[c] = vf_load(panel->second[n] + RL_TILE * g + lanes);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf scale = vf_set(scales[r / ROWS_A_POINTER][r % ROWS_A_POINTER * groups]);
                if (STEPS_A_LEVEL > 1 && !words) scale *= vf_set(STEPS_A_LEVEL);
                const int32_t *base = bases[r / ROWS_A_POINTER] + r % ROWS_A_POINTER * (words ? 2 : 1) * groups;
#ifdef RL_WORDS
                if (packed) {
                    const vi start = vi_set(*base / 128 * level_offset(packed));
#pragma GCC unroll 4
                    for (int c = 0; c < COLUMNS; c++) sum[r][c] = sum_tiny(sum[r][c]) + start;
                }
#endif
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++) total[r][c] += vf_of_int(sum[r][c]) * (factor[c] * scale);
                if (scaling == SCALE_AND_MINIMUM) {
                    const vf inputs_sum = words ? scale * vf_of_int(vi_set(base[0] + base[1]))
                                                : scale * vf_of_int(vi_set(*base)) * vf_set(-1.0f / 128.0f);
#pragma GCC unroll 4
                    for (int c = 0; c < COLUMNS; c++) total[r][c] += minimum[c] * inputs_sum;
                }
            }
        }
        for (int r = 0; r < rows; r += ROWS_A_POINTER) {
            line[r / ROWS_A_POINTER] += size * RL_GROUP;
            scales[r / ROWS_A_POINTER]++;
            bases[r / ROWS_A_POINTER] += words ? 2 : 1;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < COLUMNS; c++) vf_store(to + r * PANEL_FEATURES + RL_LANES * c, total[r][c]);
}

RL_INLINE void level_block(const int scaling, const int packed, const int rows, const rl_input *in, int64_t row,
                           const rl_panel *panel, float *to, const rl_ahead *ahead) {
#pragma GCC unroll 2
    for (int n = 0; n < PANEL_TILES; n += PASS_TILES)
        level_pass(scaling, packed, rows, in, row, panel, to + RL_TILE * n, ahead, n);
}

typedef void (*level_kernel)(const rl_input *, int64_t, const rl_panel *, float *, const rl_ahead *);
#define LEVEL_BLOCK(SCALING, ROWS)                                                                             \
    static void SCALING##_##ROWS(const rl_input *in, int64_t row, const rl_panel *panel, float *to,            \
                                 const rl_ahead *ahead) {                                                      \
        level_block(SCALING, 0, ROWS, in, row, panel, to, ahead);                                              \
    }
EACH_LEVEL_BLOCK(LEVEL_BLOCK, SCALE_ONLY)
EACH_LEVEL_BLOCK(LEVEL_BLOCK, SCALE_AND_MINIMUM)
EACH_LEVEL_BLOCK(LEVEL_BLOCK, SCALE_OF_HALVES)
#define PACKED_BLOCK(FORMAT, ROWS)                                                                             \
    static void FORMAT##_AS_STORED_##ROWS(const rl_input *in, int64_t row, const rl_panel *panel, float *to,   \
                                          const rl_ahead *ahead) {                                             \
        level_block(scales_of(RL_##FORMAT), RL_##FORMAT, ROWS, in, row, panel, to, ahead);                     \
    }
EACH_LEVEL_BLOCK(PACKED_BLOCK, Q4_0)
EACH_LEVEL_BLOCK(PACKED_BLOCK, Q4_1)
EACH_LEVEL_BLOCK(PACKED_BLOCK, Q4_K)
#define BLOCKS(PREFIX) {EACH_LEVEL_BLOCK(BLOCK_NAME, PREFIX)}
static const level_kernel level_kernels[RL_FORMATS][LEVEL_SIZES] = {
    [RL_Q8_CHANNEL] = BLOCKS(SCALE_ONLY),
    [RL_Q8_0] = BLOCKS(SCALE_ONLY),
    [RL_Q5_0] = BLOCKS(SCALE_ONLY),
    [RL_Q5_1] = BLOCKS(SCALE_AND_MINIMUM),
    [RL_Q5_K] = BLOCKS(SCALE_AND_MINIMUM),
    [RL_Q6_K] = BLOCKS(SCALE_OF_HALVES),
    [RL_Q4_0] = BLOCKS(Q4_0_AS_STORED),
    [RL_Q4_1] = BLOCKS(Q4_1_AS_STORED),
    [RL_Q4_K] = BLOCKS(Q4_K_AS_STORED),
};

RL_INLINE void widen_levels(const int format, const uint8_t *tile, int64_t groups, uint8_t *to) {
    const uint8_t *levels = tile + scale_plane_bytes(format, groups);
    for (int64_t g = 0; g < groups; g++)
        for (int part = 0; part < RL_PARTS; part++) {
            vb w[8];
            unpack_levels(format, levels + g * group_bytes(format), part, w);
            for (int j = 0; j < 8; j++)
                *(vb *)(to + 512 * g + 64 * j + RL_BYTES * part) = w[j] + (uint8_t)(128 - level_offset(format));
        }
}

RL_INLINE void widen_scales(const int format, const uint8_t *tile, int64_t groups, float *factor, float *second) {
    const int a_block = groups_a_block(format);
    for (int64_t g = 0; g < groups; g++)
        for (int part = 0; part < RL_PARTS; part++) {
            vf a = vf_set(0.0f), b = vf_set(0.0f);
            group_scales(format, tile, g / a_block, (int)(g % a_block), part, &a, &b);
            vf_store(factor + RL_TILE * g + RL_LANES * part, a);
            vf_store(second + RL_TILE * g + RL_LANES * part, b);
        }
}

/* Bytes of a panel in the thread's buffer. */
RL_INLINE int64_t panel_bytes(int64_t padded) { return PANEL_TILES * (RL_TILE * padded + 2 * 64 * (padded / RL_GROUP)); }

/* The panel of the tiles at `data` (the first one twice where there is no second), in `wide` where need be. */
static void open_panel(int format, const uint8_t *const data[PANEL_TILES], int64_t padded, uint8_t *wide, rl_panel *panel) {
    const int64_t groups = padded / RL_GROUP, levels = RL_TILE * padded, scales = 64 * groups;
    for (int n = 0; n < PANEL_TILES; n++) {
        uint8_t *own = wide + n * (levels + 2 * scales);
        float *factor = (float *)own, *second = (float *)(own + scales);
        panel->factor[n] = factor;
        panel->second[n] = second;
        panel->scales[n] = data[n];
        panel->tile[n] = is_widened(format) ? own + 2 * scales : data[n] + scale_plane_bytes(format, groups);
        switch (format) {
#define CASE(FORMAT)                                                                                    \
    case RL_##FORMAT:                                                                                   \
        widen_scales(RL_##FORMAT, data[n], groups, factor, second);                                     \
        if (is_widened(RL_##FORMAT)) widen_levels(RL_##FORMAT, data[n], groups, own + 2 * scales);      \
        break;
        CASE(Q8_CHANNEL) CASE(Q8_0) CASE(Q5_0) CASE(Q5_1) CASE(Q5_K) CASE(Q6_K)
#undef CASE
        default: break;
        }
    }
}

#endif
