/* Weights into tiles: from rows of numbers, quantised on the way, or from ggml's blocks without any loss. */
#include "tiles.h"
#include "team.h"

/* What one group of 32 input features of one row is made of. */
typedef struct {
    uint8_t level[RL_GROUP];
    uint16_t d, m;        /* fp16 */
    uint8_t sc[2], mn;    /* K formats: sub-scale and sub-minimum; Q6_K: both halves' sub-scales as int8 */
    float channel;
} group_parts;

static uint16_t read16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* fp32 to fp16, to nearest, ties to even; too large becomes the largest. */
static uint16_t to_fp16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u;
    float size = fabsf(x);
    if (!(size < 65504.0f)) return (uint16_t)(sign | 0x7bffu);
    if (size < 6.103515625e-5f) return (uint16_t)(sign | (uint32_t)lrintf(size * 16777216.0f));
    memcpy(&bits, &size, sizeof bits);
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
}

static void put_levels(int format, uint8_t *at, int lane, const uint8_t *level) {
    const int bits = level_bits(format);
    for (int k = 0; k < RL_GROUP; k++) {
        const int j = k / 4, place = 4 * lane + k % 4;
        if (bits == 8) {
            at[64 * j + place] = level[k];
            continue;
        }
        at[64 * (j / 2) + place] |= (uint8_t)((level[k] & 15) << (4 * (j % 2)));
        if (bits == 5) at[256 + place] |= (uint8_t)(level[k] >> 4 << j);
        if (bits == 6) at[256 + 64 * (j / 4) + place] |= (uint8_t)(level[k] >> 4 << (2 * (j % 4)));
    }
}

static void put16(uint8_t *at, int lane, uint16_t value) { memcpy(at + 2 * lane, &value, 2); }

/* The tile is zero before its first group is put. */
static void put_group(int format, uint8_t *tile, int64_t groups, int64_t g, int lane, const group_parts *parts) {
    const int64_t block = g / RL_SUPER_GROUPS, place = g % RL_SUPER_GROUPS;
    put_levels(format, tile + scale_plane_bytes(format, groups) + g * group_bytes(format), lane, parts->level);
    switch (format) {
    case RL_Q8_CHANNEL: memcpy(tile + 4 * lane, &parts->channel, 4); break;
    case RL_Q8_0: case RL_Q4_0: case RL_Q5_0: put16(tile + 32 * g, lane, parts->d); break;
    case RL_Q4_1: case RL_Q5_1:
        put16(tile + 64 * g, lane, parts->d);
        put16(tile + 64 * g + 32, lane, parts->m);
        break;
    case RL_Q4_K: case RL_Q5_K: {
        uint8_t *s = tile + block * K_SCALE_BYTES;
        put16(s, lane, parts->d);
        put16(s + 32, lane, parts->m);
        s[64 + 16 * place + lane] = (uint8_t)((parts->sc[0] & 15) | (parts->mn & 15) << 4);
        s[192 + 16 * (place % 4) + lane] |=
            (uint8_t)((parts->sc[0] >> 4 | (parts->mn >> 4) << 2) << (4 * (place / 4)));
        break;
    }
    case RL_Q6_K: {
        uint8_t *s = tile + block * Q6_SCALE_BYTES;
        put16(s, lane, parts->d);
        s[32 + 32 * place + lane] = parts->sc[0];
        s[48 + 32 * place + lane] = parts->sc[1];
        break;
    }
    default: break;
    }
}

/* Bytes of one of ggml's blocks, and its input features; 0 for a format that ggml does not have. */
static int64_t ggml_block(int format, int *features) {
    *features = format >= RL_Q4_K ? RL_SUPER : RL_GROUP;
    switch (format) {
    case RL_Q8_0: return 34;
    case RL_Q4_0: return 18;
    case RL_Q4_1: return 20;
    case RL_Q5_0: return 22;
    case RL_Q5_1: return 24;
    case RL_Q4_K: return 144;
    case RL_Q5_K: return 176;
    case RL_Q6_K: return 210;
    default: return 0;
    }
}

