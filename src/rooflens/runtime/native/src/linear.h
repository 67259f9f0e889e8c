/* One linear for some rows, by the threads of a team. */
#ifndef ROOFLENS_LINEAR_H
#define ROOFLENS_LINEAR_H

#include "amx.h"

/* Rows from which the matrix unit is faster than the dot instructions: measured, see docs/runtime.md. */
#define AMX_ROWS_BF16 4
#define AMX_ROWS_LEVELS 24

/* Where results go: y = cap(scale (sum + bias)) + residual, as floats or bf16. */
typedef struct {
    void *y;
    const float *residual;
    int64_t y_stride, residual_stride;
    float scale, cap;
    int type;
} rl_output;

RL_INLINE int uses_amx(const rl_linear *linear, int64_t rows) {
#ifdef RL_HAS_AMX
    for (int i = 0; i < linear->segments; i++) {
        const int format = linear->segment[i].format;
        if (format == RL_F32) return 0;
        if (rows < (format == RL_BF16 ? AMX_ROWS_BF16 : AMX_ROWS_LEVELS)) return 0;
    }
    return 1;
#else
    (void)linear;
    (void)rows;
    return 0;
#endif
}

/* Sixteen results of one row, of which `count` are real, to output feature `column` on. */
RL_INLINE void emit(const rl_linear *linear, const rl_output *out, int64_t row, int64_t column, int count,
                    vf sum) {
    float lanes[RL_TILE];
    const int whole = count == RL_TILE;
    if (linear->bias) {
        if (whole) {
            sum += vf_load(linear->bias + column);
        } else {
            vf_store(lanes, sum);
            for (int i = 0; i < count; i++) lanes[i] += linear->bias[column + i];
            sum = vf_load(lanes);
        }
    }
    if (out->scale != 1.0f) sum *= vf_set(out->scale);
    if (out->cap != 0.0f) sum = vf_set(out->cap) * vf_tanh(sum / vf_set(out->cap));
    if (out->type == RL_X_F32) {
        float *y = (float *)out->y + row * out->y_stride + column;
        const float *residual = out->residual ? out->residual + row * out->residual_stride + column : 0;
        if (whole) {
            if (residual) sum += vf_load(residual);
            vf_store(y, sum);
        } else {
            vf_store(lanes, sum);
            for (int i = 0; i < count; i++) y[i] = residual ? lanes[i] + residual[i] : lanes[i];
        }
    } else {
        uint16_t narrow[RL_TILE];
        bf16_store(narrow, sum);
        memcpy((uint16_t *)out->y + row * out->y_stride + column, narrow, 2 * (size_t)count);
    }
}

RL_INLINE int tile_count(const rl_segment *segment, int64_t tile) {
    const int64_t left = segment->rows - tile * RL_TILE;
    return left < RL_TILE ? (int)left : RL_TILE;
}

static void multiply_by_dots(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                             int place, int team) {
    for (int s = 0; s < linear->segments; s++) {
        const rl_segment *segment = &linear->segment[s];
        const int64_t last = share(segment->tiles, place + 1, team);
        for (int64_t tile = share(segment->tiles, place, team); tile < last; tile++) {
            const uint8_t *data = segment->data + tile * segment->tile_bytes;
            const int count = tile_count(segment, tile);
            for (int64_t row = 0; row < rows; row += RL_ROWS_AT_ONCE) {
                vf sum[RL_ROWS_AT_ONCE];
                const int some = rows - row < RL_ROWS_AT_ONCE ? (int)(rows - row) : RL_ROWS_AT_ONCE;
                tile_rows(segment->format, data, in, row, some, sum);
                for (int r = 0; r < some; r++)
                    emit(linear, out, row + r, segment->first + RL_TILE * tile, count, sum[r]);
            }
        }
    }
}

#ifdef RL_HAS_AMX
/* `wide`: two tiles of bf16. Rows of the input up to the next multiple of 32 are read, whatever they hold. */
static void multiply_by_amx(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                            int place, int team, uint8_t *wide) {
    _Alignas(64) float block[4 * RL_TILE * RL_TILE];
    const int64_t tile_wide = AMX_TILE_BYTES / RL_GROUP * in->padded;
    amx_start();
    for (int s = 0; s < linear->segments; s++) {
        const rl_segment *segment = &linear->segment[s];
        const int64_t last = share(segment->tiles, place + 1, team);
        for (int64_t tile = share(segment->tiles, place, team); tile < last; tile += 2) {
            const uint8_t *first = segment->data + tile * segment->tile_bytes;
            const uint8_t *second = tile + 1 < last ? first + segment->tile_bytes : first;
            if (segment->format != RL_BF16) {
                widen(segment->format, first, in->padded, wide);
                if (second != first) widen(segment->format, second, in->padded, wide + tile_wide);
                second = second != first ? wide + tile_wide : wide;
                first = wide;
            }
            for (int64_t row = 0; row < rows; row += AMX_ROWS) {
                const int64_t some = rows - row < AMX_ROWS ? rows - row : AMX_ROWS;
                amx_block(in->narrow + row * in->padded, in->padded, some > 16, first, second, block);
                for (int two = 0; two < 2 && tile + two < last; two++)
                    for (int64_t r = 0; r < some; r++)
                        emit(linear, out, row + r, segment->first + RL_TILE * (tile + two),
                             tile_count(segment, tile + two),
                             vf_load(block + 512 * (r / 16) + 256 * two + 16 * (r % 16)));
            }
        }
    }
    amx_stop();
}
#endif

RL_INLINE void multiply(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                        int place, int team, uint8_t *wide) {
#ifdef RL_HAS_AMX
    if (uses_amx(linear, rows)) {
        multiply_by_amx(linear, in, rows, out, place, team, wide);
        return;
    }
#endif
    (void)wide;
    multiply_by_dots(linear, in, rows, out, place, team);
}

RL_INLINE int input_needs(const rl_linear *linear, int64_t rows) {
    return uses_amx(linear, rows) ? NEEDS_BLOCKS : needs_of(linear);
}

#endif
