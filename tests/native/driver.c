/* Runs the lanes, every weight format and every operator of a step on random numbers of odd sizes: under
 * sanitizers (tests/integration/test_native_sanitizers.py) and on processors that are emulated
 * (test_native_arm.py). Prints what is wrong and returns whether anything was; 77: this processor lacks the
 * instructions. With a file's name, the results are written there, as floats, for other sets to be compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rooflens_native.h"

int check_lanes(void);
int rl_usable(void);
int64_t rl_tile_bytes(int format, int64_t padded);
void rl_pack(int format, const void *source, int type, int64_t stride, int64_t rows, int64_t in_features,
             int64_t padded, uint8_t *tiles, int threads);
int rl_pack_ggml(int format, const uint8_t *blocks, int64_t rows, int64_t in_features, uint8_t *tiles, int threads);
void rl_rows(const rl_linear *linear, const int64_t *rows, int64_t count, void *to, int type, int64_t stride,
             int threads);
int64_t rl_workspace(const rl_program *program);
int rl_step_run(const rl_program *program, const rl_step *step);
int64_t rl_apply_bytes(const rl_linear *linear, int64_t rows, int threads);
void rl_apply(const rl_linear *linear, const void *x, int x_type, int64_t x_stride, void *y, int y_type,
              int64_t y_stride, int64_t rows, int threads, uint8_t *workspace);
uint64_t rl_read(const uint8_t *data, int64_t bytes, int threads);

#define THREADS 2

static int wrong;
static FILE *results;

static void keep(const float *values, int64_t count) {
    if (results) fwrite(values, sizeof *values, (size_t)count, results);
}

static void expect(int sound, const char *what, int number) {
    if (!sound) {
        printf("wrong: %s (%d)\n", what, number);
        wrong++;
    }
}

static uint32_t state = 1;

static uint32_t next(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float uniform(void) { return (float)next() / 8388608.0f - 1.0f; }

static void *take(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    memset(memory, 0, (size_t)((bytes + 63) / 64 * 64));
    return memory;
}

static float *floats(int64_t count) {
    float *made = take(4 * count);
    for (int64_t i = 0; i < count; i++) made[i] = uniform();
    return made;
}

static rl_linear linear_of(int format, int rows, int columns, const float *bias) {
    const int padded = (columns + RL_GROUP - 1) / RL_GROUP * RL_GROUP, tiles = (rows + RL_TILE - 1) / RL_TILE;
    const int64_t bytes = rl_tile_bytes(format, padded);
    uint8_t *data = take(tiles * bytes);
    rl_linear made = {bias, columns, padded, rows, 1, {{data, bytes, format, 0, rows, tiles}}};
    if (format <= RL_Q4_1) {
        float *weight = floats((int64_t)rows * columns);
        rl_pack(format, weight, RL_X_F32, columns, rows, columns, padded, data, THREADS);
        free(weight);
    } else {
        /* Any bits are a block; scales are set to something of a usable size. */
        static const int sizes[RL_FORMATS] = {[RL_Q5_0] = 22, [RL_Q5_1] = 24, [RL_Q4_K] = 144, [RL_Q5_K] = 176, [RL_Q6_K] = 210};
        const int features = format >= RL_Q4_K ? 256 : 32, size = sizes[format], blocks = rows * (columns / features);
        uint8_t *raw = take((int64_t)blocks * size);
        for (int64_t i = 0; i < (int64_t)blocks * size; i++) raw[i] = (uint8_t)next();
        for (int b = 0; b < blocks; b++) {
            uint8_t *scale = raw + (int64_t)b * size + (format == RL_Q6_K ? 208 : 0);
            scale[0] = 0x66;
            scale[1] = 0x1e;
            if (format == RL_Q5_1 || format == RL_Q4_K || format == RL_Q5_K) memcpy(scale + 2, scale, 2);
        }
        expect(rl_pack_ggml(format, raw, rows, columns, data, THREADS) == 0, "packing of blocks", format);
        free(raw);
    }
    return made;
}

static void check_linear(int format, int rows, int columns) {
    float *bias = floats(rows), *held = take(4LL * rows * columns);
    int64_t *all = take(8LL * rows);
    for (int i = 0; i < rows; i++) all[i] = i;
    rl_linear linear = linear_of(format, rows, columns, bias);
    rl_rows(&linear, all, rows, held, RL_X_F32, columns, THREADS);
    static const int counts[] = {1, 2, 3, 5, 9, 35};
    for (int c = 0; c < 6; c++) {
        const int count = counts[c];
        float *x = floats((int64_t)count * columns), *y = take(4LL * count * rows), largest = 1e-3f, error = 0.0f;
        uint8_t *workspace = take(rl_apply_bytes(&linear, count, THREADS));
        rl_apply(&linear, x, RL_X_F32, columns, y, RL_X_F32, rows, count, THREADS, workspace);
        for (int i = 0; i < count; i++)
            for (int row = 0; row < rows; row++) {
                double sum = bias[row];
                for (int k = 0; k < columns; k++) sum += (double)x[i * columns + k] * held[row * columns + k];
                largest = fmaxf(largest, (float)fabs(sum));
                error = fmaxf(error, fabsf(y[i * rows + row] - (float)sum));
            }
        keep(y, (int64_t)count * rows);
        expect(error <= (format == RL_F32 ? 1e-5f : 0.03f) * largest, "a product in format", format);
        free(x);
        free(y);
        free(workspace);
    }
    free((void *)linear.segment[0].data);
    free(bias);
    free(held);
    free(all);
}

