/* The clock that only goes forward, and waiting by it. */
#ifndef SLOTSTREAM_CLOCK_H
#define SLOTSTREAM_CLOCK_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double now_s(void) { return 1e-9 * (double)now_ns(); }

/* Wait for `condition`, at most until `deadline_ns`; 0 when the time is over. */
static inline int wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t deadline_ns) {
#if defined(__APPLE__)
    int64_t left = deadline_ns - now_ns();
    struct timespec span = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
    return pthread_cond_timedwait_relative_np(condition, lock, &span) != ETIMEDOUT;
#else
    struct timespec moment = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return pthread_cond_timedwait(condition, lock, &moment) != ETIMEDOUT;
#endif
}

/* Make a condition that `wait_until` waits for. */
static inline int start_condition(pthread_cond_t *condition) {
#if defined(__APPLE__)
    return pthread_cond_init(condition, NULL);
#else
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes)) return -1;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int code = pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
    return code;
#endif
}

#endif
