/* A decode step in one call, and one linear by itself.
 *
 * All threads go through the operators together. What is cheap and needed by all is computed by each for
 * itself (with one row: norms, and the input of a linear in 8 bits); everything else is cut evenly, and a
 * barrier follows.
 */
#include "operators.h"

int64_t rl_workspace(const rl_program *program) {
    context c;
    return lay_out(program, 0, &c);
}

void rl_run(const rl_program *program, const rl_step *step) {
    context c;
    lay_out(program, program->workspace, &c);
    c.program = program;
    c.step = step;
    atomic_init(&c.barrier->arrived, 0);
    atomic_init(&c.barrier->phase, 0);
    for (int i = 0; i < program->op_count; i++) atomic_init(&c.turns[i], 0);
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
    return 4096 + room * padded * 8 + 16 * room * groups + threads * (ROUND64(64 * padded) + ROUND64(4 * padded));
}

/* y [rows, out] = x [rows, in] W^T + b, with x and y of any of RL_X_*. */
void rl_apply(const rl_linear *linear, const void *x, int x_type, int64_t x_stride, void *y, int y_type,
                   int64_t y_stride, int64_t rows, int threads, uint8_t *workspace) {
    const int64_t padded = linear->padded, groups = padded / RL_GROUP, room = rows + RL_ROW_PADDING;
    uint8_t *at = workspace;
    rl_barrier *barrier = (rl_barrier *)at;
    at += ROUND64(sizeof(rl_barrier));
    atomic_int *turn = (atomic_int *)at;
    at += ROUND64(sizeof(atomic_int));
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
    int8_t *fine = (int8_t *)at;
    at += ROUND64(room * padded);
    float *scales = (float *)at;
    at += ROUND64(4 * room * groups);
    int32_t *sums = (int32_t *)at;
    at += ROUND64(8 * room * groups);
    const int needs = input_needs(linear, rows);
    const rl_input input = {floats, narrow, levels, needs & NEEDS_FINE ? fine : 0, scales, sums, (int32_t *)at, padded, padded};
    const rl_output output = {y, 0, y_stride, 0, 1.0f, 0.0f, y_type, 0, 0};
    atomic_init(&barrier->arrived, 0);
    atomic_init(&barrier->phase, 0);
    atomic_init(turn, 0);
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
        multiply(linear, &input, rows, &output, place, team, wide + place * ROUND64(64 * padded), turn);
        leave(&home);
    }
}
