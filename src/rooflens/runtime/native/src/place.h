/* Where threads may run. A thread of the pool is told once and stays; the one that calls gets its own places
 * back when it leaves, because whatever it starts later would inherit them. */
#ifndef ROOFLENS_PLACE_H
#define ROOFLENS_PLACE_H

#include <stdint.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define RL_CPU_WORDS 128 /* 8,192 CPUs, as many as Linux counts */

/* One mask of CPUs for each of `threads`; none where the system decides. */
typedef struct {
    const uint64_t *masks; /* [threads][words] */
    int32_t threads, words;
    int32_t round; /* of calls to rl_place */
} rl_places;

extern rl_places rl_placing;

typedef struct {
    int64_t bytes; /* 0: nothing to give back */
    uint64_t mask[RL_CPU_WORDS];
} rl_home;

/* The thread at `place` goes where it belongs; `home`: for leave(). */
static inline void settle(int place, rl_home *home) {
    home->bytes = 0;
#if defined(__linux__)
    static _Thread_local int32_t place_now = -1, round_now;
    if (place >= rl_placing.threads || (place && place_now == place && round_now == rl_placing.round)) return;
    if (place == 0) home->bytes = syscall(SYS_sched_getaffinity, 0, sizeof home->mask, home->mask);
    if (place == 0 && home->bytes <= 0) {
        home->bytes = 0;
        return;
    }
    syscall(SYS_sched_setaffinity, 0, 8 * (size_t)rl_placing.words, rl_placing.masks + (int64_t)place * rl_placing.words);
    place_now = place;
    round_now = rl_placing.round;
#else
    (void)place;
#endif
}

static inline void leave(const rl_home *home) {
#if defined(__linux__)
    if (home->bytes) syscall(SYS_sched_setaffinity, 0, (size_t)home->bytes, home->mask);
#else
    (void)home;
#endif
}

#endif
