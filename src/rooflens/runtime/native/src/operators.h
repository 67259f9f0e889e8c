/* The operators of a step, each run by all threads of a team together. */
#ifndef ROOFLENS_OPERATORS_H
#define ROOFLENS_OPERATORS_H

#include "linear.h"
#include "plan.h"

RL_INLINE const rl_buffer *buffer_of(const context *c, int index) { return &c->program->buffers[index]; }

RL_INLINE atomic_int *turn_of(const context *c, const rl_op *op) { return &c->turns[op - c->program->ops]; }

/* A buffer's first row for this thread. */
RL_INLINE float *rows_of(const context *c, int index, int rows, int place) {
    const rl_buffer *b = buffer_of(c, index);
    return b->data + (b->is_private && rows == 1 ? place * b->stride : 0);
}

static void run_embed(const context *c, const rl_op *op, int place, int team) {
    const rl_buffer *out = buffer_of(c, op->out);
    for (int row = place; row < c->step->rows; row += team) {
        const int64_t token = c->step->tokens[row];
        float *y = out->data + row * out->stride;
        if (!op->linear) {
            for (int k = 0; k < op->size; k++)
                y[k] = op->scale * (op->table_type == RL_X_F32
                                        ? ((const float *)op->table)[token * op->size + k]
                                        : bf16_float(((const uint16_t *)op->table)[token * op->size + k]));
            continue;
        }
        const rl_linear *linear = op->linear;
        for (int s = 0; s < linear->segments; s++) {
            const rl_segment *segment = &linear->segment[s];
            const int64_t inside = token - segment->first;
            if (inside < 0 || inside >= segment->rows) continue;
            const uint8_t *tile = segment->data + inside / RL_TILE * segment->tile_bytes;
            const int64_t groups = linear->padded / RL_GROUP;
            for (int64_t g = 0; g < groups; g++) {
                float *to = y + RL_GROUP * g;
                row_values(segment->format, tile, groups, g, inside % RL_TILE, to);
                for (int k = 0; k < RL_GROUP; k++) to[k] *= op->scale;
            }
        }
    }
}

static void run_rotation(const context *c, const rl_op *op, int place, int team) {
    const int half = op->rotary_dim / 2;
    float *table = c->angles + (int64_t)op->rotation * c->program->max_rows * c->program->rotation_stride;
    const int total = c->step->rows * half;
    for (int i = (int)share(total, place, team); i < (int)share(total, place + 1, team); i++) {
        const int row = i / half, pair = i % half;
        const float angle = (float)c->step->positions[row] * op->frequencies[pair];
        float *to = table + (int64_t)row * c->program->rotation_stride;
        to[pair] = cosf(angle) * op->rotation_factor;
        to[half + pair] = sinf(angle) * op->rotation_factor;
    }
}

/* (mean, 1 / deviation) of a row: the mean is 0 for a root mean square. */
static void spread_of(const float *x, int size, const rl_op *op, float *mean, float *inverse) {
    float total = 0.0f;
    *mean = 0.0f;
    int k = 0;
    if (op->layer_norm) {
        vf sum = vf_set(0.0f);
        for (; k + RL_LANES <= size; k += RL_LANES) sum += vf_load(x + k);
        total = vf_sum(sum);
        for (; k < size; k++) total += x[k];
        *mean = total / (float)size;
    }
    vf squares = vf_set(0.0f);
    for (k = 0; k + RL_LANES <= size; k += RL_LANES) {
        const vf d = vf_load(x + k) - vf_set(*mean);
        squares += d * d;
    }
    total = vf_sum(squares);
    for (; k < size; k++) total += (x[k] - *mean) * (x[k] - *mean);
    *inverse = 1.0f / sqrtf(total / (float)size + op->eps);
}

