/* Every function of simd.h that has instructions of its own, against plain C. */
#include <stdio.h>

#include "simd.h"

static int wrong;

static void expect(int sound, const char *what, int number) {
    if (!sound && wrong++ < 20) printf("wrong: %s (%d)\n", what, number);
}

static uint32_t state = 11;

static uint32_t next(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void check_dots(void) {
    static const uint8_t weights[] = {0, 1, 127, 128, 255};
    static const int8_t inputs[] = {-128, -127, -1, 0, 1, 127};
    for (int turn = 0; turn < 3000; turn++) {
        uint8_t w[RL_BYTES], small[RL_BYTES];
        int8_t x[4];
        int32_t start[RL_LANES];
        /* Ends of the ranges first, then anything. */
        for (int i = 0; i < RL_BYTES; i++) w[i] = turn < 600 ? weights[next() % 5] : (uint8_t)next();
        for (int i = 0; i < RL_BYTES; i++) small[i] = w[i] & 127;
        for (int i = 0; i < 4; i++) x[i] = turn < 600 ? inputs[next() % 6] : (int8_t)next();
        for (int r = 0; r < RL_LANES; r++) start[r] = (int32_t)next() - (1 << 23);
        vi acc;
        vb all, low;
        memcpy(&acc, start, RL_BYTES);
        memcpy(&all, w, RL_BYTES);
        memcpy(&low, small, RL_BYTES);
        const vi sum = dot_quads(acc, all, x), small_sum = dot_small(acc, low, x);
        for (int r = 0; r < RL_LANES; r++) {
            int32_t right = start[r], small_right = start[r];
            for (int i = 0; i < 4; i++) {
                right += w[4 * r + i] * x[i];
                small_right += small[4 * r + i] * x[i];
            }
            expect(sum[r] == right, "dot_quads", turn);
            expect(small_sum[r] == small_right, "dot_small", turn);
        }
    }
}

#ifdef RL_WORDS
/* Quads of any bytes and words, and eight quads of the smallest weights: both at the ends of their ranges too. */
static void check_words(void) {
    for (int turn = 0; turn < 3000; turn++) {
        int32_t numbers[RL_LANES];
        int16_t words[RL_LANES];
        for (int i = 0; i < RL_LANES; i++) numbers[i] = turn < 600 ? (next() % 2 ? 32512 : -32512) : (int32_t)(next() % 65025) - 32512;
        words_store(words, *(const vi *)numbers);
        uint8_t w[RL_BYTES];
        for (int i = 0; i < RL_BYTES; i++) w[i] = turn < 600 ? (next() % 2 ? 255 : 0) : (uint8_t)next();
        const vb all = *(const vb *)w;
        const vi sum = dot_words(dot_words(vi_set(turn), even_bytes(all), words), odd_bytes(all), words + 2);
        int8_t x[32];
        vi tiny = vi_set(0);
        for (int i = 0; i < 32; i++) x[i] = turn < 600 ? (next() % 2 ? 127 : -127) : (int8_t)(next() % 255 - 127);
        for (int j = 0; j < 8; j++) tiny = dot_tiny(tiny, all & 15, x + 4 * j);
        tiny = sum_tiny(tiny);
        for (int r = 0; r < RL_LANES; r++) {
            int32_t right = turn, tiny_right = 0;
            for (int i = 0; i < 4; i++) right += w[4 * r + i] * numbers[i];
            for (int k = 0; k < 32; k++) tiny_right += (w[4 * r + k % 4] & 15) * x[k];
            expect(sum[r] == right, "dot_words", turn);
            expect(tiny[r] == tiny_right, "dot_tiny", turn);
        }
    }
}
#endif

static void check_narrow(void) {
    for (uint32_t first = 0; first < 65536; first += RL_LANES) {
        uint16_t half[RL_LANES];
        for (int i = 0; i < RL_LANES; i++) half[i] = (uint16_t)(first + (uint32_t)i);
        const vf wide = vf_of_fp16(half), brain = vf_of_bf16(half);
        uint16_t back[RL_LANES];
        bf16_store(back, brain);
        for (int i = 0; i < RL_LANES; i++) {
            const float right = fp16_float(half[i]);
            expect(right == wide[i] || (isnan(right) && isnan(wide[i])), "vf_of_fp16", half[i]);
            /* Some instructions make zeros of numbers below the normal ones. */
            const int normal = half[i] & 0x7f80;
            expect(back[i] == half[i] || isnan(brain[i]) || !normal, "bf16 there and back", half[i]);
        }
    }
    for (int turn = 0; turn < 20000; turn++) {
        /* Normal numbers, those half way between two of bf16 among them, infinities and NaNs. */
        float x[RL_LANES];
        uint16_t narrow[RL_LANES];
        for (int i = 0; i < RL_LANES; i++) {
            uint32_t bits = next() << 8 | (turn % 2 ? 0x8000u : next() & 255u);
            if (turn % 2) bits &= 0xffff8000u;
            if ((bits >> 23 & 255u) == 0) bits |= 1u << 23;
            x[i] = float_of(bits);
        }
        bf16_store(narrow, vf_load(x));
        for (int i = 0; i < RL_LANES; i++)
            expect(narrow[i] == float_bf16(x[i]) || (isnan(x[i]) && isnan(bf16_float(narrow[i]))), "bf16_store", turn);
    }
}

static void check_sums(void) {
    for (int turn = 0; turn < 500; turn++) {
        vf v[RL_LANES];
        for (int i = 0; i < RL_LANES; i++)
            for (int lane = 0; lane < RL_LANES; lane++) v[i][lane] = (float)((int)(next() % 2001) - 1000);
        const vf sums = sum_each(v), tops = top_each(v);
        for (int i = 0; i < RL_LANES; i++) {
            float total = 0.0f, top = -INFINITY;
            for (int lane = 0; lane < RL_LANES; lane++) {
                total += v[i][lane];
                top = fmaxf(top, v[i][lane]);
            }
            /* Small whole numbers: any order gives the same sum. */
            expect(vf_sum(v[i]) == total, "vf_sum", turn);
            expect(sums[i] == total, "sum_each", turn);
            expect(vf_top(v[i]) == top, "vf_top", turn);
            expect(tops[i] == top, "top_each", turn);
        }
    }
}

static void check_curves(void) {
    for (float x = -86.0f; x < 86.0f; x += 0.37f) {
        const double right = exp((double)x);
        expect(fabs((double)vf_exp(vf_set(x))[3] - right) <= 3e-7 * right, "vf_exp", (int)x);
        expect(fabs((double)vf_tanh(vf_set(x / 20.0f))[1] - tanh((double)x / 20.0)) <= 1e-6, "vf_tanh", (int)x);
        expect(vf_round(vf_set(x))[0] == rintf(x), "vf_round", (int)x);
        expect(fabs((double)vf_inverse(vf_set(x))[2] * (double)x - 1.0) <= 3e-7, "vf_inverse", (int)x);
    }
}

#ifdef RL_BF16_DOTS
static void check_pairs(void) {
    for (int turn = 0; turn < 2000; turn++) {
        uint16_t w[2 * RL_LANES], x[2];
        float start[RL_LANES];
        for (int i = 0; i < 2 * RL_LANES; i++) w[i] = float_bf16((float)((int)(next() % 511) - 255) / 64.0f);
        for (int i = 0; i < 2; i++) x[i] = float_bf16((float)((int)(next() % 511) - 255) / 64.0f);
        for (int r = 0; r < RL_LANES; r++) start[r] = (float)((int)(next() % 511) - 255) / 64.0f;
        vu pairs;
        memcpy(&pairs, w, RL_BYTES);
        const vf sum = dot_pairs(vf_load(start), pairs, x);
        for (int r = 0; r < RL_LANES; r++) {
            /* Few digits: no order and no rounding changes the sum. */
            const float right = start[r] + bf16_float(w[2 * r]) * bf16_float(x[0]) + bf16_float(w[2 * r + 1]) * bf16_float(x[1]);
            expect(sum[r] == right, "dot_pairs", turn);
        }
    }
}
#endif

int check_lanes(void);

int check_lanes(void) {
    check_dots();
#ifdef RL_WORDS
    check_words();
#endif
    check_narrow();
    check_sums();
    check_curves();
#ifdef RL_BF16_DOTS
    check_pairs();
#endif
    return wrong;
}
