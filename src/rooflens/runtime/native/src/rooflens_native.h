/* What Python and C share: weight formats, the operators of a step, and the library's entry points.
 *
 * Every struct here has its mirror in layout.py; rl_layout() lets Python check that both agree.
 */
#ifndef ROOFLENS_NATIVE_H
#define ROOFLENS_NATIVE_H

#include <stdint.h>

#define RL_TILE 16           /* output features of a tile */
#define RL_GROUP 32          /* input features that share an activation scale */
#define RL_BLOCK_TOKENS 16   /* tokens of a block of the KV cache */
#define RL_MAX_SEGMENTS 4    /* formats side by side in one linear */
#define RL_CHUNK_BLOCKS 8    /* cache blocks that attention hands to one thread at least */
#define RL_ROW_PADDING 32    /* rows that the matrix unit takes at once: inputs have room for as many more */
#define RL_MAX_HEAD 512
#define RL_HEAD_FEATURES 32  /* attention rounds heads up to as many: two tiles */
#define RL_MAX_GROUP 64      /* query heads that share a KV head */

enum {
    RL_F32,
    RL_BF16,
    RL_Q8_CHANNEL,
    RL_Q8_0,
    RL_Q4_0,
    RL_Q4_1,
    RL_Q5_0,
    RL_Q5_1,
    RL_Q4_K,
    RL_Q5_K,
    RL_Q6_K,
    RL_FORMATS
};

enum { RL_KV_F32, RL_KV_BF16, RL_KV_INT8 };
enum { RL_X_F32, RL_X_BF16 };

/* Some rows of a linear in one format: `tiles` tiles of `tile_bytes` from `data` on. */
typedef struct {
    const uint8_t *data;
    int64_t tile_bytes;
    int32_t format;
    int32_t first;   /* its first output feature in the linear */
    int32_t rows;    /* without the padding of the last tile */
    int32_t tiles;
} rl_segment;

/* y = x W^T + b. `padded` is in_features rounded up to whole groups. */
typedef struct {
    const float *bias; /* or null */
    int32_t in_features;
    int32_t padded;
    int32_t out_features;
    int32_t segments;
    rl_segment segment[RL_MAX_SEGMENTS];
} rl_linear;

enum {
    RL_OP_EMBED,
    RL_OP_ROTATION,
    RL_OP_NORM,
    RL_OP_LINEAR,
    RL_OP_HEAD_NORM,
    RL_OP_STORE,
    RL_OP_ATTEND,
    RL_OP_ACTIVATE
};

enum { RL_ACT_SILU, RL_ACT_GELU, RL_ACT_GELU_TANH, RL_ACT_RELU, RL_ACT_RELU2 };

/* Rows of floats, `stride` apart. With one row in the step a private buffer has a row for each thread,
 * which all threads fill alike: that costs less than waiting for one that does it for all. */
typedef struct {
    float *data;
    int64_t stride;
    int32_t is_private;
    int32_t unused;
} rl_buffer;

/* One operator; fields beside `kind`, `in` and `out` are used by the kinds that their comment names. */
typedef struct {
    int32_t kind;
    int32_t in, out;            /* buffers */
    int32_t residual;           /* LINEAR, NORM: buffer added to the result, -1 for none */
    int32_t sampled;            /* NORM, LINEAR: runs for the rows to sample, and NORM picks them */
    float scale;                /* EMBED, LINEAR, NORM: factor on the result, before the residual */
    float cap;                  /* LINEAR: soft cap of the result, 0 for none */
    const rl_linear *linear;    /* LINEAR, EMBED */
    const void *table;          /* EMBED: rows of floats or bf16 where the linear is null */
    int32_t table_type;         /* EMBED: RL_X_* */
    int32_t size;               /* NORM, HEAD_NORM: features; EMBED: features; ACTIVATE: of the result */
    const float *weight, *bias; /* NORM, HEAD_NORM: or null */
    float eps;
    int32_t layer_norm;         /* 0: root mean square */
    int32_t first_head, heads;  /* HEAD_NORM: which heads of `in`; STORE, ATTEND: query heads */
    int32_t kv_heads, head_dim;
    int32_t rotary_dim, interleaved; /* STORE */
    int32_t rotation;           /* ROTATION, STORE: which table of angles */
    int32_t plan;               /* ATTEND: layers of the same window and KV heads share one */
    float softmax_scale, softcap;
    const float *frequencies;   /* ROTATION: rotary_dim / 2 of them */
    float rotation_factor;
    void *keys, *values;        /* STORE, ATTEND: [kv_heads, blocks, block_tokens, head_dim] */
    float *key_scales, *value_scales; /* int8 caches: one for each token and head */
    int32_t kv_type;
    int32_t activation, gated;  /* ACTIVATE */
    int32_t all_heads;          /* HEAD_NORM: of q, k and v together */
} rl_op;

typedef struct {
    int32_t window;             /* 0: all */
    int32_t kv_heads;
    int32_t group;              /* query heads of a KV head */
} rl_attention_class;

/* A model's decode step. Filled once by Python; `workspace` is of rl_workspace(). */
typedef struct {
    const rl_op *ops;
    const rl_buffer *buffers;
    const rl_attention_class *classes;
    uint8_t *workspace;
    int64_t workspace_bytes;
    int64_t cache_blocks;       /* of every layer */
    int64_t vocabulary;
    int32_t op_count, buffer_count, class_count;
    int32_t rotations;          /* tables of angles */
    int32_t rotation_stride;    /* floats of one row's angles in one table */
    int32_t max_rows, max_threads;
    int32_t max_features;       /* widest input of a linear, padded */
    int32_t max_partial;        /* floats of a KV head's partial result: group * (attention_width + 2) */
    int32_t max_samples;        /* rows of logits */
} rl_program;

/* One step's input: `rows` tokens, each with its sequence's blocks. `times`: null, or a second's stamp at the
 * start and after every operator. */
typedef struct {
    const int64_t *tokens, *positions, *slots, *block_tables;
    const int32_t *row_sequence;
    const int64_t *sample_rows;
    double *times;
    int64_t table_stride;
    int32_t rows, samples, sequences, threads;
} rl_step;

enum { RL_DONE, RL_BAD_ROWS, RL_BAD_TOKEN, RL_BAD_SLOT, RL_BAD_BLOCK, RL_BAD_SAMPLE };

#endif
