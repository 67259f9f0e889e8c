/* Checks: that the processor can run this library, and that a step is sound. And the bandwidth probe. */
#include <stdlib.h>

#include "rooflens_native.h"
#include "simd.h"
#include "team.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

int64_t rl_workspace(const rl_program *program);
void rl_run(const rl_program *program, const rl_step *step);

#if defined(__AMX_BF16__)
/* AMX has to be asked of the kernel, once for the process. */
static int amx_allowed(void) {
#if defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (!(d >> 22 & 1) || !(d >> 24 & 1)) return 0; /* amx-bf16, amx-tile */
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return 0;
#endif
}
#endif

#if defined(__AVX512BF16__)
static int has_avx512_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
#endif

#if defined(__AVXVNNI__)
static int has_avx_vnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
enum { ARM_DOTS, ARM_I8MM, ARM_BF16 };

/* Linux tells features as bits, of the first word or of the second; macOS by name. */
static int arm_has(int feature) {
#if defined(__linux__)
    static const struct {
        unsigned long word, bit;
    } bits[] = {{AT_HWCAP, 20}, {AT_HWCAP2, 13}, {AT_HWCAP2, 14}};
    return getauxval(bits[feature].word) >> bits[feature].bit & 1;
#elif defined(__APPLE__)
    static const char *const names[] = {"hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_I8MM",
                                        "hw.optional.arm.FEAT_BF16"};
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(names[feature], &has, &size, 0, 0) == 0 && has;
#else
    (void)feature;
    return 0;
#endif
}
#endif

/* Whether this processor runs what this library was compiled for, with the operating system's leave. */
int rl_usable(void) {
#if defined(__x86_64__) && defined(__AVX2__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
#if defined(__AVX512VNNI__)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vnni"))
        return 0;
#endif
#if defined(__AVXVNNI__)
    if (!has_avx_vnni()) return 0;
#endif
#if defined(__AVX512BF16__)
    if (!has_avx512_bf16()) return 0;
#endif
#if defined(__AMX_BF16__)
    if (!amx_allowed()) return 0;
#endif
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
    if (!arm_has(ARM_DOTS)) return 0;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (!arm_has(ARM_I8MM)) return 0;
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    if (!arm_has(ARM_BF16)) return 0;
#endif
#endif
    return 1;
}

rl_places rl_placing;

/* Thread i may run on the CPUs of mask i, `words` words each; 0 threads: anywhere. Returns whether this system
 * places threads at all. Masks of before are kept: a step may run. */
int rl_place(int threads, int words, const uint64_t *masks) {
#if defined(__linux__)
    uint64_t *copy = 0;
    const size_t bytes = 8 * (size_t)threads * (size_t)words;
    if (bytes && !(copy = malloc(bytes))) return 0;
    if (bytes) memcpy(copy, masks, bytes);
    rl_placing = (rl_places){copy, threads, words, rl_placing.round + 1};
    return 1;
#else
    (void)words;
    (void)masks;
    return threads == 0;
#endif
}

/* The sizes that Python's mirrors of the structs must have. */
int64_t rl_layout(int index) {
    const int64_t sizes[] = {sizeof(rl_segment), sizeof(rl_linear), sizeof(rl_buffer), sizeof(rl_op),
                             sizeof(rl_attention_class), sizeof(rl_program), sizeof(rl_step)};
    return index < (int)(sizeof sizes / sizeof *sizes) ? sizes[index] : -1;
}

static int check(const rl_program *program, const rl_step *step) {
    if (step->rows < 1 || step->rows > program->max_rows || step->threads < 1 ||
        step->threads > program->max_threads || step->samples < 0 || step->samples > step->rows || step->samples > program->max_samples)
        return RL_BAD_ROWS;
    for (int row = 0; row < step->rows; row++) {
        const int64_t blocks = step->positions[row] / RL_BLOCK_TOKENS + 1;
        if (step->tokens[row] < 0 || step->tokens[row] >= program->vocabulary) return RL_BAD_TOKEN;
        if (step->slots[row] < 0 || step->slots[row] >= program->cache_blocks * RL_BLOCK_TOKENS)
            return RL_BAD_SLOT;
        if (step->row_sequence[row] < 0 || step->row_sequence[row] >= step->sequences ||
            step->positions[row] < 0 || blocks > step->table_stride)
            return RL_BAD_BLOCK;
        const int64_t *table = step->block_tables + step->row_sequence[row] * step->table_stride;
        for (int64_t i = 0; i < blocks; i++)
            if (table[i] < 0 || table[i] >= program->cache_blocks) return RL_BAD_BLOCK;
    }
    for (int i = 0; i < step->samples; i++)
        if (step->sample_rows[i] < 0 || step->sample_rows[i] >= step->rows) return RL_BAD_SAMPLE;
    return RL_DONE;
}

/* Run a step: RL_DONE, or what is wrong with it, and then nothing was done. */
int rl_step_run(const rl_program *program, const rl_step *step) {
    const int problem = check(program, step);
    if (problem == RL_DONE) rl_run(program, step);
    return problem;
}

/* Read `bytes` once, each thread its part, as the multiplies do; the sum keeps the compiler from leaving it. */
uint64_t rl_read(const uint8_t *data, int64_t bytes, int threads) {
    uint64_t total = 0;
    (void)threads;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(+ : total)
#endif
    {
        rl_home home;
        settle(team_place(), &home);
        const int64_t lines = bytes / 64;
        const int64_t first = lines * team_place() / team_size(), last = lines * (team_place() + 1) / team_size();
        vu sum[4][RL_PARTS] = {{{0}}};
        int64_t i = first;
        for (; i + 4 <= last; i += 4) {
            for (int line = 0; line < 256; line += 64) ask_ahead(data + 64 * i + line);
            for (int line = 0; line < 4; line++)
                for (int part = 0; part < RL_PARTS; part++)
                    sum[line][part] += *(const vu *)(data + 64 * (i + line) + RL_BYTES * part);
        }
        for (; i < last; i++)
            for (int part = 0; part < RL_PARTS; part++) sum[0][part] += *(const vu *)(data + 64 * i + RL_BYTES * part);
        for (int line = 0; line < 4; line++)
            for (int part = 0; part < RL_PARTS; part++)
                for (int lane = 0; lane < RL_LANES; lane++) total += sum[line][part][lane];
        leave(&home);
    }
    return total;
}