enum { HIDDEN, INNER, QKV, MIXED, FIRST, ACTIVE, LOGITS, BUFFERS };
enum { WIDTH = 40, HEADS = 3, KV_HEADS = 1, HEAD = 24, INTERMEDIATE = 52, WORDS = 70, CACHE_BLOCKS = 24, MOST_ROWS = 40 };

/* A layer with norms of heads and a window, over a cache of each type; the same whatever the threads. */
static void check_step(int kv_type, int threads, int rows, float *logits) {
    state = 7;
    const int bytes_each = kv_type == RL_KV_F32 ? 4 : kv_type == RL_KV_BF16 ? 2 : 1;
    const int64_t slots = (int64_t)KV_HEADS * CACHE_BLOCKS * RL_BLOCK_TOKENS;
    static const int widths[BUFFERS] = {WIDTH, WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, HEADS * HEAD, 2 * INTERMEDIATE, INTERMEDIATE, WORDS};
    rl_linear table = linear_of(RL_Q8_0, WORDS, WIDTH, 0), qkv = linear_of(RL_F32, widths[QKV], WIDTH, 0);
    rl_linear o = linear_of(RL_F32, WIDTH, widths[MIXED], 0), first = linear_of(RL_F32, widths[FIRST], WIDTH, 0);
    rl_linear down = linear_of(RL_F32, WIDTH, INTERMEDIATE, 0);
    float *weight = floats(WIDTH), *head_weight = floats(HEAD), *frequencies = floats(HEAD / 2);
    rl_op cached = {.keys = take(slots * HEAD * bytes_each), .values = take(slots * HEAD * bytes_each),
                    .key_scales = take(4 * slots), .value_scales = take(4 * slots), .kv_type = kv_type,
                    .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD, .in = QKV, .residual = -1, .scale = 1.0f};
    rl_op store = cached, attend = cached;
    store.kind = RL_OP_STORE;
    store.out = QKV;
    store.rotary_dim = HEAD;
    attend.kind = RL_OP_ATTEND;
    attend.out = MIXED;
    attend.softmax_scale = 0.2f;
    attend.softcap = 20.0f;
    const rl_op ops[] = {
        {.kind = RL_OP_EMBED, .in = HIDDEN, .out = HIDDEN, .linear = &table, .scale = 2.0f, .size = WIDTH},
        {.kind = RL_OP_NORM, .in = HIDDEN, .out = INNER, .residual = -1, .scale = 1.0f, .size = WIDTH, .weight = weight, .eps = 1e-5f},
        {.kind = RL_OP_LINEAR, .in = INNER, .out = QKV, .residual = -1, .scale = 1.0f, .linear = &qkv},
        {.kind = RL_OP_HEAD_NORM, .in = QKV, .out = QKV, .size = HEAD, .weight = head_weight, .eps = 1e-5f, .scale = 1.0f, .heads = HEADS, .head_dim = HEAD, .all_heads = HEADS + 2 * KV_HEADS},
        {.kind = RL_OP_ROTATION, .rotary_dim = HEAD, .frequencies = frequencies, .rotation_factor = 1.0f},
        store, attend,
        {.kind = RL_OP_LINEAR, .in = MIXED, .out = HIDDEN, .residual = HIDDEN, .scale = 0.5f, .linear = &o},
        {.kind = RL_OP_NORM, .in = HIDDEN, .out = INNER, .residual = -1, .scale = 1.0f, .size = WIDTH, .eps = 1e-5f, .layer_norm = 1},
        {.kind = RL_OP_LINEAR, .in = INNER, .out = FIRST, .residual = -1, .scale = 1.0f, .linear = &first},
        {.kind = RL_OP_ACTIVATE, .in = FIRST, .out = ACTIVE, .size = INTERMEDIATE, .activation = RL_ACT_GELU, .gated = 1},
        {.kind = RL_OP_LINEAR, .in = ACTIVE, .out = HIDDEN, .residual = HIDDEN, .scale = 1.0f, .linear = &down},
        {.kind = RL_OP_NORM, .in = HIDDEN, .out = INNER, .residual = -1, .scale = 1.0f, .size = WIDTH, .weight = weight, .eps = 1e-5f, .sampled = 1},
        {.kind = RL_OP_LINEAR, .in = INNER, .out = LOGITS, .residual = -1, .scale = 1.0f, .cap = 30.0f, .linear = &table, .sampled = 1},
    };
    const int count = sizeof ops / sizeof *ops, room = MOST_ROWS;
    rl_buffer buffers[BUFFERS];
    for (int b = 0; b < BUFFERS; b++) {
        const int stride = (widths[b] + RL_GROUP - 1) / RL_GROUP * RL_GROUP;
        buffers[b] = (rl_buffer){take(4LL * room * stride), stride, b == INNER, 0};
    }
    const rl_attention_class classes[] = {{200, KV_HEADS, HEADS / KV_HEADS}};
    rl_program program = {ops, buffers, classes, 0, 0, CACHE_BLOCKS, WORDS, count, BUFFERS, 1, 1, HEAD, room, threads, 96,
                          HEADS * (32 + 2) + 10, room};
    program.workspace_bytes = rl_workspace(&program);
    program.workspace = take(program.workspace_bytes);
    int64_t tables[2 * 18], tokens[MOST_ROWS], positions[MOST_ROWS], slots_of[MOST_ROWS], samples[MOST_ROWS];
    int32_t sequences[MOST_ROWS];
    for (int i = 0; i < 18; i++) tables[i] = 17 - i;
    for (int i = 0; i < 18; i++) tables[18 + i] = 18 + i % 6;
    double times[32];
    for (int at = 0; at < 2; at++) {
        /* First all rows in the second sequence, then the last of a long one beside them. */
        for (int r = 0; r < rows; r++) {
            const int long_one = at == 1 && r == 0;
            tokens[r] = next() % WORDS;
            positions[r] = long_one ? 280 : r + at * 8;
            sequences[r] = !long_one;
            slots_of[r] = tables[18 * sequences[r] + positions[r] / RL_BLOCK_TOKENS] * RL_BLOCK_TOKENS + positions[r] % RL_BLOCK_TOKENS;
            samples[r] = rows - 1 - r;
        }
        rl_step step = {tokens, positions, slots_of, tables, sequences, samples, times, 18, rows, rows, 2, threads};
        expect(rl_step_run(&program, &step) == RL_DONE, "a step", kv_type);
        for (int i = 0; i < count; i++) expect(times[i] <= times[i + 1], "the order of times", i);
        tokens[0] = WORDS;
        expect(rl_step_run(&program, &step) == RL_BAD_TOKEN, "the check of tokens", kv_type);
        tokens[0] = 0;
        slots_of[0] = -1;
        expect(rl_step_run(&program, &step) == RL_BAD_SLOT, "the check of slots", kv_type);
    }
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < WORDS; w++) {
            logits[r * WORDS + w] = buffers[LOGITS].data[r * buffers[LOGITS].stride + w];
            expect(fabsf(logits[r * WORDS + w]) <= 30.0f, "a logit", w);
        }
    const rl_linear *linears[] = {&table, &qkv, &o, &first, &down};
    for (int i = 0; i < 5; i++) free((void *)linears[i]->segment[0].data);
    for (int b = 0; b < BUFFERS; b++) free(buffers[b].data);
    free(cached.keys);
    free(cached.values);
    free(cached.key_scales);
    free(cached.value_scales);
    free(weight);
    free(head_weight);
    free(frequencies);
    free(program.workspace);
}

