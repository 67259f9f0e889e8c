/* One linear for some rows, by the threads of a team. */
#ifndef ROOFLENS_LINEAR_H
#define ROOFLENS_LINEAR_H

#include "amx.h"
#include "panels.h"

/* Rows from which the matrix unit is faster than the dot instructions: measured, see docs/runtime.md. */
#define AMX_ROWS_BF16 4
#define AMX_ROWS_LEVELS 24

/* Where results go: y = cap(scale (sum + bias)) + residual, as floats or bf16. `gated` not 0: so many results
 * y = activation(gate) up instead, of which the linear has the gates first. */
typedef struct {
    void *y;
    const float *residual;
    int64_t y_stride, residual_stride;
    float scale, cap;
    int type;
    int64_t gated;
    int activation;
} rl_output;

RL_INLINE vf activated(int activation, vf x) {
    switch (activation) {
    case RL_ACT_SILU: return x * vf_inverse(vf_set(1.0f) + vf_exp(-x));
    case RL_ACT_GELU_TANH: {
        const vf inner = vf_set(0.7978845608028654f) * (x + vf_set(0.044715f) * x * x * x);
        return vf_set(0.5f) * x * (vf_set(1.0f) + vf_tanh(inner));
    }
    case RL_ACT_GELU: {
        float lanes[RL_LANES];
        vf_store(lanes, x);
        for (int i = 0; i < RL_LANES; i++) lanes[i] = 0.5f * lanes[i] * (1.0f + erff(lanes[i] * 0.70710678f));
        return vf_load(lanes);
    }
    case RL_ACT_RELU2: {
        const vf positive = vf_max(x, vf_set(0.0f));
        return positive * positive;
    }
    default: return vf_max(x, vf_set(0.0f));
    }
}

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

/* Rows from which panels of two tiles are faster than single tiles: measured, see docs/runtime.md. Those that take
 * inputs of 8 bits have to wait until nobody asks for finer ones. */
#if defined(__AVX512F__)
#define PANEL_ROWS_PLAIN 9
#else
#define PANEL_ROWS_PLAIN 2
#endif

RL_INLINE int panel_rows(int format) {
    if (format == RL_F32 || format == RL_BF16) return PANEL_ROWS_PLAIN;
    return has_narrow_panels(format) ? FINE_ROWS + 1 : 2;
}

RL_INLINE int uses_panels(const rl_linear *linear, int64_t rows) {
    if (uses_amx(linear, rows)) return 0;
    for (int i = 0; i < linear->segments; i++)
        if (rows < panel_rows(linear->segment[i].format)) return 0;
    return 1;
}

/* A register of results, of which `count` are real (RL_LANES or more: all), to output feature `column` on. */
RL_INLINE void emit_part(const rl_linear *linear, const rl_output *out, int64_t row, int64_t column, int count, vf sum) {
    float lanes[RL_LANES];
    const int whole = count >= RL_LANES;
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
        uint16_t narrow[RL_LANES];
        bf16_store(narrow, sum);
        memcpy((uint16_t *)out->y + row * out->y_stride + column, narrow, 2 * (size_t)(whole ? RL_LANES : count));
    }
}

/* Sixteen results of one row, of which `count` are real. */
RL_INLINE void emit(const rl_linear *linear, const rl_output *out, int64_t row, int64_t column, int count,
                    const float *sum) {
    for (int k = 0; k < count; k += RL_LANES) emit_part(linear, out, row, column + k, count - k, vf_load(sum + k));
}

RL_INLINE int tile_count(const rl_segment *segment, int64_t tile) {
    const int64_t left = segment->rows - tile * RL_TILE;
    return left < RL_TILE ? (int)left : RL_TILE;
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
                             block + 512 * (r / 16) + 256 * two + 16 * (r % 16));
            }
        }
    }
    amx_stop();
}
#endif

/* Blocks of rows during which a thread asks for its next panel. */
#define AHEAD_BLOCKS 4

/* Two tiles of a segment that are taken together: neighbours, or those of a gate and what it gates. The
 * second is -1 where there is none. */
typedef struct {
    const rl_segment *segment;
    int64_t tile[PANEL_TILES];
} tile_pair;

/* Pair number `index` of all segments', or one without a segment behind the last. */
RL_INLINE tile_pair find_pair(const rl_linear *linear, const rl_output *out, int64_t index) {
    const rl_segment *segment = linear->segment;
    if (out->gated) {
        const int64_t gates = out->gated / RL_TILE;
        return (tile_pair){index < gates ? segment : 0, {index, index + gates}};
    }
    for (; segment < linear->segment + linear->segments; segment++) {
        const int64_t pairs = (segment->tiles + 1) / PANEL_TILES, tile = index * PANEL_TILES;
        if (index < pairs) return (tile_pair){segment, {tile, tile + 1 < segment->tiles ? tile + 1 : -1}};
        index -= pairs;
    }
    return (tile_pair){0, {0, 0}};
}