static void halves(const uint8_t *packed, uint8_t *level) {
    for (int k = 0; k < 16; k++) {
        level[k] = packed[k] & 15;
        level[16 + k] = packed[k] >> 4;
    }
}

/* Group `place` of a block of 256 in the formats Q4_K and Q5_K. */
static void read_k(int format, const uint8_t *block, int place, group_parts *to) {
    const uint8_t *s = block + 4, *high = block + 16, *packed = block + (format == RL_Q5_K ? 48 : 16);
    to->d = read16(block);
    to->m = read16(block + 2);
    if (place < 4) {
        to->sc[0] = s[place] & 63;
        to->mn = s[place + 4] & 63;
    } else {
        to->sc[0] = (uint8_t)((s[place + 4] & 15) | (s[place - 4] >> 6) << 4);
        to->mn = (uint8_t)(s[place + 4] >> 4 | (s[place] >> 6) << 4);
    }
    for (int k = 0; k < RL_GROUP; k++) {
        const uint8_t byte = packed[32 * (place / 2) + k];
        to->level[k] = place % 2 ? byte >> 4 : byte & 15;
        if (format == RL_Q5_K) to->level[k] |= (uint8_t)((high[k] >> place & 1) << 4);
    }
}

static void read_q6(const uint8_t *block, int place, group_parts *to) {
    const int half = place / 4, quarter = place % 4;
    const uint8_t *low = block + 64 * half + 32 * (quarter % 2), *high = block + 128 + 32 * half;
    for (int k = 0; k < RL_GROUP; k++)
        to->level[k] = (uint8_t)((quarter < 2 ? low[k] & 15 : low[k] >> 4) | (high[k] >> (2 * quarter) & 3) << 4);
    to->sc[0] = block[192 + 8 * half + 2 * quarter];
    to->sc[1] = block[192 + 8 * half + 2 * quarter + 1];
    to->d = read16(block + 208);
}

static void read_group(int format, const uint8_t *block, int place, group_parts *to) {
    uint32_t high;
    to->d = read16(block);
    switch (format) {
    case RL_Q8_0:
        for (int k = 0; k < RL_GROUP; k++) to->level[k] = (uint8_t)(block[2 + k] ^ 128);
        break;
    case RL_Q4_0: halves(block + 2, to->level); break;
    case RL_Q4_1:
        to->m = read16(block + 2);
        halves(block + 4, to->level);
        break;
    case RL_Q5_0: case RL_Q5_1: {
        const int at = format == RL_Q5_1 ? 4 : 2;
        if (format == RL_Q5_1) to->m = read16(block + 2);
        memcpy(&high, block + at, 4);
        halves(block + at + 4, to->level);
        for (int k = 0; k < RL_GROUP; k++) to->level[k] |= (uint8_t)((high >> k & 1u) << 4);
        break;
    }
    case RL_Q4_K: case RL_Q5_K: read_k(format, block, place, to); break;
    case RL_Q6_K: read_q6(block, place, to); break;
    default: break;
    }
}

static float number(const void *source, int type, int64_t at) {
    return type == RL_X_F32 ? ((const float *)source)[at] : bf16_float(((const uint16_t *)source)[at]);
}

static uint8_t level_of(float x, int offset, int top) {
    const float level = rintf(x) + (float)offset;
    return (uint8_t)(level < 0.0f ? 0.0f : level > (float)top ? (float)top : level);
}

/* Scales that are tried for a group of 8 bits, each a hundredth larger than the one before. Rounding errors of 32
 * numbers vary by chance from scale to scale: the best of eight leaves about a seventh less of their squares. */
#define SCALES_TRIED 8
#define SCALE_STEP 0.01f

