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
        uint8_t w[64], small[64];
        int8_t x[4];
        int32_t start[16];
        /* Ends of the ranges first, then anything. */
        for (int i = 0; i < 64; i++) w[i] = turn < 600 ? weights[next() % 5] : (uint8_t)next();
        for (int i = 0; i < 64; i++) small[i] = w[i] & 127;
        for (int i = 0; i < 4; i++) x[i] = turn < 600 ? inputs[next() % 6] : (int8_t)next();
        for (int r = 0; r < 16; r++) start[r] = (int32_t)next() - (1 << 23);
        vi acc;
        vb all, low;
        memcpy(&acc, start, 64);
        memcpy(&all, w, 64);
        memcpy(&low, small, 64);
        const vi sum = dot_quads(acc, all, x), small_sum = dot_small(acc, low, x);
        for (int r = 0; r < 16; r++) {
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

static void check_narrow(void) {
    for (uint32_t first = 0; first < 65536; first += 16) {
        uint16_t half[16];
        for (int i = 0; i < 16; i++) half[i] = (uint16_t)(first + (uint32_t)i);
        const vf wide = vf_of_fp16(half), brain = vf_of_bf16(half);
        uint16_t back[16];
        bf16_store(back, brain);
        for (int i = 0; i < 16; i++) {
            const float right = fp16_float(half[i]);
            expect(right == wide[i] || (isnan(right) && isnan(wide[i])), "vf_of_fp16", half[i]);
            /* Some instructions make zeros of numbers below the normal ones. */
            const int normal = half[i] & 0x7f80;
            expect(back[i] == half[i] || isnan(brain[i]) || !normal, "bf16 there and back", half[i]);
        }
    }
    for (int turn = 0; turn < 20000; turn++) {
        /* Normal numbers, those half way between two of bf16 among them, infinities and NaNs. */
        float x[16];
        uint16_t narrow[16];
        for (int i = 0; i < 16; i++) {
            uint32_t bits = next() << 8 | (turn % 2 ? 0x8000u : next() & 255u);
            if (turn % 2) bits &= 0xffff8000u;
            if ((bits >> 23 & 255u) == 0) bits |= 1u << 23;
            x[i] = float_of(bits);
        }
        bf16_store(narrow, vf_load(x));
        for (int i = 0; i < 16; i++)
            expect(narrow[i] == float_bf16(x[i]) || (isnan(x[i]) && isnan(bf16_float(narrow[i]))), "bf16_store", turn);
    }
}

static void check_sums(void) {
    for (int turn = 0; turn < 500; turn++) {
        vf v[16];
        for (int i = 0; i < 16; i++)
            for (int lane = 0; lane < 16; lane++) v[i][lane] = (float)((int)(next() % 2001) - 1000);
        const vf sums = sum_each(v);
        for (int i = 0; i < 16; i++) {
            float total = 0.0f, top = -INFINITY;
            for (int lane = 0; lane < 16; lane++) {
                total += v[i][lane];
                top = fmaxf(top, v[i][lane]);
            }
            /* Small whole numbers: any order gives the same sum. */
            expect(vf_sum(v[i]) == total, "vf_sum", turn);
            expect(sums[i] == total, "sum_each", turn);
            expect(vf_top(v[i]) == top, "vf_top", turn);
        }
    }
}

static void check_curves(void) {
    for (float x = -86.0f; x < 86.0f; x += 0.37f) {
        const double right = exp((double)x);
        expect(fabs((double)vf_exp(vf_set(x))[3] - right) <= 3e-7 * right, "vf_exp", (int)x);
        expect(fabs((double)vf_tanh(vf_set(x / 20.0f))[7] - tanh((double)x / 20.0)) <= 1e-6, "vf_tanh", (int)x);
        expect(vf_round(vf_set(x))[0] == rintf(x), "vf_round", (int)x);
        expect(fabs((double)vf_inverse(vf_set(x))[5] * (double)x - 1.0) <= 3e-7, "vf_inverse", (int)x);
    }
}

#ifdef RL_BF16_DOTS
static void check_pairs(void) {
    for (int turn = 0; turn < 2000; turn++) {
        uint16_t w[32], x[2];
        float start[16];
        for (int i = 0; i < 32; i++) w[i] = float_bf16((float)((int)(next() % 511) - 255) / 64.0f);
        for (int i = 0; i < 2; i++) x[i] = float_bf16((float)((int)(next() % 511) - 255) / 64.0f);
        for (int r = 0; r < 16; r++) start[r] = (float)((int)(next() % 511) - 255) / 64.0f;
        vu pairs;
        memcpy(&pairs, w, 64);
        const vf sum = dot_pairs(vf_load(start), pairs, x);
        for (int r = 0; r < 16; r++) {
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
    check_narrow();
    check_sums();
    check_curves();
#ifdef RL_BF16_DOTS
    check_pairs();
#endif
    return wrong;
}
