/* Many rows at once by the matrix unit: 32 output features x 32 rows in four of its registers.
 *
 * A bf16 tile is its second operand as it lies in memory. Other formats are widened to bf16 a pair of tiles
 * at a time, in a buffer of the thread's own that stays in its cache while all rows go over it.
 */
#ifndef ROOFLENS_AMX_H
#define ROOFLENS_AMX_H

#include "multiply.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define RL_HAS_AMX 1
#define AMX_ROWS 32
#define AMX_TILE_BYTES 1024 /* 32 input features of 16 output features */

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_a_row[16];
    uint8_t rows[16];
} amx_config;

RL_INLINE void amx_start(void) {
    amx_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes_a_row[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

RL_INLINE void amx_stop(void) { _tile_release(); }

/* Two neighbouring floats as a pair of bf16, rounded to nearest. */
RL_INLINE vu pair_of(vf low, vf high) {
    return (((vu)low + 0x8000) >> 16) | (((vu)high + 0x8000) & 0xffff0000u);
}

RL_INLINE void widen_as(const int format, const uint8_t *tile, int64_t padded, uint8_t *to) {
    const int64_t groups = padded / RL_GROUP;
    for (int64_t g = 0; g < groups; g++) {
        vf value[RL_GROUP];
        group_values(format, tile, groups, g, 0, value);
        for (int p = 0; p < RL_GROUP / 2; p++)
            *(vu *)(to + AMX_TILE_BYTES * g + 64 * p) = pair_of(value[2 * p], value[2 * p + 1]);
    }
}

static void widen(int format, const uint8_t *tile, int64_t padded, uint8_t *to) {
    switch (format) {
#define CASE(FORMAT) case RL_##FORMAT: widen_as(RL_##FORMAT, tile, padded, to); break;
    CASE(Q8_CHANNEL) CASE(Q8_0) CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)
#undef CASE
    default: break;
    }
}

/* Steps of 32 features that the input's blocks are asked for ahead: they come from the second cache. */
#define AMX_AHEAD 4

/* out = 32 rows of bf16 times two tiles of bf16, as four blocks [16][16]: rows 0 to 15 of both tiles, then
 * rows 16 to 31 where there are `two` blocks of rows. `x`: the blocks of 16 rows, one behind the other. */
RL_INLINE void amx_block(const uint16_t *x, int64_t padded, int two, const uint8_t *first,
                         const uint8_t *second, float *out) {
    const int64_t steps = padded / RL_GROUP;
    const uint8_t *upper = (const uint8_t *)x, *lower = upper + AMX_TILE_BYTES * steps;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(6, first + AMX_TILE_BYTES * s, 64);
        _tile_loadd(4, upper + AMX_TILE_BYTES * s, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, second + AMX_TILE_BYTES * s, 64);
        _tile_dpbf16ps(1, 4, 7);
        for (int line = 0; line < AMX_TILE_BYTES; line += 64)
            prefetch(first + AMX_TILE_BYTES * (s + AMX_AHEAD) + line);
        if (two) {
            _tile_loadd(5, lower + AMX_TILE_BYTES * s, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            for (int line = 0; line < AMX_TILE_BYTES; line += 64) {
                prefetch(upper + AMX_TILE_BYTES * (s + AMX_AHEAD) + line);
                prefetch(lower + AMX_TILE_BYTES * (s + AMX_AHEAD) + line);
            }
        } else {
            for (int line = 0; line < AMX_TILE_BYTES; line += 64)
                prefetch(second + AMX_TILE_BYTES * (s + AMX_AHEAD) + line);
        }
    }
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
    if (two) {
        _tile_stored(2, out + 512, 64);
        _tile_stored(3, out + 768, 64);
    }
}
#endif
#endif
