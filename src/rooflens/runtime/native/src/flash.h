/* Attention of many rows of one sequence: a few queries of one KV head against its tokens, a chunk at a time.
 *
 * Chunks of keys and values are packed as tiles of weights are, so that scores and sums of values are the same
 * multiplies as linears; between them stand the running peak and weight of every row (the softmax of Milakov
 * and Gimelshein, 2018, as in FlashAttention), so that scores never leave the cache.
 */
#ifndef ROOFLENS_FLASH_H
#define ROOFLENS_FLASH_H

#include "attend.h"
#include "panels.h"

#define FLASH_TOKENS (RL_CHUNK_BLOCKS * RL_BLOCK_TOKENS) /* of a chunk: pieces are cut there too */
#define FLASH_ROWS 192    /* queries times heads of the group, about */
#define FLASH_LEAST 4    /* rows of a sequence from which they are taken together */

_Static_assert(RL_HEAD_FEATURES == PANEL_FEATURES && FLASH_TOKENS % PANEL_FEATURES == 0, "whole panels");

RL_INLINE int flash_queries(int group) { return group < FLASH_ROWS ? FLASH_ROWS / group : 1; }

/* What scores are multiplied in: a cache of bf16 loses nothing by it; levels with a scale would. */
RL_INLINE int flash_type(int kv_type) {
#if defined(__AVX512BF16__)
    return kv_type == RL_KV_BF16 ? RL_X_BF16 : RL_X_F32;
#else
    (void)kv_type;
    return RL_X_F32;
#endif
}

/* Lays the room for `rows` rows out from `base`; returns its size in floats. */
RL_INLINE int64_t attention_lay_out(float *base, int rows, int width, attention_room *s) {
    int64_t at = 0;
#define TAKE(field, count)         \
    do {                           \
        s->field = base + at;      \
        at += (int64_t)(count);    \
    } while (0)
    TAKE(query, rows * width);
    TAKE(keys, FLASH_TOKENS * width);
    TAKE(values, FLASH_TOKENS * width);
    TAKE(block, 2 * RL_BLOCK_TOKENS * width);
    TAKE(scores, rows * FLASH_TOKENS);
    TAKE(weights, rows * FLASH_TOKENS);
    TAKE(result, rows * width);
    TAKE(top, (rows + 15) / 16 * 16);
    TAKE(weight, (rows + 15) / 16 * 16);
#undef TAKE
    return at;
}

RL_INLINE int64_t attention_floats(int rows, int width) {
    attention_room s;
    return attention_lay_out(0, rows, width, &s);
}

/* A row's words of 32 bits: features, or pairs of them. */
RL_INLINE int words_of(int type, int count) { return type == RL_X_BF16 ? count / 2 : count; }

RL_INLINE void flash_store(int type, float *to, vf v) {
    if (type == RL_X_BF16) bf16_store((uint16_t *)to, v);
    else vf_store(to, v);
}

/* Sixteen rows of sixteen words: rows become columns. */
RL_INLINE void turn(const float *from, int64_t stride, float *to) {
#if defined(__AVX512F__)
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(from + i * stride);
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            a[4 * i + 2 * half] = _mm512_unpacklo_epi64(b[4 * i + half], b[4 * i + 2 + half]);
            a[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(b[4 * i + half], b[4 * i + 2 + half]);
        }
    /* a[4 i + c]: column c of each lane, of rows 4 i to 4 i + 3. */
    for (int c = 0; c < 4; c++) {
        const __m512i low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        const __m512i low2 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd), high2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(to + 16 * c, _mm512_shuffle_i32x4(low, high, 0x88));
        _mm512_storeu_si512(to + 16 * (4 + c), _mm512_shuffle_i32x4(low2, high2, 0x88));
        _mm512_storeu_si512(to + 16 * (8 + c), _mm512_shuffle_i32x4(low, high, 0xdd));
        _mm512_storeu_si512(to + 16 * (12 + c), _mm512_shuffle_i32x4(low2, high2, 0xdd));
    }
