/* A decode step in one call, and one linear by itself.
 *
 * All threads go through the operators together. What is cheap and needed by all is computed by each for
 * itself (with one row: norms, and the input of a linear in 8 bits); everything else is cut evenly, and a
 * barrier follows.
 */
#include "attend.h"
#include "linear.h"
#include "team.h"

/* Blocks [first, last) of one row and KV head. `partial` -1: the whole of it, else where its part goes. */
typedef struct {
    int32_t row, kv_head, partial, whole_index;
    int64_t first, last;
} piece;

/* Who attends to what, for all layers of one class; pieces in order of row, head and block. */
typedef struct {
    piece *pieces;
    int32_t *starts; /* of each thread, and the end */
    int32_t cut;     /* whether any row's head is cut over threads */
} plan;

typedef struct {
    const rl_program *program;
    const rl_step *step;
    uint16_t *narrow;
    int8_t *levels;
    float *scales;
    int32_t *sums;
    uint8_t *wide;
    float *angles;
    float *scratch;
    float *partials;
    plan *plans;
    int64_t scratch_floats, wide_bytes;
    rl_barrier *barrier;
} context;

#define ROUND64(n) (((int64_t)(n) + 63) / 64 * 64)

/* Lays the workspace out from `base`; returns its size. */
static int64_t lay_out(const rl_program *p, uint8_t *base, context *c) {
    const int64_t rows = (p->max_rows > p->max_threads ? p->max_rows : p->max_threads) + RL_ROW_PADDING;
    const int64_t features = p->max_features, groups = features / RL_GROUP;
    int64_t at = 0;
#define TAKE(field, type, count)                       \
    do {                                               \
        c->field = base ? (type *)(base + at) : 0;     \
        at += ROUND64((int64_t)sizeof(type) * (count)); \
    } while (0)
    TAKE(barrier, rl_barrier, 1);
    TAKE(narrow, uint16_t, rows * features);
    TAKE(levels, int8_t, rows * features);
    TAKE(scales, float, rows * groups);
    TAKE(sums, int32_t, 2 * rows * groups);
    c->wide_bytes = ROUND64(64 * features);
    TAKE(wide, uint8_t, c->wide_bytes * p->max_threads);
    TAKE(angles, float, (int64_t)p->rotations * p->max_rows * p->rotation_stride);
    c->scratch_floats = ROUND64(RL_BLOCK_TOKENS * RL_MAX_HEAD +
                                RL_MAX_GROUP * RL_CHUNK_BLOCKS * RL_BLOCK_TOKENS + 2 * p->max_partial);
    TAKE(scratch, float, c->scratch_floats * p->max_threads);
    TAKE(partials, float, 2 * (int64_t)p->max_partial * p->max_threads);
    TAKE(plans, plan, p->class_count);
    for (int i = 0; i < p->class_count; i++) {
        const int64_t pieces = (int64_t)p->max_rows * p->classes[i].kv_heads + 2 * p->max_threads;
        const int64_t piece_at = at, start_at = at + ROUND64(pieces * (int64_t)sizeof(piece));
        at = start_at + ROUND64((p->max_threads + 1) * (int64_t)sizeof(int32_t));
        if (base) {
            c->plans[i].pieces = (piece *)(base + piece_at);
            c->plans[i].starts = (int32_t *)(base + start_at);
        }
    }
#undef TAKE
    return at;
}

int64_t rl_workspace(const rl_program *program) {
    context c;
    return lay_out(program, 0, &c);
}

RL_INLINE int64_t oldest_seen(int64_t position, int window) {
    return window && position + 1 > window ? position + 1 - window : 0;
}