RL_INLINE const uint8_t *tile_of(const tile_pair *pair, int n) {
    return pair->segment->data + (pair->tile[n] < 0 ? pair->tile[0] : pair->tile[n]) * pair->segment->tile_bytes;
}

/* A block's results to their places. */
static void emit_block(const rl_linear *linear, const rl_output *out, const tile_pair *pair, int64_t row, int rows,
                       const float *block) {
    for (int r = 0; r < rows; r++, row++, block += PANEL_FEATURES) {
        if (out->gated) {
            const int64_t column = RL_TILE * pair->tile[0];
            for (int k = 0; k < RL_TILE; k += RL_LANES) {
                vf gate = vf_load(block + k), up = vf_load(block + RL_TILE + k);
                if (linear->bias) {
                    gate += vf_load(linear->bias + column + k);
                    up += vf_load(linear->bias + out->gated + column + k);
                }
                vf_store((float *)out->y + row * out->y_stride + column + k, activated(out->activation, gate) * up);
            }
            continue;
        }
        for (int n = 0; n < PANEL_TILES && pair->tile[n] >= 0; n++)
            emit(linear, out, row, pair->segment->first + RL_TILE * pair->tile[n], tile_count(pair->segment, pair->tile[n]),
                 block + n * RL_TILE);
    }
}

/* Gates of a thread's share and then what they gate, so that each is one stream; until then a gate lies where its
 * product goes. */
static void multiply_gated(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out, int place,
                           int team) {
    const rl_segment *segment = linear->segment;
    const int64_t gates = out->gated / RL_TILE, first = share(gates, place, team), last = share(gates, place + 1, team);
    for (int is_up = 0; is_up < 2; is_up++)
        for (int64_t tile = first; tile < last; tile++) {
            const uint8_t *data = segment->data + (is_up ? gates + tile : tile) * segment->tile_bytes;
            for (int64_t row = 0; row < rows; row += RL_ROWS_AT_ONCE) {
                float sum[RL_ROWS_AT_ONCE * RL_TILE];
                const int some = rows - row < RL_ROWS_AT_ONCE ? (int)(rows - row) : RL_ROWS_AT_ONCE;
                tile_rows(segment->format, data, in, row, some, sum);
                for (int r = 0; r < some; r++) {
                    float *y = (float *)out->y + (row + r) * out->y_stride + RL_TILE * tile;
                    for (int k = 0; k < RL_TILE; k += RL_LANES) {
                        vf result = vf_load(sum + RL_TILE * r + k);
                        if (linear->bias) result += vf_load(linear->bias + (is_up ? out->gated : 0) + RL_TILE * tile + k);
                        if (is_up) result *= activated(out->activation, vf_load(y + k));
                        vf_store(y + k, result);
                    }
                }
            }
        }
}

/* Rows times single tiles, each thread its share of them. */
static void multiply_by_dots(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                             int place, int team) {
    if (out->gated) {
        multiply_gated(linear, in, rows, out, place, team);
        return;
    }
    for (int s = 0; s < linear->segments; s++) {
        const rl_segment *segment = &linear->segment[s];
        const int64_t last = share(segment->tiles, place + 1, team);
        for (int64_t tile = share(segment->tiles, place, team); tile < last; tile++) {
            const uint8_t *data = segment->data + tile * segment->tile_bytes;
            const int count = tile_count(segment, tile);
            for (int64_t row = 0; row < rows; row += RL_ROWS_AT_ONCE) {
                float sum[RL_ROWS_AT_ONCE * RL_TILE];
                const int some = rows - row < RL_ROWS_AT_ONCE ? (int)(rows - row) : RL_ROWS_AT_ONCE;
                tile_rows(segment->format, data, in, row, some, sum);
                for (int r = 0; r < some; r++)
                    emit(linear, out, row + r, segment->first + RL_TILE * tile, count, sum + RL_TILE * r);
            }
        }
    }
}

/* Ask for where a block's results go: rows lie far apart, so that no prefetcher foresees them. */
RL_INLINE void ask_for_places(const rl_output *out, const tile_pair *pair, int64_t row, int rows) {
    if (out->type != RL_X_F32) return;
    const int64_t column = pair->segment->first + RL_TILE * pair->tile[0];
    for (int r = 0; r < rows; r++) {
        const float *y = (const float *)out->y + (row + r) * out->y_stride + column;
        __builtin_prefetch(y, 1, 3);
        if (!out->gated) __builtin_prefetch(y + RL_TILE, 1, 3);
    }
}

