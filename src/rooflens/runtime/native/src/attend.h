/* Attention of one query over its sequence's blocks, and what is done to queries and keys before. */
#ifndef ROOFLENS_ATTEND_H
#define ROOFLENS_ATTEND_H

#include "multiply.h"

/* Turn the first rotary_dim features of a head by `angles`: cosines, then sines, rotary_dim / 2 each. */
RL_INLINE void rotate_head(float *x, const float *angles, int dim, int interleaved) {
    const int half = dim / 2;
    for (int i = 0; i < half; i++) {
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? x + 2 * i + 1 : x + half + i;
        const float c = angles[i], s = angles[half + i], first = *a, second = *b;
        *a = first * c - second * s;
        *b = second * c + first * s;
    }
}

/* Store one head of one token at element `at`, its scale at `scale_at`. */
RL_INLINE void store_head(const float *x, int dim, int type, void *cache, float *scales, int64_t at,
                          int64_t scale_at) {
    if (type == RL_KV_F32) {
        memcpy((float *)cache + at, x, sizeof(float) * (size_t)dim);
    } else if (type == RL_KV_BF16) {
        for (int d = 0; d < dim; d++) ((uint16_t *)cache)[at + d] = float_bf16(x[d]);
    } else {
        float top = 0.0f;
        for (int d = 0; d < dim; d++) top = fabsf(x[d]) > top ? fabsf(x[d]) : top;
        const float scale = top / 127.0f, safe = scale > 0.0f ? scale : 1.0f;
        for (int d = 0; d < dim; d++) ((int8_t *)cache)[at + d] = (int8_t)rintf(x[d] / safe);
        scales[scale_at] = scale;
    }
}

/* `count` tokens of a block as floats, rows of `width` (the head size rounded up to 16, zeros behind). */
RL_INLINE void load_block(float *to, const void *cache, const float *scales, int type, int64_t at,
                          int64_t scale_at, int dim, int width, int count) {
    const int whole = dim / RL_LANES * RL_LANES;
    for (int t = 0; t < count; t++, at += dim) {
        float *row = to + t * width;
        if (type == RL_KV_F32) {
            const float *from = (const float *)cache + at;
            for (int d = 0; d < whole; d += RL_LANES) vf_store(row + d, vf_load(from + d));
            for (int d = whole; d < dim; d++) row[d] = from[d];
        } else if (type == RL_KV_BF16) {
            const uint16_t *from = (const uint16_t *)cache + at;
            for (int d = 0; d < whole; d += RL_LANES) vf_store(row + d, vf_of_bf16(from + d));
            for (int d = whole; d < dim; d++) row[d] = bf16_float(from[d]);
        } else {
            const int8_t *from = (const int8_t *)cache + at;
            const vf scale = vf_set(scales[scale_at + t]);
            for (int d = 0; d < whole; d += RL_LANES)
                vf_store(row + d, scale * vf_of_int(__builtin_convertvector(*(const vc_narrow *)(from + d), vi)));
            for (int d = whole; d < dim; d++) row[d] = scales[scale_at + t] * (float)from[d];
        }
        for (int d = dim; d < width; d++) row[d] = 0.0f;
    }
}

/* Scores of one query against a register's tokens of a block, rows of `width`. */
RL_INLINE vf block_scores(const float *query, const float *block, int width) {
    vf sum[RL_LANES];
    for (int t = 0; t < RL_LANES; t++) sum[t] = vf_load(query) * vf_load(block + t * width);
    for (int d = RL_LANES; d < width; d += RL_LANES) {
        const vf q = vf_load(query + d);
        for (int t = 0; t < RL_LANES; t++) sum[t] += q * vf_load(block + t * width + d);
    }
    return sum_each(sum);
}

/* out[0 to width) += the block's rows from `low` to `high`, each times its weight: for one query, or for two
 * next to each other, which then share the loads and have twice the independent sums. */
RL_INLINE void add_values(const int queries, float *out, const float *weights, int apart, const float *block,
                          int width, int low, int high) {
    int d = 0;
    for (; d + 4 * RL_LANES <= width; d += 4 * RL_LANES) {
        vf sum[2][4];
        for (int q = 0; q < queries; q++)
            for (int i = 0; i < 4; i++) sum[q][i] = vf_load(out + q * width + d + RL_LANES * i);
        for (int t = low; t < high; t++) {
            const float *row = block + t * width + d;
            for (int i = 0; i < 4; i++) {
                const vf value = vf_load(row + RL_LANES * i);
                for (int q = 0; q < queries; q++) sum[q][i] += vf_set(weights[q * apart + t]) * value;
            }
        }
        for (int q = 0; q < queries; q++)
            for (int i = 0; i < 4; i++) vf_store(out + q * width + d + RL_LANES * i, sum[q][i]);
    }
    for (; d < width; d += RL_LANES)
        for (int q = 0; q < queries; q++) {
            vf sum = vf_load(out + q * width + d);
            for (int t = low; t < high; t++)
                sum += vf_set(weights[q * apart + t]) * vf_load(block + t * width + d);
            vf_store(out + q * width + d, sum);
        }
}

/* The first token that a query sees; `window` 0: all. */
RL_INLINE int64_t oldest_seen(int64_t position, int window) {
    return window && position + 1 > window ? position + 1 - window : 0;
}

