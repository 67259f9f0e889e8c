/* The threads of a step: one OpenMP region, and a barrier that costs less than leaving it. */
#ifndef ROOFLENS_TEAM_H
#define ROOFLENS_TEAM_H

#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "place.h"
#include "simd.h"

/* Turns of waiting before the processor is offered to somebody else: a few microseconds. Without the offer,
 * a machine with more threads than processors waits for a thread that cannot run. */
#define RL_SPINS 4000

typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int phase;
} rl_barrier;

RL_INLINE void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until all `count` threads are here. */
RL_INLINE void meet(rl_barrier *barrier, int count) {
    if (count == 1) return;
    const int phase = atomic_load_explicit(&barrier->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == count - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->phase, phase + 1, memory_order_release);
        return;
    }
    for (int turns = 0; atomic_load_explicit(&barrier->phase, memory_order_acquire) == phase; turns++) {
        if (turns < RL_SPINS) rest();
        else sched_yield();
    }
}

RL_INLINE int team_place(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

RL_INLINE int team_size(void) {
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

/* The end of the shares of `total` things before the one of `index`, as the multiplies cut them. */
RL_INLINE int64_t team_share(int64_t total, int index) { return total * index / team_size(); }

/* Seconds of the monotonic clock, the one of Python's time.perf_counter. */
RL_INLINE double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