#elif defined(__AVX2__)
    for (int square = 0; square < 4; square++) {
        const int row = 8 * (square / 2), column = 8 * (square % 2);
        __m256 a[8], b[8];
        for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + (row + i) * stride + column);
        for (int i = 0; i < 4; i++) {
            b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 2; i++)
            for (int half = 0; half < 2; half++) {
                const __m256d x = _mm256_castps_pd(b[4 * i + half]), y = _mm256_castps_pd(b[4 * i + 2 + half]);
                a[4 * i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
                a[4 * i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
            }
        /* a[4 i + c]: columns c and 4 + c of rows 4 i to 4 i + 3. */
        for (int c = 0; c < 4; c++) {
            _mm256_storeu_ps(to + 16 * (column + c) + row, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
            _mm256_storeu_ps(to + 16 * (column + 4 + c) + row, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
        }
    }
#else
    for (int i = 0; i < 16; i++)
        for (int c = 0; c < 16; c++) memcpy(to + 16 * c + i, from + i * stride + c, 4);
#endif
}

/* Rows of floats as rows of words: nothing to do, or pairs of bf16. */
RL_INLINE const float *as_words(int type, const float *rows, int64_t count, int width, float *to) {
    if (type == RL_X_F32) return rows;
    for (int64_t i = 0; i < count * width; i += RL_LANES) bf16_store((uint16_t *)to + i, vf_load(rows + i));
    return to;
}

/* Where a block's rows of words are: in the cache itself, or unpacked in `room`. */
RL_INLINE const float *block_words(int type, const rl_op *op, int is_value, int64_t slot, int width, float *room,
                                   int64_t *stride) {
    const void *cache = is_value ? op->values : op->keys;
    const int dim = op->head_dim;
    *stride = words_of(type, width);
    if (dim == width && op->kv_type == RL_KV_F32) return (const float *)cache + slot * dim;
    if (dim == width && op->kv_type == RL_KV_BF16 && type == RL_X_BF16)
        return (const float *)((const uint16_t *)cache + slot * dim);
    float *rows = room + RL_BLOCK_TOKENS * width;
    load_block(rows, cache, is_value ? op->value_scales : op->key_scales, op->kv_type, slot * dim, slot, dim, width,
               RL_BLOCK_TOKENS);
    return as_words(type, rows, RL_BLOCK_TOKENS, width, room);
}

/* A block of keys as a tile: for each word of the head, those of sixteen tokens. */
RL_INLINE void pack_keys(int type, const float *words, int64_t stride, int width, float *to) {
    for (int w = 0; w < words_of(type, width); w += 16) turn(words + w, stride, to + 16 * w);
}

/* A block of values as a part of tiles `tile` floats apart, for each sixteen features: the tokens' rows, or
 * those of pairs of tokens. Tokens from `count` on are zeros: whatever lies there may not be a number. */
RL_INLINE void pack_values(int type, const float *words, int64_t stride, int width, int count, float *to, int64_t tile) {
    for (int d = 0; d < width; d += 16, to += tile) {
        if (type == RL_X_F32) {
            for (int t = 0; t < RL_BLOCK_TOKENS; t++)
                for (int k = 0; k < 16; k += RL_LANES)
                    vf_store(to + 16 * t + k, t < count ? vf_load(words + t * stride + d + k) : vf_set(0.0f));
            continue;
        }
        for (int t = 0; t < RL_BLOCK_TOKENS; t += 2) {
            const uint16_t *row = (const uint16_t *)(words + t * stride) + d, *next = row + 2 * stride;
            for (int k = 0; k < 16; k += RL_LANES) {
                vu pair = {0};
                if (t < count) pair = __builtin_convertvector(*(const vh_narrow *)(row + k), vu);
                if (t + 1 < count) pair |= __builtin_convertvector(*(const vh_narrow *)(next + k), vu) << 16;
                *(vu *)(to + 8 * t + k) = pair;
            }
        }
    }
}

/* One row's scores of a chunk become weights: tokens from `low` to `high` of it are seen. */
RL_INLINE void weigh(int type, float softcap, float *scores, int count, int low, int high, float *weights, float *result,
                     int width, float *top, float *weight) {
    vf best = vf_set(-INFINITY);
    static const int32_t order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vi lane = *(const vi *)order;
    for (int t = 0; t < count; t += RL_LANES) {
        vf s = vf_load(scores + t);
        if (softcap != 0.0f) s = vf_set(softcap) * vf_tanh(s / vf_set(softcap));
        const int hidden = t < low || t + RL_LANES > high;
        if (hidden) {
            const vi place = lane + vi_set(t);
            s = vf_where((place >= vi_set(low)) & (place < vi_set(high)), s, vf_set(-INFINITY));
        }
        if (hidden || softcap != 0.0f) vf_store(scores + t, s);
        best = vf_max(best, s);
    }
    const float peak = vf_top(best);
    if (peak > *top) {
        const float shrink = expf(*top - peak);
        *weight *= shrink;
        for (int d = 0; d < width; d += RL_LANES) vf_store(result + d, vf_load(result + d) * vf_set(shrink));
        *top = peak;
    }
    const float base = *top > -INFINITY ? *top : 0.0f;
    vf sum = vf_set(0.0f);
    for (int t = 0; t < count; t += RL_LANES) {
        /* The exponential is clamped: what is not seen weighs 10^-38, next to something that weighs 1. */
        const vf w = vf_exp(vf_load(scores + t) - vf_set(base));
        flash_store(type, type == RL_X_BF16 ? weights + t / 2 : weights + t, w);
        sum += w;
    }
    *weight += vf_sum(sum);
}

/* All rows over blocks [first, last), a chunk at a time. */
static void attend_chunks(const attention_part *part, int64_t first, int64_t last, const attention_room *s) {
    const rl_op *op = part->op;
    const int type = flash_type(op->kv_type), dim = op->head_dim, width = attention_width(dim), group = part->group;
    const int kind = type == RL_X_BF16 ? PLAIN_PAIRS : PLAIN_F32;
    const int rows = part->count * group, words = words_of(type, width), value_words = words_of(type, FLASH_TOKENS);
    const int64_t head_base = (int64_t)part->kv_head * part->cache_blocks * RL_BLOCK_TOKENS;
    const int64_t newest = part->position + part->count, end = last * RL_BLOCK_TOKENS < newest ? last * RL_BLOCK_TOKENS : newest;
    for (int64_t at = first * RL_BLOCK_TOKENS; at < end; at += FLASH_TOKENS) {
        const int tokens = (int)(end - at < FLASH_TOKENS ? end - at : FLASH_TOKENS);
        const int count = (tokens + PANEL_FEATURES - 1) / PANEL_FEATURES * PANEL_FEATURES;
        for (int t = 0; t < count; t += RL_BLOCK_TOKENS) {
            if (at + t + FLASH_TOKENS < end) {
                const int64_t later = (head_base + part->table[(at + t + FLASH_TOKENS) / RL_BLOCK_TOKENS] * RL_BLOCK_TOKENS) * dim;
                prefetch_block(op->keys, op->kv_type, later, dim);
                prefetch_block(op->values, op->kv_type, later, dim);
            }
            /* A panel's second block may lie behind the last token: then the first one again, unseen. */
            const int64_t block = part->table[(at + (t < tokens ? t : 0)) / RL_BLOCK_TOKENS];
            const int64_t slot = head_base + block * RL_BLOCK_TOKENS;
            int64_t stride;
            const float *from = block_words(type, op, 0, slot, width, s->block, &stride);
            pack_keys(type, from, stride, width, s->keys + t * words);
            from = block_words(type, op, 1, slot, width, s->block, &stride);
            pack_values(type, from, stride, width, tokens - t, s->values + words_of(type, 16 * t), 16 * value_words);
        }
        for (int t = 0; t < count; t += PANEL_FEATURES)
            plain_rows(kind, s->query, words, rows, (const uint8_t *)(s->keys + t * words), 64 * words, words, s->scores + t,
                       FLASH_TOKENS, 0);
        for (int r = 0; r < rows; r++) {
            const int64_t position = part->position + r / group, oldest = oldest_seen(position, part->window);
            const int low = oldest > at ? (int)(oldest - at < count ? oldest - at : count) : 0;
            const int high = position + 1 - at < tokens ? (int)(position + 1 - at) : tokens;
            weigh(type, op->softcap, s->scores + r * FLASH_TOKENS, count, low, high, s->weights + r * value_words,
                  s->result + r * width, width, &s->top[r], &s->weight[r]);
        }
        for (int d = 0; d < width; d += PANEL_FEATURES)
            plain_rows(kind, s->weights, value_words, rows, (const uint8_t *)(s->values + d * value_words), 64 * value_words,
                       words_of(type, count), s->result + d, width, 1);
    }
}

/* The part's rows over blocks [first, last) of their sequence: unnormalised sums, tops and weights to `s`. */
static void attend_span(const attention_part *part, int64_t first, int64_t last, const attention_room *s) {
    const rl_op *op = part->op;
    const int type = flash_type(op->kv_type), dim = op->head_dim, width = attention_width(dim);
    const int rows = part->count * part->group, words = words_of(type, width);
    for (int r = 0; r < rows; r++) {
        const float *from = part->query + r / part->group * part->query_stride + r % part->group * dim;
        float *row = s->block;
        for (int d = 0; d < dim; d++) row[d] = from[d] * op->softmax_scale;
        for (int d = dim; d < width; d++) row[d] = 0.0f;
        for (int d = 0; d < width; d += RL_LANES) flash_store(type, s->query + r * words + words_of(type, d), vf_load(row + d));
        s->top[r] = -INFINITY;
        s->weight[r] = 0.0f;
    }
    memset(s->result, 0, sizeof(float) * (size_t)(rows * width));
    /* In floats, packing for one query costs more than it saves. */
    if (part->count == 1 && type == RL_X_F32) attend_blocks(part, first, last, s);
    else attend_chunks(part, first, last, s);
}

/* The sums over their weights to their places. */
static void finish_rows(const attention_part *part, const attention_room *s) {
    const int dim = part->op->head_dim, width = attention_width(dim), rows = part->count * part->group;
    for (int r = 0; r < rows; r++) {
        float *to = part->out + r / part->group * part->out_stride + r % part->group * dim;
        const float inverse = 1.0f / s->weight[r];
        for (int d = 0; d < dim; d++) to[d] = s->result[r * width + d] * inverse;
    }
}

#endif