/* The scale that rounds a group with the least squared error; in fp16 it moves by less than matters here. */
static float best_scale(const float *x, float largest) {
    const float smallest = largest / 127.0f, inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    float best = 1.0f, least = INFINITY;
    for (int i = 0; i < SCALES_TRIED; i++) {
        const float factor = 1.0f + SCALE_STEP * (float)i;
        const vf inside = vf_set(1.0f / factor), outside = vf_set(factor);
        vf squares = vf_set(0.0f);
        for (int k = 0; k < RL_GROUP; k += RL_LANES) {
            const vf level = vf_load(x + k) * vf_set(inverse), lost = level - vf_round(level * inside) * outside;
            squares += lost * lost;
        }
        const float error = vf_sum(squares);
        if (error < least) {
            least = error;
            best = factor;
        }
    }
    return smallest * best;
}

/* A group in a format that numbers are quantised to. `channel` is the row's scale where the format has one. */
static void quantise_group(int format, const float *x, float channel, group_parts *to) {
    float low = x[0], high = x[0], largest = x[0];
    for (int k = 1; k < RL_GROUP; k++) {
        low = x[k] < low ? x[k] : low;
        high = x[k] > high ? x[k] : high;
        largest = fabsf(x[k]) > fabsf(largest) ? x[k] : largest;
    }
    float scale = 0.0f, minimum = 0.0f;
    int offset = 0, top = 255;
    switch (format) {
    case RL_Q8_CHANNEL:
        scale = to->channel = channel;
        offset = 128;
        break;
    case RL_Q8_0:
        to->d = to_fp16(best_scale(x, fabsf(largest)));
        scale = fp16_float(to->d);
        offset = 128;
        break;
    case RL_Q4_0: /* the value furthest from zero gets the lowest level, -8 */
        to->d = to_fp16(largest / -8.0f);
        scale = fp16_float(to->d);
        offset = 8;
        top = 15;
        break;
    default: /* Q4_1 */
        to->d = to_fp16((high - low) / 15.0f);
        to->m = to_fp16(low);
        scale = fp16_float(to->d);
        minimum = fp16_float(to->m);
        top = 15;
        break;
    }
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    for (int k = 0; k < RL_GROUP; k++) to->level[k] = level_of((x[k] - minimum) * inverse, offset, top);
}

static float channel_scale(const void *source, int type, int64_t at, int64_t count) {
    float top = 0.0f;
    for (int64_t k = 0; k < count; k++) {
        const float size = fabsf(number(source, type, at + k));
        top = size > top ? size : top;
    }
    return top / 127.0f;
}

static void pack_row(int format, const void *source, int type, int64_t at, int64_t in_features, int64_t padded,
                     uint8_t *tile, int lane) {
    const int64_t groups = padded / RL_GROUP;
    if (format == RL_F32 || format == RL_BF16) {
        for (int64_t k = 0; k < in_features; k++) {
            const float x = number(source, type, at + k);
            if (format == RL_F32) {
                ((float *)tile)[RL_TILE * k + lane] = x;
            } else {
                ((uint16_t *)tile)[RL_TILE * 2 * (k / 2) + 2 * lane + k % 2] = float_bf16(x);
            }
        }
        return;
    }
    const float channel = format == RL_Q8_CHANNEL ? channel_scale(source, type, at, in_features) : 0.0f;
    for (int64_t g = 0; g < groups; g++) {
        float x[RL_GROUP] = {0};
        group_parts parts = {.channel = channel};
        for (int64_t k = RL_GROUP * g; k < RL_GROUP * (g + 1) && k < in_features; k++)
            x[k - RL_GROUP * g] = number(source, type, at + k);
        quantise_group(format, x, channel, &parts);
        put_group(format, tile, groups, g, lane, &parts);
    }
}

static void pack_tile(int format, const void *source, int type, int64_t stride, int64_t rows, int64_t in_features,
                      int64_t padded, uint8_t *tiles, int64_t tile) {
    uint8_t *to = tiles + tile * bytes_of_tile(format, padded);
    memset(to, 0, (size_t)bytes_of_tile(format, padded));
    for (int64_t row = tile * RL_TILE; row < rows && row < (tile + 1) * RL_TILE; row++)
        pack_row(format, source, type, row * stride, in_features, padded, to, (int)(row % RL_TILE));
}