/* Features `low` to `high` of a normed row, a register at a time where the caller's part has them. */
static void normed(const rl_op *op, const float *x, float *y, const float *residual, int low, int high,
                   float mean, float inverse) {
    int k = low;
    for (; k + RL_LANES <= high; k += RL_LANES) {
        vf v = (vf_load(x + k) - vf_set(mean)) * vf_set(inverse);
        if (op->weight) v *= vf_load(op->weight + k);
        if (op->bias) v += vf_load(op->bias + k);
        v *= vf_set(op->scale);
        if (residual) v += vf_load(residual + k);
        vf_store(y + k, v);
    }
    for (; k < high; k++) {
        float v = (x[k] - mean) * inverse;
        if (op->weight) v *= op->weight[k];
        if (op->bias) v += op->bias[k];
        v *= op->scale;
        y[k] = residual ? residual[k] + v : v;
    }
}

static void run_norm(const context *c, const rl_op *op, int rows, int place, int team) {
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const rl_buffer *added = op->residual < 0 ? 0 : buffer_of(c, op->residual);
    float mean, inverse;
    if (rows == 1) {
        /* Everyone needs the spread; a result that all share is written by parts. */
        const float *x = in->data + (op->sampled ? c->step->sample_rows[0] * in->stride : 0);
        const int low = out->is_private ? 0 : (int)share(op->size, place, team);
        const int high = out->is_private ? op->size : (int)share(op->size, place + 1, team);
        spread_of(x, op->size, op, &mean, &inverse);
        normed(op, x, rows_of(c, op->out, 1, place), added ? added->data : 0, low, high, mean, inverse);
        return;
    }
    for (int row = place; row < rows; row += team) {
        const float *x = in->data + (op->sampled ? c->step->sample_rows[row] : row) * in->stride;
        spread_of(x, op->size, op, &mean, &inverse);
        normed(op, x, out->data + row * out->stride, added ? added->data + row * added->stride : 0, 0, op->size,
               mean, inverse);
    }
}

/* The activation that a linear applies to its own results, gate and up next to each other; or null. */
RL_INLINE const rl_op *applied_by(const context *c, const rl_op *op, int rows) {
    const rl_op *next = op + 1;
    if (op->kind != RL_OP_LINEAR || next == c->program->ops + c->program->op_count) return 0;
    const int ours = next->kind == RL_OP_ACTIVATE && next->in == op->out && next->gated && next->size % RL_TILE == 0;
    const int plain = op->linear->segments == 1 && op->residual < 0 && op->scale == 1.0f && op->cap == 0.0f;
    return ours && plain && !uses_amx(op->linear, rows) ? next : 0;
}

static void run_linear(const context *c, const rl_op *op, int rows, int place, int team) {
    const rl_linear *linear = op->linear;
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const rl_buffer *added = op->residual < 0 ? 0 : buffer_of(c, op->residual);
    const int64_t first = rows == 1 ? place : 0, padded = linear->padded, groups = padded / RL_GROUP;
    const float *x = rows_of(c, op->in, rows, place);
    const int needs = input_needs(linear, rows);
    const rl_input input = {x, c->narrow + first * padded, c->levels + first * padded, needs & NEEDS_FINE ? c->fine + first * padded : 0,
                            c->scales + first * groups, c->sums + 2 * first * groups,
                            c->bases + first * groups, in->stride, padded};
    if (rows == 1) {
        prepare_row(&input, x, 0, needs);
    } else {
        for (int row = place; row < rows; row += team) prepare_row(&input, x + row * in->stride, row, needs);
        meet(c->barrier, team);
    }
    const rl_op *then = applied_by(c, op, rows);
    const rl_buffer *to = then ? buffer_of(c, then->out) : out;
    const rl_output output = {to->data, added ? added->data : 0, to->stride, added ? added->stride : 0,
                              op->scale, op->cap, RL_X_F32, then ? then->size : 0, then ? then->activation : 0};
    multiply(linear, &input, rows, &output, place, team, c->wide + place * c->wide_bytes, turn_of(c, op));
}