/* Ask for the block at element `at`, into the second cache: what is worked on fills the first. */
RL_INLINE void prefetch_block(const void *cache, int type, int64_t at, int dim) {
    const int64_t size = type == RL_KV_F32 ? 4 : type == RL_KV_BF16 ? 2 : 1;
    const uint8_t *first = (const uint8_t *)cache + at * size;
    for (int64_t line = 0; line < RL_BLOCK_TOKENS * dim * size; line += 64) __builtin_prefetch(first + line, 0, 2);
}

/* `count` rows one behind the other in a sequence, as one KV head's group of heads has them. */
typedef struct {
    const rl_op *op;
    const int64_t *table;
    int64_t cache_blocks, position; /* of the first query */
    int kv_head, group, count, window;
    const float *query;             /* of the first query and head */
    float *out;
    int64_t query_stride, out_stride;
} attention_part;

/* What attention works on, rows = queries x heads of the group: scaled queries [rows][width], sums of values
 * [rows][width], the largest score of every row, and its sum of weights relative to that score. */
typedef struct {
    float *query, *keys, *values, *block, *scores, *weights, *result, *top, *weight;
} attention_room;

RL_INLINE int attention_width(int dim) { return (dim + RL_HEAD_FEATURES - 1) / RL_HEAD_FEATURES * RL_HEAD_FEATURES; }

/* One query over blocks [first, last) of its sequence, a block of floats at a time. */
static void attend_blocks(const attention_part *part, int64_t first, int64_t last, const attention_room *s) {
    const rl_op *op = part->op;
    const int dim = op->head_dim, width = attention_width(dim), group = part->group;
    const int64_t head_base = (int64_t)part->kv_head * part->cache_blocks * RL_BLOCK_TOKENS;
    const int64_t oldest = oldest_seen(part->position, part->window), newest = part->position;
    const int chunk = RL_CHUNK_BLOCKS * RL_BLOCK_TOKENS;
    for (int64_t start = first; start < last; start += RL_CHUNK_BLOCKS) {
        const int blocks = (int)(last - start < RL_CHUNK_BLOCKS ? last - start : RL_CHUNK_BLOCKS);
        for (int b = 0; b < blocks; b++) {
            const int64_t slot = head_base + part->table[start + b] * RL_BLOCK_TOKENS;
            const int64_t later = head_base + part->table[start + b + (start + b + 1 < last)] * RL_BLOCK_TOKENS;
            prefetch_block(op->keys, op->kv_type, later * dim, dim);
            prefetch_block(op->values, op->kv_type, slot * dim, dim);
            load_block(s->block, op->keys, op->key_scales, op->kv_type, slot * dim, slot, dim, width,
                       RL_BLOCK_TOKENS);
            for (int g = 0; g < group; g++)
                for (int t = 0; t < RL_BLOCK_TOKENS; t += RL_LANES) {
                    vf score = block_scores(s->query + g * width, s->block + t * width, width);
                    if (op->softcap != 0.0f) score = vf_set(op->softcap) * vf_tanh(score / vf_set(op->softcap));
                    vf_store(s->scores + g * chunk + b * RL_BLOCK_TOKENS + t, score);
                }
        }
        const int count = blocks * RL_BLOCK_TOKENS;
        const int64_t begin = start * RL_BLOCK_TOKENS;
        const int low = oldest > begin ? (int)(oldest - begin) : 0;
        const int high = newest + 1 < begin + count ? (int)(newest + 1 - begin) : count;
        for (int g = 0; g < group; g++) {
            float *own = s->scores + g * chunk;
            for (int t = 0; t < low; t++) own[t] = -INFINITY;
            for (int t = high; t < count; t++) own[t] = -INFINITY;
            vf best = vf_load(own);
            for (int t = RL_LANES; t < count; t += RL_LANES) best = vf_max(best, vf_load(own + t));
            float peak = vf_top(best);
            if (peak > s->top[g]) {
                const float shrink = expf(s->top[g] - peak);
                s->weight[g] *= shrink;
                for (int d = 0; d < width; d += RL_LANES)
                    vf_store(s->result + g * width + d, vf_load(s->result + g * width + d) * vf_set(shrink));
                s->top[g] = peak;
            }
            vf sum = vf_set(0.0f);
            for (int t = 0; t < count; t += RL_LANES) {
                const vf score = vf_load(own + t), w = vf_exp(score - vf_set(s->top[g]));
                const vf seen = vf_where(score > vf_set(-INFINITY), w, vf_set(0.0f));
                vf_store(own + t, seen);
                sum += seen;
            }
            s->weight[g] += vf_sum(sum);
        }
        for (int b = 0; b < blocks; b++) {
            const int64_t slot = head_base + part->table[start + b] * RL_BLOCK_TOKENS;
            const int from = low - b * RL_BLOCK_TOKENS, to = high - b * RL_BLOCK_TOKENS;
            if (to <= 0 || from >= RL_BLOCK_TOKENS) continue;
            load_block(s->block, op->values, op->value_scales, op->kv_type, slot * dim, slot, dim, width,
                       RL_BLOCK_TOKENS);
            const int begin_at = from > 0 ? from : 0, end_at = to < RL_BLOCK_TOKENS ? to : RL_BLOCK_TOKENS;
            const float *weights = s->scores + b * RL_BLOCK_TOKENS;
            int g = 0;
            for (; g + 2 <= group; g += 2)
                add_values(2, s->result + g * width, weights + g * chunk, chunk, s->block, width, begin_at, end_at);
            if (g < group)
                add_values(1, s->result + g * width, weights + g * chunk, chunk, s->block, width, begin_at, end_at);
        }
    }
}

#endif