/* Two tiles times rows `row` to `end`, while the tiles of `next` are asked for. */
static void multiply_pair(const rl_linear *linear, const tile_pair *pair, const rl_input *in, int64_t row, int64_t end,
                          const rl_output *out, uint8_t *wide, const tile_pair *next) {
    _Alignas(64) float block[BLOCK_ROWS * PANEL_FEATURES];
    const int format = pair->segment->format, bf16 = format == RL_BF16, plain = format == RL_F32 || bf16;
    const int kind = bf16 ? PLAIN_OF_BF16 : PLAIN_F32, pairs = kind == PLAIN_PAIRS;
    const uint8_t *const data[PANEL_TILES] = {tile_of(pair, 0), tile_of(pair, 1)};
    const int64_t steps = bf16 ? in->padded / 2 : in->padded, x_stride = pairs ? steps : in->x_stride;
    const int most_rows = plain ? BLOCK_ROWS : LEVEL_ROWS;
    const int64_t turns = plain ? steps / 4 : in->padded / RL_GROUP, blocks = (end - row + most_rows - 1) / most_rows;
    const int64_t asking = blocks < AHEAD_BLOCKS ? blocks : AHEAD_BLOCKS, parts = turns * asking;
    const int64_t lines = next->segment ? (next->segment->tile_bytes / 64 + parts - 1) / parts : 0;
    rl_ahead ahead = {{0}, lines};
    for (int n = 0; n < PANEL_TILES; n++) ahead.tile[n] = next->segment ? tile_of(next, n) : data[n];
    rl_panel panel = {{0}, {0}, {0}, {0}};
    if (!plain) open_panel(format, data, in->padded, wide, &panel);
    for (int number = 0; row < end; number++) {
        const int size = plain ? block_of(end - row, block_rows, BLOCK_SIZES) : level_block_of(end - row);
        const int some = plain ? block_rows[size] : level_rows[size];
        const float *x = pairs ? (const float *)(in->narrow + row * in->padded) : in->x + row * in->x_stride;
        if (number >= asking) ahead.lines = 0;
        ask_for_places(out, pair, row, some);
        if (plain)
            plain_kernels[kind][size](x, x_stride, data[0], data[1] - data[0], steps, block, PANEL_FEATURES, 0, &ahead);
        else
            level_kernels[format][size](in, row, &panel, block, &ahead);
        emit_block(linear, out, pair, row, some, block);
        row += some;
        for (int n = 0; n < PANEL_TILES; n++) ahead.tile[n] += 64 * lines * turns;
    }
}

RL_INLINE int64_t count_pairs(const rl_linear *linear, const rl_output *out) {
    int64_t pairs = 0;
    if (out->gated) return out->gated / RL_TILE;
    for (int s = 0; s < linear->segments; s++) pairs += (linear->segment[s].tiles + 1) / PANEL_TILES;
    return pairs;
}

/* Rows that a thread takes at once where a linear has few pairs: threads then end at about the same time. */
#define ROWS_A_TURN 128
#define MANY_PAIRS 64

/* Pairs, or some rows of them, go to whoever is free: a thread that is held up holds up nobody else. Some rows
 * go over all pairs before the next ones do, so that they stay in the cache. */
static void multiply_by_panels(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                               uint8_t *wide, atomic_int *turn) {
    const int64_t pairs = count_pairs(linear, out);
    const int parts = pairs < MANY_PAIRS && rows >= 2 * ROWS_A_TURN ? (int)(rows / ROWS_A_TURN) : 1;
    int64_t at = atomic_fetch_add_explicit(turn, 1, memory_order_relaxed);
    tile_pair pair = find_pair(linear, out, at % pairs);
    while (at < pairs * parts) {
        const int64_t next_at = atomic_fetch_add_explicit(turn, 1, memory_order_relaxed), part = at / pairs;
        const tile_pair next = find_pair(linear, out, next_at < pairs * parts ? next_at % pairs : pairs);
        multiply_pair(linear, &pair, in, share(rows, part, parts), share(rows, part + 1, parts), out, wide, &next);
        pair = next;
        at = next_at;
    }
}

RL_INLINE void multiply(const rl_linear *linear, const rl_input *in, int64_t rows, const rl_output *out,
                        int place, int team, uint8_t *wide, atomic_int *turn) {
#ifdef RL_HAS_AMX
    if (uses_amx(linear, rows)) {
        multiply_by_amx(linear, in, rows, out, place, team, wide);
        return;
    }
#endif
    if (uses_panels(linear, rows)) {
        multiply_by_panels(linear, in, rows, out, wide, turn);
        return;
    }
    multiply_by_dots(linear, in, rows, out, place, team);
}

RL_INLINE int input_needs(const rl_linear *linear, int64_t rows) {
    return uses_amx(linear, rows) ? NEEDS_BLOCKS : needs_of(linear, rows, uses_panels(linear, rows));
}

#endif