/* Heads are shared out here as in run_store, so that nobody waits in between. */
static void run_head_norm(const context *c, const rl_op *op, int place, int team) {
    const rl_buffer *in = buffer_of(c, op->in);
    float mean, inverse;
    if (op->size != op->head_dim) {
        for (int row = place; row < c->step->rows; row += team) {
            float *x = in->data + row * in->stride + op->first_head * op->head_dim;
            spread_of(x, op->size, op, &mean, &inverse);
            normed(op, x, x, 0, 0, op->size, mean, inverse);
        }
        return;
    }
    const int all = op->all_heads;
    const int64_t last = share((int64_t)c->step->rows * all, place + 1, team);
    for (int64_t i = share((int64_t)c->step->rows * all, place, team); i < last; i++) {
        const int head = (int)(i % all);
        if (head < op->first_head || head >= op->first_head + op->heads) continue;
        float *x = in->data + i / all * in->stride + head * op->head_dim;
        spread_of(x, op->size, op, &mean, &inverse);
        normed(op, x, x, 0, 0, op->size, mean, inverse);
    }
}

static void run_store(const context *c, const rl_op *op, int place, int team) {
    const rl_buffer *in = buffer_of(c, op->in);
    const float *table = c->angles + (int64_t)op->rotation * c->program->max_rows * c->program->rotation_stride;
    const int dim = op->head_dim, all = op->heads + 2 * op->kv_heads;
    const int64_t last = share((int64_t)c->step->rows * all, place + 1, team);
    for (int64_t i = share((int64_t)c->step->rows * all, place, team); i < last; i++) {
        const int64_t row = i / all;
        const int head = (int)(i % all);
        float *x = in->data + row * in->stride + head * dim;
        if (op->rotary_dim && head < op->heads + op->kv_heads)
            rotate_head(x, table + row * c->program->rotation_stride, op->rotary_dim, op->interleaved);
        if (head < op->heads) continue;
        const int is_value = head >= op->heads + op->kv_heads;
        const int64_t kv_head = head - op->heads - (is_value ? op->kv_heads : 0);
        const int64_t slot = kv_head * c->program->cache_blocks * RL_BLOCK_TOKENS + c->step->slots[row];
        store_head(x, dim, op->kv_type, is_value ? op->values : op->keys,
                   is_value ? op->value_scales : op->key_scales, slot * dim, slot);
    }
}

/* Queries of `count` rows from `row` on, of one KV head. */
RL_INLINE attention_part part_of(const context *c, const rl_op *op, int row, int count, int kv_head) {
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const int group = op->heads / op->kv_heads;
    const int64_t column = (int64_t)kv_head * group * op->head_dim;
    return (attention_part){
        .op = op,
        .table = c->step->block_tables + c->step->row_sequence[row] * c->step->table_stride,
        .cache_blocks = c->program->cache_blocks,
        .position = c->step->positions[row],
        .kv_head = kv_head,
        .group = group,
        .count = count,
        .window = c->program->classes[op->plan].window,
        .query = in->data + row * in->stride + column,
        .out = out->data + row * out->stride + column,
        .query_stride = in->stride,
        .out_stride = out->stride,
    };
}

/* Where a piece that is one of several leaves its sums. */
RL_INLINE void use_partial(const context *c, const rl_op *op, int index, attention_room *s) {
    const int group = op->heads / op->kv_heads;
    s->result = c->partials + index * (int64_t)c->program->max_partial;
    s->top = s->result + group * attention_width(op->head_dim);
    s->weight = s->top + group;
}

/* Add what another piece of the same row and head has found. */
static void join_piece(const attention_room *s, const attention_room *more, int group, int width) {
    for (int g = 0; g < group; g++) {
        const float peak = s->top[g] > more->top[g] ? s->top[g] : more->top[g];
        const float a = expf(s->top[g] - peak), b = expf(more->top[g] - peak);
        for (int d = 0; d < width; d++) s->result[g * width + d] = a * s->result[g * width + d] + b * more->result[g * width + d];
        s->weight[g] = a * s->weight[g] + b * more->weight[g];
        s->top[g] = peak;
    }
}