static void pack_ggml_tile(int format, const uint8_t *blocks, int64_t rows, int64_t in_features, uint8_t *tiles,
                           int64_t tile) {
    int features;
    const int64_t block_bytes = ggml_block(format, &features), groups = in_features / RL_GROUP;
    const int64_t row_bytes = in_features / features * block_bytes;
    const int a_block = features / RL_GROUP;
    uint8_t *to = tiles + tile * bytes_of_tile(format, in_features);
    memset(to, 0, (size_t)bytes_of_tile(format, in_features));
    for (int64_t row = tile * RL_TILE; row < rows && row < (tile + 1) * RL_TILE; row++)
        for (int64_t g = 0; g < groups; g++) {
            group_parts parts = {.channel = 0.0f};
            const uint8_t *block = blocks + row * row_bytes + g / a_block * block_bytes;
            read_group(format, block, (int)(g % a_block), &parts);
            put_group(format, to, groups, g, (int)(row % RL_TILE), &parts);
        }
}

/* Tiles of `rows` rows of `source` (RL_X_*), `stride` apart. Threads write the tiles that they will read: the
 * memory of a page is near the one that writes it first. */
void rl_pack(int format, const void *source, int type, int64_t stride, int64_t rows, int64_t in_features,
             int64_t padded, uint8_t *tiles, int threads) {
    const int64_t count = (rows + RL_TILE - 1) / RL_TILE;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        rl_home home;
        settle(team_place(), &home);
        const int64_t last = team_share(count, team_place() + 1);
        for (int64_t tile = team_share(count, team_place()); tile < last; tile++)
            pack_tile(format, source, type, stride, rows, in_features, padded, tiles, tile);
        leave(&home);
    }
}

/* Tiles of `rows` rows of ggml's blocks; 0, or 1 for a format that ggml does not have. */
int rl_pack_ggml(int format, const uint8_t *blocks, int64_t rows, int64_t in_features, uint8_t *tiles,
                 int threads) {
    int features;
    if (!ggml_block(format, &features)) return 1;
    const int64_t count = (rows + RL_TILE - 1) / RL_TILE;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        rl_home home;
        settle(team_place(), &home);
        const int64_t last = team_share(count, team_place() + 1);
        for (int64_t tile = team_share(count, team_place()); tile < last; tile++)
            pack_ggml_tile(format, blocks, rows, in_features, tiles, tile);
        leave(&home);
    }
    return 0;
}

int64_t rl_tile_bytes(int format, int64_t padded) { return bytes_of_tile(format, padded); }

/* Rows `rows` [count] of a linear, as floats or bf16: an embedding's lookup, or the weights themselves. */
void rl_rows(const rl_linear *linear, const int64_t *rows, int64_t count, void *to, int type, int64_t stride,
             int threads) {
    const int64_t groups = linear->padded / RL_GROUP;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
    for (int64_t i = 0; i < count; i++)
        for (int s = 0; s < linear->segments; s++) {
            const rl_segment *segment = &linear->segment[s];
            const int64_t inside = rows[i] - segment->first;
            if (inside < 0 || inside >= segment->rows) continue;
            const uint8_t *tile = segment->data + inside / RL_TILE * segment->tile_bytes;
            for (int64_t g = 0; g < groups; g++) {
                float value[RL_GROUP];
                row_values(segment->format, tile, groups, g, inside % RL_TILE, value);
                for (int64_t k = RL_GROUP * g; k < RL_GROUP * (g + 1) && k < linear->in_features; k++) {
                    const float x = value[k - RL_GROUP * g];
                    if (type == RL_X_F32) ((float *)to)[i * stride + k] = x;
                    else ((uint16_t *)to)[i * stride + k] = float_bf16(x);
                }
            }
        }
}