/* Cuts the attention of a class over the team: in chunks of blocks, each thread as many as the next. */
static void make_plan(const context *c, const rl_attention_class *class, plan *made, int team) {
    const rl_step *step = c->step;
    int64_t total = 0, done = 0;
    for (int row = 0; row < step->rows; row++) {
        const int64_t position = step->positions[row];
        const int64_t blocks = position / RL_BLOCK_TOKENS + 1 - oldest_seen(position, class->window) / RL_BLOCK_TOKENS;
        total += (blocks + RL_CHUNK_BLOCKS - 1) / RL_CHUNK_BLOCKS * class->kv_heads;
    }
    int thread = 0, count = 0, partials = 0;
    made->cut = 0;
    made->starts[0] = 0;
    for (int row = 0; row < step->rows; row++) {
        const int64_t position = step->positions[row];
        const int64_t begin = oldest_seen(position, class->window) / RL_BLOCK_TOKENS;
        const int64_t end = position / RL_BLOCK_TOKENS + 1;
        for (int head = 0; head < class->kv_heads; head++) {
            const int opened = count;
            for (int64_t at = begin; at < end;) {
                while (done >= share(total, thread + 1, team)) made->starts[++thread] = count;
                const int64_t left = (end - at + RL_CHUNK_BLOCKS - 1) / RL_CHUNK_BLOCKS;
                const int64_t mine = share(total, thread + 1, team) - done;
                const int64_t chunks = left < mine ? left : mine;
                const int64_t stop = at + chunks * RL_CHUNK_BLOCKS < end ? at + chunks * RL_CHUNK_BLOCKS : end;
                made->pieces[count++] = (piece){row, head, -1, opened, at, stop};
                done += chunks;
                at = stop;
            }
            if (count - opened > 1) {
                made->cut = 1;
                for (int i = opened; i < count; i++) made->pieces[i].partial = partials++;
            }
        }
    }
    while (thread < team) made->starts[++thread] = count;
}

RL_INLINE const rl_buffer *buffer_of(const context *c, int index) { return &c->program->buffers[index]; }

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
                vf value[RL_GROUP];
                group_values(segment->format, tile, groups, g, value);
                for (int k = 0; k < RL_GROUP; k++)
                    y[RL_GROUP * g + k] = op->scale * ((const float *)&value[k])[inside % RL_TILE];
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
        for (; k + 16 <= size; k += 16) sum += vf_load(x + k);
        total = vf_sum(sum);
        for (; k < size; k++) total += x[k];
        *mean = total / (float)size;
    }
    vf squares = vf_set(0.0f);
    for (k = 0; k + 16 <= size; k += 16) {
        const vf d = vf_load(x + k) - vf_set(*mean);
        squares += d * d;
    }
    total = vf_sum(squares);
    for (; k < size; k++) total += (x[k] - *mean) * (x[k] - *mean);
    *inverse = 1.0f / sqrtf(total / (float)size + op->eps);
}