int main(int count, char **arguments) {
    if (!rl_usable()) return 77;
    if (count > 1 && !(results = fopen(arguments[1], "wb"))) return 2;
    wrong += check_lanes();
    for (int format = 0; format < RL_FORMATS; format++) {
        check_linear(format, 37, 256);
        if (format <= RL_Q4_1) check_linear(format, 16, 45);
    }
    for (int kv_type = RL_KV_F32; kv_type <= RL_KV_INT8; kv_type++)
        for (int i = 0; i < 4; i++) {
            /* Single rows, and enough for panels and for attention of many rows. */
            const int rows = (const int[]){1, 3, 5, MOST_ROWS}[i];
            static float one[MOST_ROWS * WORDS], more[MOST_ROWS * WORDS];
            check_step(kv_type, 1, rows, one);
            check_step(kv_type, 3, rows, more);
            keep(one, rows * WORDS);
            for (int k = 0; k < rows * WORDS; k++)
                expect(fabsf(one[k] - more[k]) <= 1e-3f, "a logit by more threads", k);
        }
    uint8_t *data = take(100 * 64);
    memset(data, 1, 100 * 64);
    expect(rl_read(data, 100 * 64, THREADS) == 100ull * 16 * 0x01010101u, "the sum of what was read", 0);
    free(data);
    if (results) fclose(results);
    printf(wrong ? "%d wrong\n" : "sound\n", wrong);
    return wrong != 0;
}