/* Runs of rows one after another by whoever is free, then single rows as the plan shares them out. */
static void run_attend(const context *c, const rl_op *op, int place, int team) {
    const plan *p = &c->plans[op->plan];
    const int group = op->heads / op->kv_heads, width = attention_width(op->head_dim);
    float *scratch = c->scratch + place * c->scratch_floats;
    attention_room s, more;
    for (int i; (i = atomic_fetch_add_explicit(turn_of(c, op), 1, memory_order_relaxed)) < p->run_count;) {
        const attention_part part = part_of(c, op, p->runs[i].row, p->runs[i].count, p->runs[i].kv_head);
        const int64_t oldest = oldest_seen(part.position, part.window), newest = part.position + part.count - 1;
        attention_lay_out(scratch, part.count * group, width, &s);
        attend_span(&part, oldest / RL_BLOCK_TOKENS, newest / RL_BLOCK_TOKENS + 1, &s);
        finish_rows(&part, &s);
    }
    attention_lay_out(scratch, group, width, &s);
    for (int i = p->starts[place]; i < p->starts[place + 1]; i++) {
        const piece *it = &p->pieces[i];
        const attention_part part = part_of(c, op, it->row, 1, it->kv_head);
        attention_room own = s;
        if (it->partial >= 0) use_partial(c, op, it->partial, &own);
        attend_span(&part, it->first, it->last, &own);
        if (it->partial < 0) finish_rows(&part, &own);
    }
    if (!p->cut) return;
    meet(c->barrier, team);
    for (int i = 0, turn = 0; i < p->starts[team];) {
        int end = i + 1;
        while (end < p->starts[team] && p->pieces[end].whole_index == p->pieces[i].whole_index) end++;
        if (end - i > 1 && turn++ % team == place) {
            use_partial(c, op, p->pieces[i].partial, &s);
            for (int other = i + 1; other < end; other++) {
                use_partial(c, op, p->pieces[other].partial, &more);
                join_piece(&s, &more, group, width);
            }
            const attention_part part = part_of(c, op, p->pieces[i].row, 1, p->pieces[i].kv_head);
            finish_rows(&part, &s);
        }
        i = end;
    }
}

static void run_activate(const context *c, const rl_op *op, int place, int team) {
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const int64_t chunks = (op->size + RL_LANES - 1) / RL_LANES, total = chunks * c->step->rows;
    const int64_t last = share(total, place + 1, team);
    for (int64_t i = share(total, place, team); i < last; i++) {
        const int64_t row = i / chunks, k = i % chunks * RL_LANES;
        const float *x = in->data + row * in->stride + k;
        float *y = out->data + row * out->stride + k;
        const int64_t count = op->size - k < RL_LANES ? op->size - k : RL_LANES;
        float gate[RL_LANES] = {0}, up[RL_LANES] = {0};
        memcpy(gate, x, 4 * (size_t)count);
        vf v = activated(op->activation, vf_load(gate));
        if (op->gated) {
            memcpy(up, x + op->size, 4 * (size_t)count);
            v *= vf_load(up);
        }
        vf_store(gate, v);
        memcpy(y, gate, 4 * (size_t)count);
    }
}

/* Whether threads that go on to the next operator would find it incomplete. */
RL_INLINE int leaves_all_ready(const context *c, const rl_op *op, int rows) {
    if (op->kind == RL_OP_NORM) return rows == 1 && buffer_of(c, op->out)->is_private;
    return op->kind == RL_OP_HEAD_NORM && op->size == op->head_dim;
}

static void run_op(const context *c, const rl_op *op, int place, int team) {
    const int rows = op->sampled ? c->step->samples : c->step->rows;
    if (op > c->program->ops && applied_by(c, op - 1, rows) == op) return;
    switch (op->kind) {
    case RL_OP_EMBED: run_embed(c, op, place, team); break;
    case RL_OP_ROTATION: run_rotation(c, op, place, team); break;
    case RL_OP_NORM: run_norm(c, op, rows, place, team); break;
    case RL_OP_LINEAR: run_linear(c, op, rows, place, team); break;
    case RL_OP_HEAD_NORM: run_head_norm(c, op, place, team); break;
    case RL_OP_STORE: run_store(c, op, place, team); break;
    case RL_OP_ATTEND: run_attend(c, op, place, team); break;
    case RL_OP_ACTIVATE: run_activate(c, op, place, team); break;
    default: break;
    }
    if (!leaves_all_ready(c, op, rows)) meet(c->barrier, team);
}

#endif