RL_INLINE void normed(const rl_op *op, const float *x, float *y, const float *residual, int low, int high,
                      float mean, float inverse) {
    for (int k = low; k < high; k++) {
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

static void run_linear(const context *c, const rl_op *op, int rows, int place, int team) {
    const rl_linear *linear = op->linear;
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const rl_buffer *added = op->residual < 0 ? 0 : buffer_of(c, op->residual);
    const int64_t first = rows == 1 ? place : 0, padded = linear->padded, groups = padded / RL_GROUP;
    const float *x = rows_of(c, op->in, rows, place);
    const rl_input input = {x, c->narrow + first * padded, c->levels + first * padded,
                            c->scales + first * groups, c->sums + 2 * first * groups, in->stride, padded};
    const int needs = input_needs(linear, rows);
    if (rows == 1) {
        prepare_row(&input, x, 0, needs);
    } else {
        for (int row = place; row < rows; row += team) prepare_row(&input, x + row * in->stride, row, needs);
        meet(c->barrier, team);
    }
    const rl_output output = {out->data, added ? added->data : 0, out->stride, added ? added->stride : 0,
                              op->scale, op->cap, RL_X_F32};
    multiply(linear, &input, rows, &output, place, team, c->wide + place * c->wide_bytes);
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

/* The values of one KV head's queries, normalised, to their places. */
RL_INLINE void finish_heads(const rl_op *op, const float *result, int group, int width, float *y) {
    const float *weight = result + group * width + group;
    for (int g = 0; g < group; g++)
        for (int d = 0; d < op->head_dim; d++) y[g * op->head_dim + d] = result[g * width + d] / weight[g];
}

static void run_attend(const context *c, const rl_op *op, int place, int team) {
    const plan *p = &c->plans[op->plan];
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const int group = op->heads / op->kv_heads, dim = op->head_dim, width = (dim + 15) / 16 * 16;
    const int window = c->program->classes[op->plan].window;
    float *scratch = c->scratch + place * c->scratch_floats;
    float *query = scratch, *result = query + group * width;
    float *rest_of_it = result + group * (width + 2);
    for (int i = p->starts[place]; i < p->starts[place + 1]; i++) {
        const piece *it = &p->pieces[i];
        const int64_t position = c->step->positions[it->row];
        const float *q = in->data + it->row * in->stride + it->kv_head * group * dim;
        for (int g = 0; g < group; g++) {
            for (int d = 0; d < dim; d++) query[g * width + d] = q[g * dim + d] * op->softmax_scale;
            for (int d = dim; d < width; d++) query[g * width + d] = 0.0f;
        }
        const attention_part part = {
            op, c->step->block_tables + c->step->row_sequence[it->row] * c->step->table_stride,
            c->program->cache_blocks, it->kv_head, group, width, oldest_seen(position, window), position};
        float *to = it->partial < 0 ? result : c->partials + it->partial * (int64_t)c->program->max_partial;
        attend_blocks(&part, query, it->first, it->last, to, rest_of_it);
        if (it->partial < 0)
            finish_heads(op, to, group, width, out->data + it->row * out->stride + it->kv_head * group * dim);
    }
    if (!p->cut) return;
    meet(c->barrier, team);
    for (int i = 0, turn = 0; i < p->starts[team];) {
        int end = i + 1;
        while (end < p->starts[team] && p->pieces[end].whole_index == p->pieces[i].whole_index) end++;
        if (end - i > 1 && turn++ % team == place) {
            const piece *it = &p->pieces[i];
            float *sum = c->partials + it->partial * (int64_t)c->program->max_partial;
            float *top = sum + group * width, *weight = top + group;
            for (int other = i + 1; other < end; other++) {
                const float *more = c->partials + p->pieces[other].partial * (int64_t)c->program->max_partial;
                const float *more_top = more + group * width, *more_weight = more_top + group;
                for (int g = 0; g < group; g++) {
                    const float peak = top[g] > more_top[g] ? top[g] : more_top[g];
                    const float a = expf(top[g] - peak), b = expf(more_top[g] - peak);
                    for (int d = 0; d < width; d++)
                        sum[g * width + d] = a * sum[g * width + d] + b * more[g * width + d];
                    weight[g] = a * weight[g] + b * more_weight[g];
                    top[g] = peak;
                }
            }
            finish_heads(op, sum, group, width, out->data + it->row * out->stride + it->kv_head * group * dim);
        }
        i = end;
    }
}

RL_INLINE vf activated(int activation, vf x) {
    switch (activation) {
    case RL_ACT_SILU: return x / (vf_set(1.0f) + vf_exp(-x));
    case RL_ACT_GELU_TANH: {
        const vf inner = vf_set(0.7978845608028654f) * (x + vf_set(0.044715f) * x * x * x);
        return vf_set(0.5f) * x * (vf_set(1.0f) + vf_tanh(inner));
    }
    case RL_ACT_GELU: {
        float lanes[16];
        vf_store(lanes, x);
        for (int i = 0; i < 16; i++) lanes[i] = 0.5f * lanes[i] * (1.0f + erff(lanes[i] * 0.70710678f));
        return vf_load(lanes);
    }
    case RL_ACT_RELU2: {
        const vf positive = vf_max(x, vf_set(0.0f));
        return positive * positive;
    }
    default: return vf_max(x, vf_set(0.0f));
    }
}

static void run_activate(const context *c, const rl_op *op, int place, int team) {
    const rl_buffer *in = buffer_of(c, op->in), *out = buffer_of(c, op->out);
    const int64_t chunks = (op->size + 15) / 16, total = chunks * c->step->rows;
    const int64_t last = share(total, place + 1, team);
    for (int64_t i = share(total, place, team); i < last; i++) {
        const int64_t row = i / chunks, k = i % chunks * 16;
        const float *x = in->data + row * in->stride + k;
        float *y = out->data + row * out->stride + k;
        const int64_t count = op->size - k < 16 ? op->size - k : 16;
        float gate[16] = {0}, up[16] = {0};
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

void rl_run(const rl_program *program, const rl_step *step) {
    context c;
    lay_out(program, program->workspace, &c);
    c.program = program;
    c.step = step;
    atomic_init(&c.barrier->arrived, 0);
    atomic_init(&c.barrier->phase, 0);
    if (step->times) step->times[0] = seconds();
#ifdef _OPENMP
#pragma omp parallel num_threads(step->threads)
#endif
    {
        const int place = team_place(), team = team_size();
        rl_home home;
        settle(place, &home);
        for (int i = place; i < program->class_count; i += team)
            make_plan(&c, &program->classes[i], &c.plans[i], team);
        for (int i = 0; i < program->op_count; i++) {
            run_op(&c, &program->ops[i], place, team);
            if (place == 0 && step->times) step->times[i + 1] = seconds();
        }
        leave(&home);
    }
}

int64_t rl_apply_bytes(const rl_linear *linear, int64_t rows, int threads) {
    const int64_t padded = linear->padded, groups = padded / RL_GROUP, room = rows + RL_ROW_PADDING;
    return 4096 + room * padded * 7 + 12 * room * groups + threads * (ROUND64(64 * padded) + ROUND64(4 * padded));
}

/* y [rows, out] = x [rows, in] W^T + b, with x and y of any of RL_X_*. */
void rl_apply(const rl_linear *linear, const void *x, int x_type, int64_t x_stride, void *y, int y_type,
                   int64_t y_stride, int64_t rows, int threads, uint8_t *workspace) {
    const int64_t padded = linear->padded, groups = padded / RL_GROUP, room = rows + RL_ROW_PADDING;
    uint8_t *at = workspace;
    rl_barrier *barrier = (rl_barrier *)at;
    at += ROUND64(sizeof(rl_barrier));
    uint8_t *wide = at;
    at += threads * ROUND64(64 * padded);
    float *lines = (float *)at;
    at += threads * ROUND64(4 * padded);
    float *floats = (float *)at;
    at += ROUND64(4 * room * padded);
    uint16_t *narrow = (uint16_t *)at;
    at += ROUND64(2 * room * padded);
    int8_t *levels = (int8_t *)at;
    at += ROUND64(room * padded);
    float *scales = (float *)at;
    at += ROUND64(4 * room * groups);
    const rl_input input = {floats, narrow, levels, scales, (int32_t *)at, padded, padded};
    const rl_output output = {y, 0, y_stride, 0, 1.0f, 0.0f, y_type};
    const int needs = input_needs(linear, rows);
    atomic_init(&barrier->arrived, 0);
    atomic_init(&barrier->phase, 0);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        const int place = team_place(), team = team_size();
        rl_home home;
        settle(place, &home);
        float *line = lines + place * (ROUND64(4 * padded) / 4);
        for (int64_t row = place; row < rows; row += team) {
            float *to = needs & NEEDS_FLOATS ? floats + row * padded : line;
            if (x_type == RL_X_F32)
                memcpy(to, (const float *)x + row * x_stride, 4 * (size_t)linear->in_features);
            else
                for (int k = 0; k < linear->in_features; k++)
                    to[k] = bf16_float(((const uint16_t *)x)[row * x_stride + k]);
            for (int64_t k = linear->in_features; k < padded; k++) to[k] = 0.0f;
            prepare_row(&input, to, row, needs);
        }
        meet(barrier, team);
        multiply(linear, &input, rows, &output, place, team, wide + place * ROUND64(64 * padded));
        leave(&home);
    }
}
