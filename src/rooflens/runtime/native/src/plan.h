/* Where a step's intermediate results lie, and who attends to what. */
#ifndef ROOFLENS_PLAN_H
#define ROOFLENS_PLAN_H

#include "flash.h"
#include "team.h"

/* Blocks [first, last) of one row and KV head. `partial` -1: the whole of it, else where its part goes. */
typedef struct {
    int32_t row, kv_head, partial, whole_index;
    int64_t first, last;
} piece;

/* Some rows of one sequence, one behind the other, that attend together; long ones come first. */
typedef struct {
    int32_t row, count, kv_head;
} run;

/* Who attends to what, for all layers of one class; pieces in order of row, head and block. */
typedef struct {
    run *runs;
    int32_t run_count;
    piece *pieces;
    int32_t *starts; /* of each thread, and the end */
    int32_t cut;     /* whether any row's head is cut over threads */
} plan;

typedef struct {
    const rl_program *program;
    const rl_step *step;
    uint16_t *narrow;
    int8_t *levels, *fine;
    float *scales;
    int32_t *sums;
    int32_t *bases;
    uint8_t *wide;
    float *angles;
    float *scratch;
    float *partials;
    plan *plans;
    atomic_int *turns; /* of each operator: what is to be claimed next */
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
    TAKE(fine, int8_t, rows * features);
    TAKE(scales, float, rows * groups);
    TAKE(sums, int32_t, 2 * rows * groups);
    TAKE(bases, int32_t, rows * groups);
    c->wide_bytes = ROUND64(64 * features);
    TAKE(wide, uint8_t, c->wide_bytes * p->max_threads);
    TAKE(angles, float, (int64_t)p->rotations * p->max_rows * p->rotation_stride);
    c->scratch_floats = 0;
    for (int i = 0; i < p->op_count; i++) {
        const rl_op *op = &p->ops[i];
        if (op->kind != RL_OP_ATTEND) continue;
        const int group = op->heads / op->kv_heads;
        const int64_t floats = ROUND64(attention_floats(flash_queries(group) * group, attention_width(op->head_dim)));
        if (floats > c->scratch_floats) c->scratch_floats = floats;
    }
    TAKE(scratch, float, c->scratch_floats * p->max_threads);
    TAKE(partials, float, 2 * (int64_t)p->max_partial * p->max_threads);
    TAKE(turns, atomic_int, p->op_count);
    TAKE(plans, plan, p->class_count);
    for (int i = 0; i < p->class_count; i++) {
        const int64_t pieces = (int64_t)p->max_rows * p->classes[i].kv_heads + 2 * p->max_threads;
        const int64_t runs = (int64_t)p->max_rows * p->classes[i].kv_heads;
        const int64_t piece_at = at, start_at = at + ROUND64(pieces * (int64_t)sizeof(piece));
        const int64_t run_at = start_at + ROUND64((p->max_threads + 1) * (int64_t)sizeof(int32_t));
        at = run_at + ROUND64(runs * (int64_t)sizeof(run));
        if (base) {
            c->plans[i].pieces = (piece *)(base + piece_at);
            c->plans[i].starts = (int32_t *)(base + start_at);
            c->plans[i].runs = (run *)(base + run_at);
        }
    }
#undef TAKE
    return at;
}

/* Rows from `row` on that are one behind the other in a sequence. */
RL_INLINE int rows_in_a_row(const rl_step *step, int row) {
    int end = row + 1;
    while (end < step->rows && step->row_sequence[end] == step->row_sequence[row] &&
           step->positions[end] == step->positions[end - 1] + 1)
        end++;
    return end - row;
}

/* The runs of a class, from the last row to the first: what sees most comes first. */
static void plan_runs(const rl_step *step, const rl_attention_class *class, plan *made) {
    const int queries = flash_queries(class->group);
    made->run_count = 0;
    for (int row = 0, count; row < step->rows; row += count) {
        count = rows_in_a_row(step, row);
        if (count < FLASH_LEAST) continue;
        for (int left = count; left > 0; left -= queries) {
            const int some = left < queries ? left : queries;
            for (int head = 0; head < class->kv_heads; head++)
                made->runs[made->run_count++] = (run){row + left - some, some, head};
        }
    }
}

/* Cuts the attention of a class over the team: single rows in chunks of blocks, each thread as many as the
 * next. */
static void make_plan(const context *c, const rl_attention_class *class, plan *made, int team) {
    const rl_step *step = c->step;
    int64_t total = 0, done = 0;
    plan_runs(step, class, made);
    for (int row = 0, count; row < step->rows; row += count) {
        count = rows_in_a_row(step, row);
        if (count >= FLASH_LEAST) continue;
        for (int i = row; i < row + count; i++) {
            const int64_t position = step->positions[i];
            const int64_t blocks = position / RL_BLOCK_TOKENS + 1 - oldest_seen(position, class->window) / RL_BLOCK_TOKENS;
            total += (blocks + RL_CHUNK_BLOCKS - 1) / RL_CHUNK_BLOCKS * class->kv_heads;
        }
    }
    int thread = 0, count = 0, partials = 0;
    made->cut = 0;
    made->starts[0] = 0;
    for (int row = 0, skipped = 0; row < step->rows; row++) {
        /* Runs are whole, and begin where the last one ended. */
        const int alike = row < skipped ? 0 : rows_in_a_row(step, row);
        if (alike >= FLASH_LEAST) {
            row += alike - 1;
            continue;
        }
        if (alike) skipped = row + alike;
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

#endif
